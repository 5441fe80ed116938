"""Episodes in RLlib's form."""

from __future__ import annotations

import numpy as np
from gymnasium.spaces import Box, Discrete
from ray.rllib.connectors.connector_v2 import ConnectorV2

from muxrl.servers.episodes.trajectories import Chunk, Trajectory
from muxrl.servers.rllib.episodes import episode_of

AGENTS = [f"agent_{i}" for i in range(20)]


def test_learners_read_agents_in_the_order_in_which_they_were_recorded() -> None:
    """In that of a set, which a process's hash seed decides, runs could not be repeated."""
    trajectories = [
        Trajectory(
            id=agent,
            episode_id="e",
            seat_id=agent,
            policy_id="p",
            observations=np.zeros((2, 3), np.float32),
            actions=np.zeros(1, np.int64),
            rewards=np.zeros(1),
            outputs={},
        )
        for agent in AGENTS
    ]
    chunk = Chunk("e", 0, trajectories, [0])
    spaces = dict.fromkeys(AGENTS, (Box(-1, 1, (3,)), Discrete(2)))
    episode = episode_of(chunk, spaces, lambda *_, **__: "p")
    read = ConnectorV2.single_agent_episode_iterator([episode], agents_that_stepped_only=False)
    assert [single.agent_id for single in read] == AGENTS
    assert episode.agent_ids == set(AGENTS)
