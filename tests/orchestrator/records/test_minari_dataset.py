"""A dataset of Minari holds what was played."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import minari
import numpy as np
import pytest
from gymnasium import spaces
from ray.rllib.env.multi_agent_env import MultiAgentEnv
from tests.orchestrator.commanded import Muxrl
from tests.orchestrator.records.recorded import play
from tests.orchestrator.records.test_played import Any2, a_value

from muxrl.client.adapters import adapt
from muxrl.experiments.simulations.stairs import Stairs
from muxrl.orchestrator.records.minari_dataset import write_dataset
from muxrl.orchestrator.records.played import keep_share
from muxrl.protocol.spaces import Box, DictSpace, Discrete, TupleSpace


@pytest.fixture(autouse=True)
def _here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path / "minari"))


def record(simulation: Any, folder: Path, act: Any, num: int) -> list[Path]:
    recorded = keep_share(simulation, folder, 1.0)
    for seed in range(num):
        play(recorded, seed, act)
    return sorted(folder.glob("*.parquet"))


def test_a_dataset_has_the_steps_and_ends_that_were_played(tmp_path: Path) -> None:
    simulation = adapt(Stairs(height=4))
    agent = simulation.possible_agents[0]
    files = record(simulation, tmp_path / "episodes", lambda a, t: t % 2, 3)
    assert write_dataset(files, "stairs/one-v0", agent, "stairs") == 3
    dataset = minari.load_dataset("stairs/one-v0")
    assert dataset.total_episodes == 3
    again = adapt(Stairs(height=4))
    for seed, episode in enumerate(dataset.iterate_episodes()):
        seen, _ = again.reset(seed)
        observations, rewards, is_over = [seen[agent]], [], False
        while not is_over:
            result = again.step({a: len(rewards) % 2 for a in seen})
            seen, is_over = result.observations, result.is_over
            rewards.append(result.rewards.get(agent, 0.0))
            last = result.final_observations.get(agent, observations[-1])
            observations.append(seen.get(agent, last))
        assert np.array_equal(episode.observations, observations)
        assert episode.rewards.tolist() == rewards
        assert episode.actions.tolist() == [t % 2 for t in range(len(rewards))]
        ends = episode.terminations | episode.truncations
        assert ends.tolist() == [False] * (len(rewards) - 1) + [True]


def test_a_dataset_has_nested_spaces_and_late_rewards(tmp_path: Path) -> None:
    space = DictSpace({"x": Box((2,)), "y": TupleSpace((Discrete(3), Box((1,))))})
    value = a_value(space, np.random.default_rng(0))
    simulation = Any2([space, Discrete(2)], [value, 1])
    files = record(simulation, tmp_path / "episodes", lambda a, t: 1 if a == "a" else value, 1)
    assert write_dataset(files, "any/a-v0", "a", "any") == 1
    (episode,) = minari.load_dataset("any/a-v0").iterate_episodes()
    num_steps = len(episode.rewards)
    assert episode.observations["x"].shape == (num_steps + 1, 2)
    assert episode.observations["y"][0].shape == (num_steps + 1,)
    assert np.array_equal(episode.observations["x"][0], value["x"])


class Reborn(MultiAgentEnv):
    """An environment: agent b ends at t=2, is paid once more, and is there again from t=4 on."""

    agents = possible_agents = ["a", "b"]
    observation_spaces = action_spaces = dict.fromkeys("ab", spaces.Box(0.0, 9.0, (2,)))

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        self.t = 0
        return self._seen("ab"), {}

    def _seen(self, agents: str) -> Any:
        return {a: np.full(2, self.t, np.float32) for a in agents}

    def step(self, actions: Any) -> Any:
        self.t += 1
        seen = self._seen("a" if self.t == 3 else "ab")
        ends = {"b": self.t == 2, "__all__": self.t == 6}
        return seen, {"a": 1.0, "b": float(self.t)}, ends, {"__all__": False}, {}


def test_each_life_of_an_agent_is_an_episode(tmp_path: Path) -> None:
    simulation = adapt(Reborn(), respawn="same_id")
    files = record(simulation, tmp_path / "episodes", lambda a, t: np.zeros(2, np.float32), 1)
    assert write_dataset(files, "reborn/b-v0", "b", "lives") == 2
    first, second = minari.load_dataset("reborn/b-v0").iterate_episodes()
    assert [first.observations[:, 0].tolist(), first.rewards.tolist()] == [[0, 1, 2], [1, 9]]
    assert [second.observations[:, 0].tolist(), second.rewards.tolist()] == [[4, 5, 6], [5, 6]]
    assert first.terminations.tolist() == second.terminations.tolist() == [False, True]


def test_recordings_that_make_no_dataset_are_refused(tmp_path: Path, muxrl: Muxrl) -> None:
    files = record(adapt(Stairs(height=4)), tmp_path / "episodes", lambda a, t: 1, 1)
    with pytest.raises(ValueError, match="what one agent did, and no agent is named 'walkr'"):
        write_dataset(files, "stairs/one-v0", "walkr", "")
    (tmp_path / "run").mkdir()
    muxrl("replay", tmp_path / "run", "--minari", "stairs/one-v0", code=2)
