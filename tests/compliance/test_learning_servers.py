"""Evaluation changes nothing in a learning server, which can be saved while it is played on."""

from __future__ import annotations

import dataclasses
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.compliance.real_servers import (
    PPO_SETTINGS,
    SEEN,
    SMALL_MODEL,
    TWO,
    MakeServer,
    make_plan,
    ppo_plan,
    wait_until,
)

from muxrl.client import MultiplexingClient
from muxrl.servers.checkpoints.state_file import read_state
from muxrl.servers.server import PolicyServer
from muxrl.servers.trainers.policies import TrainerPolicies


def flat(weights: Any) -> dict[str, bytes]:
    """Returns the bytes of every array in nested dicts, by the path of its keys."""
    found: dict[str, bytes] = {}
    for key, value in weights.items():
        if isinstance(value, dict):
            found |= {f"{key}/{name}": data for name, data in flat(value).items()}
        else:
            found[key] = np.asarray(value).tobytes()
    return found


def weights(server: PolicyServer) -> tuple[dict[str, bytes], dict[str, bytes]]:
    """Returns all weights that a server has learned, and those with which it acts."""
    assert isinstance(server.policies, TrainerPolicies)
    acting = server.policies.acting
    return flat(acting.get("networks")), flat(acting.get("weights"))


def play(client: MultiplexingClient, num_steps: int, is_training: bool) -> None:
    episode_id = client.start_episode(training_enabled=is_training)
    for _ in range(num_steps):
        actions = client.get_action(episode_id, SEEN)
        client.log_returns(episode_id, {a: float(action) for a, action in actions.items()})
    client.end_episode(episode_id)


@pytest.mark.parametrize("while_learning", ["wait", "serve"])
def test_evaluation_changes_no_weight_and_counts_no_step(
    make_server: MakeServer, while_learning: str
) -> None:
    server = make_server(ppo_plan(while_learning=while_learning))
    with MultiplexingClient([server.address]) as client:
        before, version = weights(server), server.status().weights_seq_no
        for _ in range(4):
            play(client, 30, is_training=False)  # enough for three batches, if it were training
        assert weights(server) == before
        status = server.status()
        assert (status.num_env_steps, status.num_agent_steps, status.num_episodes) == (0, 0, 0)
        assert (status.iteration, status.weights_seq_no) == (0, version)
        assert not status.is_waiting_for_learner

        play(client, 45, is_training=True)
        wait_until(lambda: server.status().iteration >= 1)
        status = server.status()
        assert (status.iteration, status.num_env_steps, status.num_episodes) == (1, 45, 1)
        assert server.status().problem == ""
        learned = weights(server)
        assert all(new != old for new, old in zip(learned, before, strict=True))

        play(client, 30, is_training=False)
        assert weights(server) == learned
        assert server.status().num_env_steps == 45
        assert client.num_mismatches == 0


_DQN_SETTINGS = {
    "num_steps_sampled_before_learning_starts": 8,
    "min_sample_timesteps_per_iteration": 16,
    "train_batch_size_per_learner": 4,
}


@pytest.mark.parametrize(
    ("algorithm", "while_learning"), [("PPO", "wait"), ("PPO", "serve"), ("DQN", "serve")]
)
def test_a_server_saves_while_it_is_played_on_and_goes_on_from_any_of_it(
    make_server: MakeServer, tmp_path: Path, algorithm: str, while_learning: str
) -> None:
    settings = PPO_SETTINGS if algorithm == "PPO" else _DQN_SETTINGS
    plan = make_plan(
        algorithm,
        TWO,
        settings=settings,
        model=SMALL_MODEL,
        while_learning=while_learning,
    )
    server = make_server(plan)
    is_enough = threading.Event()

    def play_on() -> None:
        with MultiplexingClient([server.address]) as client:
            while not is_enough.is_set():
                play(client, 25, is_training=True)

    player = threading.Thread(target=play_on)
    player.start()
    saved = []
    try:
        for i in range(4):
            before = server.status().num_env_steps
            while server.status().num_env_steps < before + 50:
                assert player.is_alive()
                time.sleep(0.01)
            saved.append(server.policies.save(tmp_path / str(i)))
    finally:
        is_enough.set()
        player.join()
    assert server.status().problem == ""
    for path in saved:
        assert path is not None
        state = read_state(path / "muxrl_state.npz")
        chunks = [c for batch in (*state["batches"], state["pending"]) for c in batch["chunks"]]
        waiting = sum(len(chunk["weights_seq_nos"]) for chunk in chunks)
        # Between the recorded steps and the learned and waiting ones there is at most one open
        # episode, which a batch has cut.
        left = state["counts"]["num_env_steps"] - state["trainer"]["env_steps"] - waiting
        assert 0 <= left <= 25

    again = make_server(dataclasses.replace(plan, resume_from=str(saved[-1])))
    status = again.status()
    assert status.num_env_steps == state["counts"]["num_env_steps"]
    version = status.weights_seq_no
    assert version > 0
    with MultiplexingClient([again.address]) as client:
        for _ in range(4):
            play(client, 25, is_training=True)
    again.finish_training()
    assert again.status().problem == ""
    assert again.status().weights_seq_no > version
    assert np.isfinite(again.status().episode_return_mean or np.nan)
