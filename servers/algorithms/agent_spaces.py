"""The spaces in which an algorithm can learn for an agent alone."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np
from gymnasium import spaces

from muxrl.servers.algorithms.settings import AlgorithmProblem


class SpaceCheck(Protocol):
    """Checks the spaces of an agent, or of a team."""

    def __call__(
        self,
        algorithm: str,
        policy_id: str,
        observation_space: spaces.Space,
        action_space: spaces.Space,
        agent_id: str | None,
    ) -> None:
        """See `AlgorithmEntry.check_spaces`; `algorithm` is named in the message."""


@dataclass(frozen=True)
class AgentSpaces:
    """Checks one agent's spaces, as its network sees them.

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
        self,
        algorithm: str,
        policy_id: str,
        observation_space: spaces.Space,
        action_space: spaces.Space,
        agent_id: str | None,
    ) -> None:
        who = agent_text(policy_id, agent_id)
        start = f"policy {policy_id!r}: {algorithm} cannot"
        if not isinstance(observation_space, spaces.Box) or len(observation_space.shape) not in (
            1,
            3,
        ):
            raise AlgorithmProblem(
                f"{start} read the observation space {observation_space} of agent {who}: it takes "
                "a Box of one dimension, or of three for an image; flatten the observation, or "
                "one-hot it, first"
            )
        if not self.reads_images and len(observation_space.shape) != 1:
            raise AlgorithmProblem(
                f"{start} read the observation space {observation_space} of agent {who}: its "
                "critic reads observations as one flat array, so it takes a Box of one dimension; "
                "flatten the observation first"
            )
        if not isinstance(action_space, self.actions) or (
            isinstance(action_space, spaces.Box) and len(action_space.shape) != 1
        ):
            raise AlgorithmProblem(
                f"{start} do the action space {action_space} of agent {who}: it takes "
                f"{self._actions_text()}" + (f"; use {self.instead}" if self.instead else "")
            )
        if isinstance(action_space, spaces.Box):
            self._check_box_actions(start, action_space, who)

    def _check_box_actions(self, start: str, box: spaces.Box, who: str) -> None:
        """Policies act in -1..1, which is scaled to the bounds; without bounds it is the action."""
        if not np.issubdtype(box.dtype, np.floating):
            raise AlgorithmProblem(
                f"{start} do the action space {box} of agent {who}: a Box of {box.dtype} holds no "
                "real numbers; make it Discrete or MultiDiscrete"
            )
        is_unbounded = not (box.bounded_below.any() or box.bounded_above.any())
        if box.is_bounded("both") or (is_unbounded and self.can_act_unbounded):
            return
        raise AlgorithmProblem(
            f"{start} do the action space {box} of agent {who}: "
            + ("it has no bounds" if is_unbounded else "it has bounds on some sides only")
            + ", and actions are scaled to them from -1..1; give every action a lowest and a "
            "highest value"
        )

    def _actions_text(self) -> str:
        names = [
            "a Box of one dimension" if cls is spaces.Box else cls.__name__ for cls in self.actions
        ]
        return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} or {names[-1]}"


def agent_text(policy_id: str, agent_id: str | None) -> str:
    """Returns what follows "agent" in a message: its id if that is known."""
    return f"of policy {policy_id!r}" if agent_id is None else repr(agent_id)
