"""Real servers learn from boards, grids, images of any size, and matrices."""

from __future__ import annotations

import time
from typing import Any

import numpy as np
import pytest
from tests.compliance.real_servers import SMALL_MODEL, MakeServer, make_plan
from tests.nights import at_night

from muxrl.client import PolicyClient
from muxrl.protocol.spaces import Box, Discrete, Space
from muxrl.servers.algorithms.networks import convolutions_for

SEES: dict[str, Space] = {
    "tictactoe": Box((3, 3, 2)),
    "connect4": Box((6, 7, 2)),
    "pursuit": Box((13, 13, 5)),
    "small": Box((42, 42, 3), "uint8", 0, 255),  # a size for which RLlib has default filters
    "matrix": Box((5, 4)),
    "number": Box(()),
}
_REPLAY = {
    "num_steps_sampled_before_learning_starts": 1,
    "train_batch_size_per_learner": 4,
    "min_sample_timesteps_per_iteration": 10,
    "rollout_fragment_length": 10,
}
_NEWEST = {"train_batch_size_per_learner": 20}
CASES: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "PPO": ({**_NEWEST, "minibatch_size": 10, "num_epochs": 1}, SMALL_MODEL),
    "A2C": (_NEWEST, SMALL_MODEL | {"use_lstm": True, "lstm_cell_size": 8}),
    "IMPALA": (_NEWEST, SMALL_MODEL),
    "DQN": (_REPLAY, SMALL_MODEL),
    "SAC": (_REPLAY, SMALL_MODEL),
}


@pytest.mark.parametrize("algorithm", at_night(CASES, ["A2C"]))
def test_policies_learn_from_boards_images_and_matrices(
    make_server: MakeServer, algorithm: str
) -> None:
    settings, model = CASES[algorithm]
    agents = {agent: (space, Discrete(3)) for agent, space in SEES.items()}
    server = make_server(make_plan(algorithm, agents, settings=settings, model=model))
    rng = np.random.default_rng(0)

    def see() -> dict[str, Any]:
        return {
            agent: (rng.random(space.shape) * 2).astype(space.dtype)
            for agent, space in SEES.items()
            if isinstance(space, Box)
        }

    deadline = time.monotonic() + 60.0
    with PolicyClient(server.address) as client:
        while server.status().weights_seq_no < 1 and time.monotonic() < deadline:
            episode_id = client.start_episode()
            for _ in range(10):
                assert client.get_action(episode_id, see()).keys() == SEES.keys()
                client.log_returns(episode_id, dict.fromkeys(SEES, 1.0))
            client.end_episode(episode_id, see())
    assert server.status().weights_seq_no >= 1
    assert server.status().problem == ""


def test_images_of_sizes_that_rllib_knows_get_its_default_filters() -> None:
    known = [[16, [8, 8], 4], [32, [4, 4], 2], [256, [11, 11], 1]]
    assert convolutions_for((84, 84, 4)) == known
