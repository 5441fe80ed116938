"""What docs/client.md says of RLlib's former ``PolicyClient`` and ``ExternalEnv``, row by row.

Here are the rows that no other test shows.
"""

from __future__ import annotations

import pytest
from tests.client.scripted_servers import Server

from muxrl.client import EpisodeMisuse, PolicyClient
from muxrl.protocol.messages import EndEpisode, StartEpisode, Step


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


def test_log_returns_sends_nothing_by_itself(client: PolicyClient, server: Server) -> None:
    client.start_episode("e")
    client.get_action("e", {"a": [0.0]})
    num_frames = len(server.frames)
    client.log_returns("e", {"a": 1.0})
    assert len(server.frames) == num_frames
    client.end_episode("e")
    assert server.of(EndEpisode)[0].rewards == {"a": 1.0}


def test_rewards_accumulate_until_the_next_action(client: PolicyClient, server: Server) -> None:
    client.start_episode("e")
    client.get_action("e", {"a": [0.0], "b": [0.0]})
    client.log_returns("e", {"a": 1.0, "b": 10.0})
    client.log_returns("e", {"a": 2.0})
    client.get_action("e", {"a": [0.1], "b": [0.1]})
    client.get_action("e", {"a": [0.2], "b": [0.2]})  # no reward since: none is sent
    assert [step.rewards for step in server.of(Step)] == [{}, {"a": 3.0, "b": 10.0}, {}]


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


def test_a_done_agent_is_terminated_or_truncated(client: PolicyClient, server: Server) -> None:
    client.start_episode("e")
    client.get_action("e", {"a": [0.0], "b": [0.0]})
    client.log_returns(
        "e",
        {},
        terminations={"a": True, "b": False, "__all__": False},
        truncations={"a": False, "b": True},
        final_observations={"b": [0.9]},
    )
    client.end_episode("e")
    (end,) = server.of(EndEpisode)
    assert (end.terminations, end.truncations) == ({"a": True}, {"b": True})
    assert end.final_observations == {"b": [0.9]}
