"""A client that plays correctly while others do not, and servers whose answers it can predict."""

from __future__ import annotations

import threading
import time
from typing import Any

import numpy as np

from muxrl.client import MultiplexingClient
from muxrl.protocol.values import sample
from muxrl.servers.config import ServerPlan
from muxrl.servers.trainers.interface import Rows


class Echo:
    """A trainer with predictable actions: a function of the observation, or the first allowed."""

    learns_from = "newest"
    batch_env_steps = 40

    def __init__(self, policy: Any) -> None:
        pass

    def act(self, rows: Rows) -> Any:
        if rows.masks is not None:
            return rows.masks.argmax(axis=1)
        return (8 * rows.observations.reshape(len(rows), -1).sum(axis=1)).astype(int) % 3

    def learn(self, trajectories: Any) -> dict[str, float]:
        return {"loss": float(sum(map(len, trajectories)))}

    def state(self) -> dict[str, Any]:
        return {}

    def load(self, state: dict[str, Any]) -> None:
        pass


def echoed(observation: Any) -> int:
    """Returns the action that `Echo` chooses for an observation."""
    if isinstance(observation, dict):
        return int(observation["action_mask"].argmax())
    return int(8 * observation.astype(float).sum()) % 3


class RightClient:
    """Plays correctly beside faulty clients, in one episode or six at a time, and notes what is
    wrong.

    Args:
        address: of the server.
        plan: of the server.
        is_echo: whether the server's trainer is `Echo`, so that its actions are compared.
    """

    def __init__(self, address: str, plan: ServerPlan, *, is_echo: bool) -> None:
        self.wrong: list[str] = []
        self.num_steps = 0
        self._address, self._plan, self._is_echo = address, plan, is_echo
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._run)

    def __enter__(self) -> RightClient:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._is_over.set()
        self._thread.join()

    def _run(self) -> None:
        rng = np.random.default_rng(7)
        try:
            with MultiplexingClient([self._address], token=self._plan.token) as client:
                while not self._is_over.is_set():
                    self._play(client, rng)
                self.wrong += ["counts differ"] * client.num_mismatches
        except Exception as error:
            self.wrong.append(repr(error))

    def _play(self, client: MultiplexingClient, rng: np.random.Generator) -> None:
        ids = [client.start_episode(None, bool(rng.integers(2))) for _ in range(rng.choice([1, 6]))]
        for _ in range(rng.integers(1, 20)):
            seen = {one: self._seen(rng) for one in ids}
            state = {one: np.zeros(self._plan.state_size or 0, np.float32) for one in ids}
            actions = client.get_action(ids, seen, state=state)
            for one in ids:
                expected = {agent: echoed(value) for agent, value in seen[one].items()}
                if self._is_echo and actions[one] != expected:
                    self.wrong.append(f"{actions[one]} is not {expected}")
                client.log_returns(one, dict.fromkeys(seen[one], 0.5))
            self.num_steps += len(ids)
            time.sleep(0.002)
        for one in ids:
            client.end_episode(one)

    def _seen(self, rng: np.random.Generator) -> dict[str, Any]:
        """Returns what the agents observe, in eighths, which floats add up exactly."""
        seen = {a: sample(p.observation_space, rng) for a, p in self._plan.agents.items()}
        for value in seen.values():
            if isinstance(value, dict):
                value["action_mask"][rng.integers(len(value["action_mask"]))] = 1
            elif value.dtype.kind == "f":
                value[...] = rng.integers(9, size=value.shape) / 8
        return seen


def learned_return(address: str, token: str, num_episodes: int = 80) -> float:
    """Trains a server in which action 1 pays 1; returns the mean return of the last ten episodes.

    It is between 0 and 40, and about 13 for random actions: an episode has 20 steps and two agents,
    and one of three actions pays.
    """
    returns = []
    with MultiplexingClient([address], token=token) as client:
        for number in range(num_episodes):
            episode_id = client.start_episode(f"learn-{number}")
            total = 0.0
            for _ in range(20):
                actions = client.get_action(episode_id, {"a": [0.0, 1.0], "b": [1.0, 0.0]})
                rewards = {agent: float(action == 1) for agent, action in actions.items()}
                client.log_returns(episode_id, rewards)
                total += sum(rewards.values())
            client.end_episode(episode_id)
            returns.append(total)
    return sum(returns[-10:]) / 10
