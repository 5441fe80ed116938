"""Checks in which spaces an algorithm can learn."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import numpy as np

from muxrl.protocol.spaces import (
    MAX_CHOICES,
    Box,
    Discrete,
    MultiBinary,
    MultiDiscrete,
    Space,
    parts_of,
    typed_bounds,
)
from muxrl.servers.agents.action_forms import MAX_COMBINATIONS

SpaceProblem = tuple[Literal["observation", "action"], str]
"""Which of the two spaces an algorithm cannot learn in, and the reason."""

SpaceCheck = Callable[[Box, Space], SpaceProblem | None]
"""Takes an observation space, as a network reads it, and an action space; returns what is wrong."""

_OF_PARTS = (
    "; make integers one MultiDiscrete, or numbers one Box; of both, make all integers, with 5 to "
    "11 values a number, or all numbers, and round. If the parts are of several agents, as in "
    "RLlib's with_agent_groups, have the environment name each agent by itself, and put them "
    "together in the server's 'groups'"
)


def integers_need_bounds(space: Space) -> str:
    """Returns how an action's integers can become choices, as the end of a refusal; "": not."""
    if not isinstance(space, Box) or np.dtype(space.dtype).kind not in "iu":
        return ""
    return "; integers with bounds are choices: give the Box its own, or the server action_bounds"


@dataclass(frozen=True)
class AgentSpaces:
    """A `SpaceCheck` of one agent's spaces.

    Attributes:
        actions: classes of the action spaces that the algorithm takes.
        can_act_unbounded: whether its actions can be outside of -1..1.
        reads_images: whether its networks read observations of three dimensions.
    """

    actions: tuple[type[Space], ...] = (Discrete, MultiDiscrete, MultiBinary, Box)
    can_act_unbounded: bool = True
    reads_images: bool = True

    def __call__(self, observation_space: Box, action_space: Space) -> SpaceProblem | None:
        if len(observation_space.shape) == 3 and not self.reads_images:
            return "observation", (
                "its critic reads observations as one flat array, so it takes a Box of one "
                "dimension; flatten the observation first"
            )
        box = action_space if isinstance(action_space, Box) else None
        if not isinstance(action_space, self.actions) or (box is not None and len(box.shape) != 1):
            if parts_of(action_space) is not None:
                more = _OF_PARTS
            elif isinstance(action_space, MultiDiscrete) and Discrete in self.actions:
                more = f", or up to {MAX_COMBINATIONS} combinations as one"
            else:
                more = integers_need_bounds(action_space)
            return "action", f"it takes {self._actions_text()}{more}"
        problem = None if box is None else self._box_problem(box)
        return None if problem is None else ("action", problem)

    def _box_problem(self, box: Box) -> str | None:
        """Returns why a Box will not do; None: it will.

        Actions in -1..1 are scaled to the bounds; without bounds they are taken as they are.
        """
        if np.dtype(box.dtype).kind != "f":
            return (
                f"integers are chosen one by one, out of at most {MAX_CHOICES} each; give the Box "
                "bounds (or the server action_bounds), or make it a Box of float32"
            )
        has_end = np.isfinite(typed_bounds(box))
        is_unbounded = not has_end.any()
        if has_end.all() or (is_unbounded and self.can_act_unbounded):
            return None
        return (
            ("it has no bounds" if is_unbounded else "it has bounds on some sides only")
            + ", and actions are scaled to them from -1..1; give every action a lowest and a "
            "highest value, or the server action_bounds: [lowest, highest]"
        )

    def _actions_text(self) -> str:
        names = ["a Box of one dimension" if cls is Box else cls.__name__ for cls in self.actions]
        return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} or {names[-1]}"
