"""A gateway with several real servers behind it acts as one server of all agents."""

from __future__ import annotations

import contextlib
import re
import signal
import subprocess
import sys
from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np
import pytest
from tests.compliance.gateways import gateway_to
from tests.compliance.real_servers import PPO_SETTINGS, SMALL_MODEL, MakeServer, Peer, make_plan

from muxrl.client import MultiplexingClient, PolicyClient, RefusedByServer, ServerUnavailable
from muxrl.client.http import HttpTransport
from muxrl.client.websocket import WebSocketTransport
from muxrl.orchestrator.gateway.served import ServedGateway
from muxrl.protocol.messages import (
    Aborted,
    AbortEpisode,
    Actions,
    Ended,
    EndEpisode,
    PlayedRows,
    PlayedSteps,
    Refused,
    StartEpisode,
    Step,
)
from muxrl.protocol.spaces import Box
from muxrl.servers.config import LimitsConfig
from muxrl.servers.server import PolicyServer

SEEN = {agent: np.array([i], np.float32) for i, agent in enumerate("abc")}
_IDS = iter(f"episode-{n}" for n in range(10_000))


@pytest.fixture(scope="module")
def servers(make_server: MakeServer) -> dict[str, PolicyServer]:
    """Gives a learning server for a, one that counts steps for b, and a random one for c."""
    limits = LimitsConfig(max_episodes=8)
    counter = {"policy": "tests.compliance.real_servers:make_counter"}
    plans = [
        make_plan("PPO", {"a": Box((1,))}, settings=PPO_SETTINGS, model=SMALL_MODEL, limits=limits),
        make_plan("SCRIPTED", {"b": Box((1,))}, settings=counter, limits=limits),
        make_plan("RANDOM", {"c": Box((1,))}, limits=limits),
    ]
    return {plan.server_id: make_server(plan) for plan in plans}


@pytest.fixture(scope="module")
def gateway(servers: dict[str, PolicyServer]) -> Iterator[ServedGateway]:
    with gateway_to(*servers.values()) as gateway:
        yield gateway


@pytest.fixture(params=[WebSocketTransport, HttpTransport])
def peer(request: pytest.FixtureRequest, gateway: ServedGateway) -> Iterator[Peer]:
    peer = Peer(request.param(gateway.address))
    yield peer
    peer.transport.close()


def counts(servers: dict[str, PolicyServer]) -> dict[str, tuple[int, int]]:
    """Returns each server's number of open episodes and of training env steps."""
    found = {name: server.status() for name, server in servers.items()}
    return {name: (s.num_open_episodes, s.num_env_steps) for name, s in found.items()}


def test_a_gateway_is_a_server_of_all_agents(peer: Peer, servers: dict[str, PolicyServer]) -> None:
    spec = peer.transport.fetch_spec()
    assert (spec.server_id, spec.algorithm) == ("gateway", "GATEWAY")
    assert {agent: info.policy_id for agent, info in spec.agents.items()} == {
        "a": "ppo/policy_1",
        "b": "scripted/policy_1",
        "c": "random/policy_1",
    }
    assert spec.max_episodes == 8
    assert spec.while_learning == "wait"  # like the PPO server behind it


def test_a_gateway_offers_no_policies_for_local_inference(
    peer: Peer, gateway: ServedGateway
) -> None:
    with pytest.raises(ServerUnavailable, match="GATEWAY has no weights of its own"):
        MultiplexingClient([gateway.address], inference_mode="local")
    e = next(_IDS)
    seen = [np.zeros((1, 1, 2), np.float32)]
    rows = PlayedRows(
        episode_ids=[e], t=np.zeros(1, int), agents=["a"], observations=seen, weights_seq_no=0
    )
    _, *played, aborted = peer.say(
        StartEpisode(e), PlayedSteps(e, 0, [Step(e, 0, {})], {}), rows, AbortEpisode(e)
    )
    for one in played:
        assert isinstance(one, Refused)
        assert "takes no steps of clients that act themselves" in one.message
    assert aborted == Aborted(e)


