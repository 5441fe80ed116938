"""Checkpoints of servers that are being played on, over the network."""

from __future__ import annotations

import dataclasses
import threading
import time
from pathlib import Path

import numpy as np
import pytest
from tests.compliance.real_servers import PPO_SETTINGS, SMALL_MODEL, TWO, MakeServer, make_plan
from tests.compliance.test_learning_servers import play

from muxrl.client import MultiplexingClient
from muxrl.servers.checkpoints.state_file import read_state

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
        # What was learned, what waits for it, and at most one open episode, cut at a batch.
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
