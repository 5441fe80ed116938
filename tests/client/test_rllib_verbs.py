"""What docs/client.md says of RLlib's former ``PolicyClient`` and ``ExternalEnv``, row by row.

Here are the rows that no other test shows.
"""

from __future__ import annotations

import pytest
from tests.client.scripted_servers import Server

from muxrl.client import EpisodeMisuse, PolicyClient
from muxrl.protocol.messages import StartEpisode, Step


@pytest.fixture
def server() -> Server:
    return Server("only", "ab", [])


@pytest.fixture
def client(server: Server) -> PolicyClient:
    return PolicyClient(server)


def test_there_is_no_session(server: Server) -> None:
    with pytest.raises(TypeError, match="session"):
        PolicyClient(server, session=None)  # type: ignore[call-arg]


def test_an_episode_id_is_made_if_none_is_given(client: PolicyClient, server: Server) -> None:
    ids = [client.start_episode(), client.start_episode(), client.start_episode("mine")]
    assert len(set(ids)) == 3
    assert ids[2] == "mine"
    assert server.items == [StartEpisode(episode_id) for episode_id in ids]


def test_one_reward_and_one_observation_are_refused_at_once(
    client: PolicyClient, server: Server
) -> None:
    client.start_episode("e")
    client.get_action("e", {"a": [0.0]})
    told = len(server.items)
    with pytest.raises(EpisodeMisuse, match=r"rewards are a dict by agent, .*; got 1\.5"):
        client.log_returns("e", 1.5)  # type: ignore[arg-type]
    with pytest.raises(EpisodeMisuse, match=r"observations are a dict by agent, .*; got \[0.1\]"):
        client.get_action("e", [0.1])  # type: ignore[arg-type]
    with pytest.raises(EpisodeMisuse, match=r"actions are a dict by agent, .*; got 3"):
        client.log_action("e", {"a": [0.1]}, 3)  # type: ignore[arg-type]
    assert len(server.items) == told
    assert client.get_action("e", {"a": [0.1]}), "the episode goes on"


def test_infos_go_nowhere(client: PolicyClient, server: Server) -> None:
    client.start_episode("e")
    client.get_action("e", {"a": [0.0]})
    client.log_returns("e", {"a": 1.0}, {"a": {"training_enabled": False}})
    client.get_action("e", {"a": [0.1]})
    assert server.of(Step)[1] == Step("e", 1, {"a": [0.1]}, {"a": 1.0})