def test_metrics_of_the_simulation_are_kept_with_the_episode(
    peer: Peer, gateway: ServedGateway
) -> None:
    told = {"win": 1, "way": {"a": 2.0, "c": 5.0}}
    mine = []
    for metrics in (told, {}):
        mine.append(next(_IDS))
        peer.say(StartEpisode(mine[-1]), Step(mine[-1], 0, SEEN))
        assert isinstance(peer.ask(EndEpisode(mine[-1], 1, metrics=metrics)), Ended)
    kept = {one.episode_id: one.metrics for one in gateway.gateway.episodes.ended}
    own = {"episode_length": {"__common__": 1.0}, "truncated": {"__common__": 0.0}}
    assert [kept[e] for e in mine] == [
        {"win": {"__common__": 1.0}, "way": {"a": 2.0, "c": 5.0}} | own,
        own,
    ]


@pytest.mark.parametrize(
    ("metrics", "story"),
    [
        ({"way": {"z": 1.0}}, "no server has an agent 'z'"),
        ({"episode_length": 3.0}, "'episode_length' cannot name a metric"),
        ({"truncated": 1.0}, "'truncated' cannot name a metric"),
        ({"a b": 3.0}, "'a b' cannot name a metric"),
    ],
)
def test_invalid_metrics_are_refused_and_the_end_may_be_sent_again(
    peer: Peer, metrics: Any, story: str
) -> None:
    e = next(_IDS)
    peer.say(StartEpisode(e), Step(e, 0, SEEN))
    refused = peer.ask(EndEpisode(e, 1, rewards={"a": 1.0}, metrics=metrics))
    assert isinstance(refused, Refused)
    assert (refused.code, story in refused.message) == (422, True), refused
    ended = peer.ask(EndEpisode(e, 1, rewards={"a": 1.0}))
    assert isinstance(ended, Ended)
    assert ended.returns == {"a": 1.0, "b": 0.0, "c": 0.0}, "nothing of a refused end is kept"


@pytest.mark.parametrize(
    ("item", "code", "story"),
    [
        (lambda e: Step(e, 3, SEEN), 409, "awaits t=1, got t=3"),
        (lambda e: EndEpisode(e, 9), 409, "awaits t=1, got t=9"),
        (lambda e: StartEpisode(e, "eval"), 409, "already open"),
        (lambda e: Step(e, 1, {"z": SEEN["a"]}), 422, "there is no agent 'z' here"),
        (lambda e: Step(e, 1, SEEN, {"z": 1.0}), 422, "there is no agent 'z' here"),
        (lambda e: Step(e, 1, SEEN, {"A": 1.0}), 422, "its reward came; did you mean 'a'?"),
        (lambda e: Step(e, 1, {"b": [0.0] * 7}), 422, "expected Box(1,) float32, got shape"),
        (lambda e: Step(e, 1, SEEN, {"a": 1.0, "b": 1e39}), 422, "reward of agent 'b' is 1e+39"),
        (lambda e: Step(e, 1, SEEN, terminations={"a": True}), 422, "cannot observe again"),
        (lambda e: Step(e, 1, SEEN, logged_log_probs={"a": -1.0}), 422, "without the logged"),
        (lambda e: Step("unheard-of", 0, SEEN), 410, "does not know episode unheard-of"),
        (lambda e: StartEpisode("a/b"), 400, "cannot be an episode's id"),
    ],
)
def test_the_gateway_refuses_by_itself_and_the_episode_goes_on(
    peer: Peer, item: Any, code: int, story: str
) -> None:
    e = next(_IDS)
    peer.say(StartEpisode(e), Step(e, 0, SEEN))
    refused = peer.ask(item(e))
    assert isinstance(refused, Refused)
    assert (refused.code, story in refused.message) == (code, True), refused
    assert "server 'gateway'" in refused.message
    assert isinstance(peer.ask(Step(e, 1, SEEN, {"a": 1.0})), Actions)
    assert peer.ask(EndEpisode(e, 2)) == Ended(e, 2, {"a": 1.0, "b": 0.0, "c": 0.0})


