"""The zero-cost simulation with one fault, to test how clients and servers handle it.

All goes well until `at_step` of episode `in_episode` (both counted from 0). Then the fault happens
once, or with `is_repeated` in every later episode, too:

    raise          step() raises InjectedFault
    hang           step() sleeps for `hang_s`
    exit           the process ends at once with exit code 3, without cleaning up
    wrong_shape    one agent's observation has one number too many
    nan            one agent's observation holds a NaN
    wrong_dtype    one agent's observation is of int64
    unknown_agent  an agent that was never announced is observed
"""

from __future__ import annotations

import os
import time
from typing import Any, Literal, get_args

import numpy as np

from muxrl.experiments.simulations.parallel_game import Reset, Step
from muxrl.experiments.simulations.zero_cost import ZeroCost

Fault = Literal["raise", "hang", "exit", "wrong_shape", "nan", "wrong_dtype", "unknown_agent"]
EXIT_CODE = 3
UNKNOWN_AGENT = "agent_nobody_announced"


class InjectedFault(RuntimeError):
    """Raised by the fault 'raise'."""


class Faulty(ZeroCost):
    """`ZeroCost` with one fault.

    Args:
        fault: what goes wrong; see the module.
        at_step: the index of the env step with the fault.
        in_episode: the index of the episode with the fault.
        is_repeated: whether the fault also happens in later episodes.
        agent_id: the agent with the wrong observation.
        hang_s: seconds that 'hang' sleeps.
        zero_cost: further arguments of `ZeroCost`.
    """

    def __init__(
        self,
        fault: Fault,
        at_step: int = 10,
        in_episode: int = 0,
        is_repeated: bool = False,
        agent_id: str = "agent_0",
        hang_s: float = 3600.0,
        **zero_cost: Any,
    ) -> None:
        super().__init__(**zero_cost)
        if fault not in get_args(Fault):
            raise ValueError(f"there is no fault {fault!r}; known are {list(get_args(Fault))}")
        if agent_id not in self.possible_agents:
            raise ValueError(f"there is no agent {agent_id!r}; they are {self.possible_agents}")
        self._fault = fault
        self._at_step = at_step
        self._in_episode = in_episode
        self._is_repeated = is_repeated
        self._agent_id = agent_id
        self._hang_s = hang_s
        self._episode = -1
        self._has_acted = True

    def reset(self, seed: int | None = None, options: dict[str, Any] | None = None) -> Reset:
        """Starts the next episode."""
        if self._has_acted:  # an episode without a step is not counted
            self._episode += 1
        self._has_acted = False
        return super().reset(seed, options)

    def step(self, actions: dict[str, Any]) -> Step:
        """Steps as `ZeroCost` does, or fails."""
        self._has_acted = True
        is_due = self._t == self._at_step and (
            self._episode == self._in_episode
            or (self._is_repeated and self._episode > self._in_episode)
        )
        if not is_due:
            return super().step(actions)
        if self._fault == "raise":
            raise InjectedFault(f"injected at step {self._t} of episode {self._episode}")
        if self._fault == "hang":
            time.sleep(self._hang_s)
        if self._fault == "exit":
            os._exit(EXIT_CODE)
        result = super().step(actions)
        observations = result[0]
        right = observations[self._agent_id]
        if self._fault == "wrong_shape":
            observations[self._agent_id] = np.append(right, np.float32(0))
        elif self._fault == "nan":
            observations[self._agent_id] = np.where(np.arange(right.size) == 1, np.nan, right)
        elif self._fault == "wrong_dtype":
            observations[self._agent_id] = right.astype(np.int64)
        elif self._fault == "unknown_agent":
            observations[UNKNOWN_AGENT] = right
        return result
