"""A team member's observation in plain RLlib: its own part, its action mask, the global state."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from gymnasium import spaces

from muxrl.servers.teams import ACTION_MASK, STATE, TeamProblem


class MemberReader:
    """Splits a member's observation.

    Attributes:
        space: of the member's own observation, flat.
        has_mask: whether there is an ``action_mask``.
        state_space: of the global ``state``; None if there is none.

    Args:
        space: of the whole observation.
    """

    def __init__(self, space: spaces.Space) -> None:
        self.has_mask = False
        self.state_space: spaces.Space | None = None
        self._keys: list[str] | None = None
        if isinstance(space, spaces.Dict):
            own = [key for key in space.spaces if key not in (ACTION_MASK, STATE)]
            self.has_mask = ACTION_MASK in space.spaces
            # Without any other key, the "state" is the agent's own observation.
            if own:
                self.state_space = space.spaces.get(STATE)
            elif STATE in space.spaces:
                own = [STATE]
            self._keys = own
            space = (
                space.spaces[own[0]]
                if len(own) == 1
                else spaces.Dict({key: space.spaces[key] for key in own})
            )
        self._space = space
        self.space: spaces.Space = _flat_space(space)

    def read(self, value: Any) -> Any:
        """Returns the member's own observation, flat."""
        if self._keys is not None:
            value = (
                value[self._keys[0]]
                if len(self._keys) == 1
                else {key: value[key] for key in self._keys}
            )
        return value if self.space is self._space else spaces.flatten(self._space, value)

    def read_state(self, value: Any) -> np.ndarray:
        """Returns the global state, flat, float32."""
        assert self.state_space is not None
        return np.asarray(spaces.flatten(self.state_space, value[STATE]), np.float32)


def _flat_space(space: spaces.Space) -> spaces.Space:
    if isinstance(space, spaces.Box) and len(space.shape) == 1:
        return space
    return spaces.flatten_space(space) if space.is_np_flattenable else space


def observed_state_size(team_id: str, readers: Mapping[str, MemberReader]) -> int | None:
    """Returns the length of the state that all members of a team observe, None for none.

    Raises:
        TeamProblem: some observe another length, or none.
    """
    sizes = {
        member: None if reader.state_space is None else int(spaces.flatdim(reader.state_space))
        for member, reader in readers.items()
    }
    first = next(iter(sizes))
    for member, size in sizes.items():
        if size != sizes[first]:
            raise TeamProblem(
                f"group {team_id!r} has one state, but agent {first!r} observes {sizes[first]} "
                f"numbers of it and agent {member!r} {size}; give all members the same 'state', "
                "or none"
            )
    return sizes[first]
