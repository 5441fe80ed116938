"""The replay of steps: every stored step is drawn, and each as it was played."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import gymnasium
import numpy as np
import pytest

from muxrl.servers.agents.seats import SeatAction
from muxrl.servers.algorithms.off_policy.step_replay import (
    EveryStepEpisodeReplayBuffer,
    EveryStepPrioritizedEpisodeReplayBuffer,
)
from muxrl.servers.episodes.recorder import Recorder
from muxrl.servers.episodes.trajectories import Chunk
from muxrl.servers.rllib.episodes import by_agent, episode_of

GAMMA = 0.5


@dataclass
class Seat:
    seat_id: str
    policy_id: str = "shared"
    observation_space: gymnasium.Space = field(
        default_factory=lambda: gymnasium.spaces.Box(-1e9, 1e9, (2,), np.float32)
    )
    action_space: gymnasium.Space = field(default_factory=lambda: gymnasium.spaces.Discrete(99))


def add(buffer: Any, chunk: Chunk | None) -> None:
    assert chunk is not None
    seats: dict[str, Any] = {one.seat_id: Seat(one.seat_id) for one in chunk.trajectories}
    episode = episode_of(chunk, seats, lambda *_, **__: "shared")
    buffer.add(by_agent(episode.to_numpy()))


def play(buffer: Any, episode_id: str, agents: str, length: int = 10, every: int = 3) -> None:
    """Adds an episode in chunks. Observations are (t, agent), actions are t, rewards t + 1; the
    last agent acts in every second step only."""
    seats: dict[str, Any] = {agent: Seat(agent) for agent in agents}
    recorder = Recorder(episode_id, seats, lookback=0)

    def acting(t: int) -> list[str]:
        return [a for a in agents if a != agents[-1] or t % 2 == 0 or t == length]

    def seen(t: int) -> dict[str, Any]:
        return {a: np.array([t, agents.index(a)], np.float32) for a in acting(t)}

    recorder.begin(seen(0))
    for t in range(length):
        is_last = t == length - 1
        recorder.add(
            acted=dict.fromkeys(acting(t), SeatAction(t)),
            observations=seen(t + 1),
            rewards={a: float(t + 1) for a in agents},
            terminated=set(agents) if is_last else set(),
            truncated=set(),
            is_last=is_last,
            weights_seq_no=0,
        )
        if is_last or t % every == 0:
            add(buffer, recorder.finish() if is_last else recorder.cut())


def make(kind: str, capacity: int) -> Any:
    if kind == "uniform":
        return EveryStepEpisodeReplayBuffer(capacity=capacity)
    return EveryStepPrioritizedEpisodeReplayBuffer(capacity=capacity, alpha=0.6)


@pytest.mark.parametrize("kind", ["uniform", "prioritized"])
@pytest.mark.parametrize("n_step", [1, 2, 3])
def test_every_step_drawn_is_one_that_was_played(kind: str, n_step: int) -> None:
    buffer = make(kind, 10_000)
    for i in range(5):
        play(buffer, f"e{i}", "ab")
    drawn = buffer.sample(num_items=200, n_step=n_step, gamma=GAMMA, beta=0.4, sample_episodes=True)
    assert len(drawn) == 200
    assert {episode.agent_id for episode in drawn} == {"a", "b"}
    ends = 0
    for episode in drawn:
        (first, agent), (last, agent_again) = episode.get_observations()
        stride = 1 if episode.agent_id == "a" else 2
        assert agent == agent_again == "ab".index(episode.agent_id)
        assert last == min(first + n_step * stride, 10)
        assert episode.get_actions()[0] == first
        steps = np.arange(first, last, stride)
        # An agent that does not act in a step is paid for it all the same.
        rewards = [sum(range(int(t) + 1, min(int(t) + stride, 10) + 1)) for t in steps]
        expected = sum(GAMMA**k * reward for k, reward in enumerate(rewards))
        assert episode.get_rewards()[0] == pytest.approx(expected)
        assert episode.is_terminated == (last == 10)
        ends += episode.is_terminated
    assert ends > 0


def draw(buffer: Any) -> list[Any]:
    steps = buffer.sample(num_items=40, n_step=2, gamma=GAMMA, beta=0.4, sample_episodes=True)
    return [
        (s.agent_id, s.get_observations(0).tolist(), s.get_rewards()[0], s.is_terminated,
         s.get_extra_model_outputs("weights", 0))
        for s in steps
    ]  # fmt: skip


@pytest.mark.parametrize("kind", ["uniform", "prioritized"])
@pytest.mark.parametrize("num_episodes", [0, 2, 9])
def test_a_restored_buffer_draws_and_drops_as_the_first_would(kind: str, num_episodes: int) -> None:
    first, second = make(kind, 64), make(kind, 64)
    for i in range(num_episodes):
        play(first, f"e{i}", "ab")
        if kind == "prioritized":
            draw(first)
            first.update_priorities(np.linspace(0.1, 2.0, 40), "shared")
    seat = Seat("a")
    second.restore(
        first.get_state(),
        {"shared": (seat.observation_space, seat.action_space)},
        lambda *args, **kwargs: "shared",
    )
    assert second.num_bytes == first.num_bytes
    for i in range(num_episodes, num_episodes + 8):
        for buffer in (first, second):
            play(buffer, f"e{i}", "ab")
        drawn = draw(first)
        assert draw(second) == drawn
        if kind == "prioritized":
            for buffer in (first, second):
                buffer.update_priorities(np.linspace(0.1, 2.0, 40), "shared")
        assert second.get_num_timesteps() == first.get_num_timesteps()


def test_priorities_do_not_go_on_in_a_buffer_of_another_size() -> None:
    first = make("prioritized", 64)
    play(first, "e", "ab")
    with pytest.raises(ValueError, match=r"priorities of 64 steps were kept.* has 128"):
        make("prioritized", 128).restore(first.get_state(), {}, lambda *args, **kwargs: "shared")


@pytest.mark.parametrize("kind", ["uniform", "prioritized"])
def test_many_agents_of_one_policy_fill_the_buffer_to_its_capacity(kind: str) -> None:
    # RLlib's trees have room for twice the capacity, which it counts in env steps.
    buffer = make(kind, 64)
    for i in range(30):
        play(buffer, f"e{i}", "abcdef")
        assert buffer.get_num_timesteps() <= 64
    drawn = buffer.sample(num_items=50, n_step=1, gamma=GAMMA, beta=0.4, sample_episodes=True)
    assert {episode.module_id for episode in drawn} == {"shared"}


@pytest.mark.parametrize("kind", ["uniform", "prioritized"])
def test_the_end_of_an_episode_whose_beginning_has_left_the_buffer(kind: str) -> None:
    buffer = make(kind, 40)
    seats: dict[str, Any] = {"a": Seat("a")}
    slow = Recorder("slow", seats, lookback=0)
    slow.begin({"a": np.zeros(2, np.float32)})
    for t in range(60):
        slow.add(
            acted={"a": SeatAction(t)},
            observations={"a": np.array([t + 1, 0], np.float32)},
            rewards={"a": 1.0},
            terminated=set(),
            truncated=set(),
            is_last=False,
            weights_seq_no=0,
        )
        add(buffer, slow.cut())
        if t % 5 == 0:
            play(buffer, f"e{t}", "ab", length=4, every=2)
        drawn = buffer.sample(num_items=20, n_step=1, gamma=GAMMA, beta=0.4, sample_episodes=True)
        for episode in drawn:
            (first, _), (last, _) = episode.get_observations()
            stride = 1 if episode.agent_id == "a" else 2
            assert (last, episode.get_actions()[0]) == (first + stride, first)


@pytest.mark.parametrize("kind", ["uniform", "prioritized"])
@pytest.mark.parametrize("n_step", [1, 2, 3, 5])
def test_every_step_is_drawn_the_last_ones_with_the_steps_that_there_are(
    kind: str, n_step: int
) -> None:
    buffer = make(kind, 1_000)
    play(buffer, "e", "ab", length=4)
    drawn = buffer.sample(num_items=400, n_step=n_step, gamma=GAMMA, beta=0.4, sample_episodes=True)
    steps = {e.t_started: e for e in drawn if e.agent_id == "a"}
    assert sorted(steps) == [0, 1, 2, 3]
    for t, episode in steps.items():
        k = min(n_step, 4 - t)
        assert episode.get_extra_model_outputs("n_step", 0) == k
        assert episode.get_observations(-1)[0] == t + k
        assert episode.get_rewards()[0] == sum(GAMMA**i * (t + i + 1) for i in range(k))
        assert episode.is_terminated == (t + k == 4)


@pytest.mark.timeout(10)  # RLlib's own sampler never returns here
@pytest.mark.parametrize("kind", ["uniform", "prioritized"])
def test_episodes_shorter_than_n_steps_can_be_drawn(kind: str) -> None:
    buffer = make(kind, 100)
    for i in range(3):
        play(buffer, f"e{i}", "a", length=1)
    drawn = buffer.sample(num_items=20, n_step=5, gamma=GAMMA, beta=0.4, sample_episodes=True)
    assert {e.get_extra_model_outputs("n_step", 0) for e in drawn} == {1}
    assert all(e.is_terminated for e in drawn)


def test_a_step_of_an_open_episode_is_bootstrapped_from_the_newest_observation() -> None:
    buffer = make("uniform", 100)
    recorder = Recorder("open", {"a": Seat("a")}, lookback=0)
    recorder.begin({"a": np.zeros(2, np.float32)})
    for t in range(2):
        recorder.add(
            acted={"a": SeatAction(t)},
            observations={"a": np.array([t + 1, 0], np.float32)},
            rewards={"a": 1.0},
            terminated=set(),
            truncated=set(),
            is_last=False,
            weights_seq_no=0,
        )
    add(buffer, recorder.cut())
    for step in buffer.sample(num_items=30, n_step=5, gamma=GAMMA, sample_episodes=True):
        assert step.get_observations(-1)[0] == 2
        assert step.get_extra_model_outputs("n_step", 0) == 2 - step.t_started
        assert not step.is_terminated
        assert not step.is_truncated