def test_a_refusal_of_a_server_names_it_and_closes_the_episode_everywhere(
    peer: Peer, servers: dict[str, PolicyServer]
) -> None:
    e, other = next(_IDS), next(_IDS)
    peer.say(StartEpisode(e), Step(e, 0, SEEN), StartEpisode(other), Step(other, 0, SEEN))
    without_last_observations = EndEpisode(e, 1, is_truncated=True)
    refused, fine = peer.say(without_last_observations, Step(other, 1, SEEN))
    assert isinstance(refused, Refused)
    assert (refused.code, refused.agent_id) == (422, "a")
    assert "server 'ppo'" in refused.message
    assert "final observation" in refused.message
    assert isinstance(fine, Actions)
    again = peer.ask(Step(e, 1, SEEN))
    assert isinstance(again, Refused)
    assert again.code == 410
    assert peer.ask(AbortEpisode(e)) == Aborted(e)
    assert isinstance(peer.ask(EndEpisode(other, 2)), Ended)
    assert {name: open_ for name, (open_, _) in counts(servers).items()} == dict.fromkeys(
        servers, 0
    )


@contextlib.contextmanager
def commanded(servers: Iterable[PolicyServer]) -> Iterator[tuple[Any, str, str]]:
    """Yields the process of `muxrl gateway`, the servers that it prints, and its address."""
    command = [sys.executable, "-m", "muxrl", "gateway", *(s.address for s in servers)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        told = process.stdout.readline()
        match = re.fullmatch(r"gateway to (.*): (http://[\d.:]+); Ctrl-C ends it\n", told)
        assert match, told
        yield process, match[1], match[2]
    finally:
        process.kill()
        process.communicate()


def test_the_command_puts_a_gateway_in_front_of_servers(servers: dict[str, PolicyServer]) -> None:
    with commanded(servers.values()) as (process, names, address), PolicyClient(address) as client:
        assert names == ", ".join(servers)
        assert list(client.specs) == ["gateway"]
        episode_id = client.start_episode()
        assert client.get_action(episode_id, SEEN).keys() == SEEN.keys()
        process.send_signal(signal.SIGTERM)
        assert process.wait(20.0) == 130
    assert [num_open for num_open, _ in counts(servers).values()] == [0, 0, 0]


def test_agents_come_back_through_the_command_where_their_server_lets_them(
    make_server: MakeServer,
) -> None:
    plans = [
        make_plan("RANDOM", {"a": Box((1,))}, server_id="lives", agents_return=True),
        make_plan("RANDOM", {"b": Box((1,))}, server_id="once"),
    ]
    with commanded(map(make_server, plans)) as (_, _, address), PolicyClient(address) as client:
        assert client.specs["gateway"].agents_return
        episode_id = client.start_episode()
        mine = {agent: SEEN[agent] for agent in "ab"}
        client.get_action(episode_id, mine)
        client.log_returns(episode_id, {}, terminations={"a": True})
        client.get_action(episode_id, {"b": mine["b"]})
        assert client.get_action(episode_id, mine).keys() == mine.keys()
        client.log_returns(episode_id, {}, terminations={"b": True})
        client.get_action(episode_id, {"a": mine["a"]})
        with pytest.raises(RefusedByServer, match=r"server 'once'.*cannot observe again"):
            client.get_action(episode_id, mine)


def test_an_episode_that_a_lost_gateway_had_started_on_a_server_is_closed_there(
    peer: Peer, servers: dict[str, PolicyServer]
) -> None:
    e = next(_IDS)
    # Stands for the gateway that was lost.
    with PolicyClient(servers["scripted"].address) as before:
        before.start_episode(e)
    refused = peer.ask(StartEpisode(e))
    assert isinstance(refused, Refused)
    assert (refused.code, "already over on server 'scripted'" in refused.message) == (410, True)
    assert [num_open for num_open, _ in counts(servers).values()] == [0, 0, 0]
