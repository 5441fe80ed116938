"""Environments of two agents, of which each test changes the part that it is about."""

from __future__ import annotations

from typing import Any

import numpy as np
from gymnasium.spaces import Box, Discrete, Space

BOX = Box(-99, 99, (3,), np.float32)


class TwoAgents:
    """A ParallelEnv of four steps; each agent observes the number of the step."""

    possible_agents: Any = ("a", "b")
    metadata: dict[str, Any] = {}
    render_mode = None
    sees: Any = BOX
    does: Any = Discrete(3)

    def __init__(self) -> None:
        self.agents: list[str] = []

    def observation_space(self, agent: str) -> Space[Any]:
        return self.sees

    def action_space(self, agent: str) -> Space[Any]:
        return self.does

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
    """Returns an environment class with these changes.

    Args:
        step: gets the five usual values of a step; `step()` returns what it returns.
        reset: gets the two usual values of a reset; `reset()` returns what it returns.
        **methods: replace methods and attributes of `TwoAgents`.
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


class Counting:
    """A batch of copies whose two agents observe the number of the step.

    Args:
        *lengths: of each copy's episodes, in steps.
        mode: how copies begin again, as Gymnasium's `autoreset_mode`.
    """

    possible_agents = ("a", "b")
    observation_spaces = dict.fromkeys("ab", Box(-99, 99, (1,), np.float32))
    action_spaces = dict.fromkeys("ab", Discrete(9))
    state_space = Box(-99, 99, (1,), np.float32)

    def __init__(self, *lengths: int, mode: str = "Disabled") -> None:
        self.num_envs, self.lengths = len(lengths), np.array(lengths)
        self.metadata = {"autoreset_mode": mode}
        self.seeds: list[int | None] = []
        self.t = np.zeros(self.num_envs, np.int64)

    def reset(self, seed: int | None = None, options: Any = None) -> Any:
        self.seeds.append(seed)
        self.t = np.where((options or {}).get("reset_mask", True), 0, self.t)
        return self.seen(), {}

    def step(self, actions: Any) -> Any:
        has_waited = (self.t == self.lengths) & (self.metadata["autoreset_mode"] == "NextStep")
        self.t = np.where(has_waited, 0, self.t + 1)
        rewards = {"a": np.full(self.num_envs, 0.5), "b": np.full(self.num_envs, 1.5)}
        return self.seen(), rewards, {"a": self.t == self.lengths, "b": self.t == self.lengths}, \
            {}, {}  # fmt: skip

    def seen(self) -> dict[str, Any]:
        return dict.fromkeys("ab", self.state())

    def state(self) -> Any:
        return self.t[:, None].astype(np.float32)
