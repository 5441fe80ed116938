"""An environment of two agents, of which a test changes what it is about."""

from __future__ import annotations

from typing import Any

import numpy as np
from gymnasium.spaces import Box, Discrete, Space

BOX = Box(-99, 99, (3,), np.float32)


class TwoAgents:
    """A ParallelEnv of four steps; agents observe which one it is."""

    possible_agents: Any = ("a", "b")
    metadata: dict[str, Any] = {}

    def __init__(self) -> None:
        self.agents: list[str] = []

    def observation_space(self, agent: str) -> Space[Any]:
        return BOX

    def action_space(self, agent: str) -> Space[Any]:
        return Discrete(3)

    def reset(self, seed: int | None = None, options: Any = None) -> Any:
        self.t, self.agents = 0, list(self.possible_agents)
        return self.seen(), {}

    def step(self, actions: Any) -> Any:
        self.t += 1
        acted, is_over = list(self.possible_agents), self.is_over()
        self.agents = [] if is_over else acted
        ends = dict.fromkeys(acted, False), dict.fromkeys(acted, is_over)
        return self.seen(), self.rewards(), *ends, self.infos()

    def seen(self) -> dict[str, Any]:
        return {agent: np.full(3, self.t, np.float32) for agent in self.possible_agents}

    def rewards(self) -> dict[str, Any]:
        return dict.fromkeys(self.possible_agents, 1.0)

    def infos(self) -> dict[str, Any]:
        return {}

    def is_over(self) -> bool:
        return bool(self.t == 4)

    def close(self) -> None:
        """Nothing to free."""


def gives(step: Any = None, reset: Any = None, **methods: Any) -> type[TwoAgents]:
    """Returns an environment whose step or reset gives what is made of the usual values.

    Or whose other methods are these.
    """
    if step is not None:
        methods["step"] = lambda self, actions: step(*TwoAgents.step(self, actions))
    if reset is not None:
        methods["reset"] = lambda self, seed=None, options=None: reset(*TwoAgents.reset(self))
    return type("Gives", (TwoAgents,), methods)


def raises(error: BaseException) -> Any:
    def raised(*values: Any, **more: Any) -> Any:
        raise error

    return raised
