"""The spaces in which an algorithm can learn for an agent alone."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import numpy as np
from gymnasium import spaces

SpaceProblem = tuple[Literal["observation", "action"], str]
"""Which of two spaces an algorithm cannot learn in, and the reason."""

SpaceCheck = Callable[[spaces.Space, spaces.Space], SpaceProblem | None]
"""From an observation space, as a network reads it, and an action space to what is wrong."""


@dataclass(frozen=True)
class AgentSpaces:
    """A `SpaceCheck` of one agent's spaces.

    Attributes:
        actions: the kinds of action space that the algorithm takes.
        instead: names of algorithms that take others; "": there are none.
        can_act_unbounded: whether its actions reach beyond -1..1.
        reads_images: whether a network reads observations of three dimensions.
    """

    actions: tuple[type[spaces.Space], ...] = (
        spaces.Discrete,
        spaces.MultiDiscrete,
        spaces.Box,
    )
    instead: str = ""
    can_act_unbounded: bool = True
    reads_images: bool = True

    def __call__(
        self, observation_space: spaces.Space, action_space: spaces.Space
    ) -> SpaceProblem | None:
        shape = observation_space.shape if isinstance(observation_space, spaces.Box) else ()
        if len(shape) not in (1, 3):
            return "observation", (
                "it takes a Box of one dimension, or of three for an image; flatten the "
                "observation, or one-hot it, first"
            )
        if len(shape) == 3 and not self.reads_images:
            return "observation", (
                "its critic reads observations as one flat array, so it takes a Box of one "
                "dimension; flatten the observation first"
            )
        box = action_space if isinstance(action_space, spaces.Box) else None
        if not isinstance(action_space, self.actions) or (box is not None and len(box.shape) != 1):
            instead = f"; use {self.instead}" if self.instead else ""
            return "action", f"it takes {self._actions_text()}{instead}"
        problem = None if box is None else self._box_problem(box)
        return None if problem is None else ("action", problem)

    def _box_problem(self, box: spaces.Box) -> str | None:
        """Policies act in -1..1, which is scaled to the bounds; without bounds it is the action."""
        if not np.issubdtype(box.dtype, np.floating):
            return f"a Box of {box.dtype} holds no real numbers; make it Discrete or MultiDiscrete"
        is_unbounded = not (box.bounded_below.any() or box.bounded_above.any())
        if box.is_bounded("both") or (is_unbounded and self.can_act_unbounded):
            return None
        return (
            ("it has no bounds" if is_unbounded else "it has bounds on some sides only")
            + ", and actions are scaled to them from -1..1; give every action a lowest and a "
            "highest value"
        )

    def _actions_text(self) -> str:
        names = [
            "a Box of one dimension" if cls is spaces.Box else cls.__name__ for cls in self.actions
        ]
        return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} or {names[-1]}"
