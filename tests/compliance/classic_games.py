"""Makes PettingZoo's board and card games as the tests play them.

Processes of the tests import this module, so it does not import torch.
"""

from __future__ import annotations

import importlib
from typing import Any

import numpy as np
from gymnasium import spaces
from pettingzoo import AECEnv
from pettingzoo.utils import BaseWrapper

CIRCLES = {"go_v5"}
"""Games without a superko rule: two players may repeat a few positions for ever. Evaluations of
these games sample actions, and truncate episodes."""
MAX_MOVES = 300


class Flat(BaseWrapper):
    """The game with each observation flattened to one row of numbers."""

    def observation_space(self, agent: str) -> spaces.Space:
        parts = self.env.observation_space(agent)
        board = spaces.Box(0.0, 1.0, (int(np.prod(parts["observation"].shape)),), np.float32)
        return spaces.Dict({"observation": board, "action_mask": parts["action_mask"]})

    def observe(self, agent: str) -> Any:
        seen = self.env.observe(agent)
        return {**seen, "observation": seen["observation"].astype(np.float32).reshape(-1)}


class Limited(BaseWrapper):
    """The game, truncated after `MAX_MOVES` moves."""

    def reset(self, seed: int | None = None, options: dict[str, Any] | None = None) -> None:
        super().reset(seed, options)
        self._num_moves = 0

    def step(self, action: Any) -> None:
        super().step(action)
        self._num_moves += 1
        if self._num_moves >= MAX_MOVES and not any(self.unwrapped.terminations.values()):
            for agent in self.agents:
                self.unwrapped.truncations[agent] = True


def make_game(game: str, is_flat: bool, **kwargs: Any) -> AECEnv:
    env = importlib.import_module(f"pettingzoo.classic.{game}").env(**kwargs)
    if game in CIRCLES:
        env = Limited(env)
    return Flat(env) if is_flat else env
