"""The verbs of RLlib's former ``PolicyClient`` against real servers; see docs/client.md.

Rows of its table that need no server are in ``tests/client/test_rllib_verbs.py``.
"""

from __future__ import annotations

import threading
import uuid

import numpy as np
import pytest
from tests.compliance.real_servers import (
    PPO_SETTINGS,
    SEES,
    SMALL_MODEL,
    TOKEN,
    MakeServer,
    Peer,
    make_plan,
)

from muxrl.client import PolicyClient, RefusedByServer
from muxrl.protocol.messages import AbortEpisode, Actions, StartEpisode, Step
from muxrl.servers.server import PolicyServer

SEEN = {"a": np.array([0.1, 0.2], np.float32), "b": np.array([0.3, 0.4], np.float32)}


@pytest.mark.parametrize("action", [0, 1, 2])
def test_a_logged_action_takes_the_place_of_the_policys(peer: Peer, action: int) -> None:
    episode_id = f"logged-{uuid.uuid4()}"
    _, reply = peer.say(
        StartEpisode(episode_id),
        Step(episode_id, 0, SEEN, logged_actions={"a": action}, logged_log_probs={"a": -1.0}),
    )
    assert isinstance(reply, Actions)
    assert reply.actions["a"] == action
    assert reply.actions["b"] in range(3), "who has no logged action acts by the policy"
    peer.ask(AbortEpisode(episode_id))


def test_a_logged_action_of_another_space_is_refused(ppo: PolicyServer) -> None:
    with PolicyClient(ppo.address, token=TOKEN) as client:
        episode_id = client.start_episode()
        with pytest.raises(RefusedByServer, match="action of agent 'a'") as caught:
            client.log_action(episode_id, SEEN, {"a": 3, "b": 0})
        assert (caught.value.agent_id, caught.value.code) == ("a", 422)


def test_actions_come_from_the_newest_weights(make_server: MakeServer) -> None:
    agents = {agent: SEES[agent] for agent in "ab"}
    server = make_server(make_plan("PPO", agents, settings=PPO_SETTINGS, model=SMALL_MODEL))
    before = server.status().weights_seq_no
    with PolicyClient(server.address) as client:
        episode_id = client.start_episode()
        for _ in range(45):  # a batch is 40 env steps, and `wait` holds the next action for it
            client.get_action(episode_id, SEEN)
            client.log_returns(episode_id, {"a": 1.0})
        assert server.status().weights_seq_no > before, "nobody asked for an update"
        client.end_episode(episode_id, SEEN, truncated=True)


def test_each_thread_has_a_client_of_its_own(ppo: PolicyServer) -> None:
    before = ppo.status().num_episodes
    mismatches: list[int] = []

    def play() -> None:
        with PolicyClient(ppo.address, token=TOKEN) as client:
            for _ in range(5):
                episode_id = client.start_episode()
                for _ in range(4):
                    actions = client.get_action(episode_id, SEEN)
                    client.log_returns(episode_id, dict.fromkeys(actions, 0.5))
                client.end_episode(episode_id)
            mismatches.append(client.num_mismatches)

    threads = [threading.Thread(target=play) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert mismatches == [0, 0, 0]
    assert ppo.status().num_episodes == before + 15
