"""The interface through which a client plays a simulation; every adapter implements it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from muxrl.protocol.spaces import Space

COMMON = "__common__"
"""RLlib's key in infos for what belongs to no single agent."""


class SimulationError(Exception):
    """A simulation could not be made or broke its own rules; the message says which and why.

    Exceptions from the environment's own `step` or `reset` are not wrapped: their author needs the
    traceback.
    """


class StepResult(NamedTuple):
    """The result of one step, in dicts by agent id.

    An agent is done once in an episode, in `terminations` or in `truncations`, never in both. If an
    environment sets both, the agent is terminated, since there is nothing to bootstrap from. In a
    turn-based game an agent can be done without ever having acted.
    """

    observations: dict[str, Any]
    """By agent that acts next: its observation; other agents are left out."""
    rewards: dict[str, float]
    """By agent that got a reward now, also agents that are done; each reward is given once."""
    terminations: dict[str, bool]
    """Only True entries."""
    truncations: dict[str, bool]
    """Only True entries."""
    final_observations: dict[str, Any]
    """By agent that is done in this step: its final observation, if the environment gives one."""
    infos: dict[str, dict[str, Any]]
    """By agent id or `COMMON`: the environment's info."""
    is_over: bool
    """Whether the episode is over: no agent acts any more."""
    earlier_infos: tuple[dict[str, dict[str, Any]], ...] = ()
    """If this result joins several steps of the environment, which all count as env steps: the
    infos of the steps before the last."""


class Simulation(Protocol):
    """A multi-agent environment whose agents are strings and whose spaces are plain data.

    Arrays in observations are copies: an environment that writes every step into one buffer does
    not change earlier observations.
    """

    possible_agents: tuple[str, ...]
    observation_spaces: dict[str, Space]
    action_spaces: dict[str, Space]
    state_size: int | None
    """Length of the flat float32 global state, None if the environment has none."""

    def reset(
        self, seed: int | None = None, options: Mapping[str, float] | None = None
    ) -> tuple[dict[str, Any], dict[str, dict[str, Any]]]:
        """Starts an episode; returns the observations of the agents that act first, and infos.

        Args:
            seed: None: the environment chooses.
            options: parameters of the episode; see `muxrl.client.episode_parameters`.

        Raises:
            SimulationError: there are options, and the environment takes none.
        """

    def step(self, actions: dict[str, Any]) -> StepResult:
        """Makes a step with one action of every agent that was observed last, and of no other.

        Raises:
            SimulationError: the actions are of other agents, or the environment breaks its API.
        """

    def state(self) -> NDArray[np.float32] | None:
        """Returns the global state, float32 [state_size], or None if there is none."""

    def close(self) -> None:
        """Closes the environment; a second call does nothing."""
