"""Trainers that take long to save: tests can kill processes while a checkpoint is written."""

from __future__ import annotations

import time
from typing import Any

from muxrl.servers.algorithms import a2c, dqn, ppo

SAVE_S = 0.4


class SlowToSave:
    def networks(self) -> dict[str, Any]:
        """Sleeps first; only those who write or read a checkpoint call this."""
        time.sleep(SAVE_S)
        networks: dict[str, Any] = super().networks()  # type: ignore[misc]
        return networks


class PPO(SlowToSave, ppo.PPO): ...


class A2C(SlowToSave, a2c.A2C): ...


class DQN(SlowToSave, dqn.DQN): ...
