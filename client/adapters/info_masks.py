"""Moves action masks from an environment's infos, where newer ones have them, to observations."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from muxrl.client.adapters.simulation import SimulationError
from muxrl.protocol.spaces import ACTION_MASK_KEY, Box, DictSpace, Discrete, Space


class InfoMasks:
    """Adds masks in infos to the observations of agents with Discrete actions.

    If observations of such agents have no mask, the environment is reset once to see whether any
    info has one, under ``action_mask``. If so, all these agents observe a Dict with a mask, which
    is all ones if an agent's info has none.

    Args:
        observed: by agent: the observation space, to which a mask is added in place.
        acted: by agent: the action space.
        first_infos: resets the environment, and returns its infos by agent.
    """

    def __init__(
        self,
        observed: dict[str, Space],
        acted: Mapping[str, Space],
        first_infos: Callable[[], Mapping[str, Any]],
    ) -> None:
        sizes = {
            name: space.n
            for name, space in acted.items()
            if isinstance(space, Discrete)
            and ACTION_MASK_KEY not in getattr(observed[name], "spaces", ())
        }
        is_read = bool(sizes) and any(map(has_mask, first_infos().values()))
        self.sizes = sizes if is_read else {}
        """By agent whose mask is read from infos: its number of actions."""
        self.unread: frozenset[str] = frozenset() if is_read else frozenset(sizes)
        """Agents whose infos could have a mask, and had none at the first reset: it is not read."""
        for name, num_actions in self.sizes.items():
            space = observed[name]
            parts = space.spaces if isinstance(space, DictSpace) else {"observation": space}
            mask = Box((num_actions,), "int8", 0.0, 1.0)
            observed[name] = DictSpace({**parts, ACTION_MASK_KEY: mask})

    def add(
        self,
        infos: Mapping[str, Any],
        observations: dict[str, Any],
        lead: tuple[int, ...] = (),
    ) -> None:
        """Adds the masks of infos to plain observations, in place.

        Args:
            infos: by agent.
            observations: by agent; values, or rows of values.
            lead: the first dimensions of rows. If infos have an array "_action_mask", it says which
                rows have a mask.

        Raises:
            SimulationError: a mask does not have a number for each action.
        """
        for name, value in observations.items():
            if name not in self.sizes:
                continue
            shape = (*lead, self.sizes[name])
            info: Any = infos.get(name)
            given = info[ACTION_MASK_KEY] if has_mask(info) else np.ones(shape)
            mask = given if isinstance(given, np.ndarray) else np.asarray(given)
            if mask.shape != shape:
                raise SimulationError(
                    f"the action mask in the infos of agent {name!r} has the shape "
                    f"{list(mask.shape)}, but the agent has {shape[-1]} actions"
                )
            mask = mask > 0
            if lead and has_mask(info) and (there := info.get(f"_{ACTION_MASK_KEY}")) is not None:
                mask |= ~np.asarray(there, bool)[..., None]
            parts = value if type(value) is dict else {"observation": value}
            observations[name] = {**parts, ACTION_MASK_KEY: mask.view(np.int8)}

    def refuse(self, name: str) -> None:
        """Refuses a mask in the infos of an agent whose first infos had none.

        Raises:
            SimulationError: the agent is in `unread`.
        """
        if name in self.unread:
            raise SimulationError(
                f"the infos of agent {name!r} have an {ACTION_MASK_KEY!r} now, but the infos of "
                "the first reset() had none, so that the agent's masks are not read; put a mask "
                "into the infos of reset(), too (all ones where every action is allowed), or make "
                f"the observations a Dict with {ACTION_MASK_KEY!r}"
            )


def has_mask(info: Any) -> bool:
    """Whether an agent's info has an action mask."""
    if type(info) is not dict and not isinstance(info, Mapping):  # the first check is faster
        return False
    return info.get(ACTION_MASK_KEY) is not None
