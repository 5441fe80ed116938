"""Local inference for value-based algorithms and teams acts and records as the server does."""

from __future__ import annotations

import dataclasses
import logging
from typing import Any

import numpy as np
import pytest
from tests.compliance.real_servers import (
    SMALL_MODEL,
    MakeServer,
    make_plan,
    wait_until,
)
from tests.compliance.test_local_inference import frames_of, local, transport_of

from muxrl.client import (
    EpisodeLost,
    MultiplexingClient,
    ServerLost,
    local_transport,
)
from muxrl.client.local_transport import LocalTransport
from muxrl.client.stand_in import StandIn
from muxrl.client.websocket import WebSocketTransport
from muxrl.protocol.messages import PlayedRows, PlayedSteps
from muxrl.protocol.spaces import Box, DictSpace, Discrete, MultiBinary, Space
from muxrl.servers.config import AgentPlan, ServerPlan
from muxrl.servers.server import PolicyServer

MASKED = DictSpace({"observation": Box((2,)), "action_mask": MultiBinary(3)})
SEES: dict[str, Space] = {"a": MASKED, "b": MASKED}
TEAM = {"groups": {"team": ("a", "b", "c")}, "late_members": "allow"}
QUICK = {"num_episodes_before_learning": 2, "batch_size_episodes": 2}


def team_plan(algorithm: str, server_id: str, **fields: Any) -> ServerPlan:
    """Returns the plan of a server for three agents, of which c has other spaces and no mask."""
    sees = {"a": MASKED, "b": MASKED, "c": Box((4,))}
    plan = make_plan(algorithm, sees, server_id=server_id, **(TEAM | fields))
    agents = dict(plan.agents)
    agents["c"] = AgentPlan("team", sees["c"], Discrete(2), "team")
    return dataclasses.replace(plan, agents=agents)


def observed(rng: np.random.Generator, plan: ServerPlan) -> dict[str, Any]:
    """Returns the observations of some agents, of at least one."""
    agents = [a for a in plan.agents if rng.random() < 0.8] or ["a"]
    seen: dict[str, Any] = {}
    for agent_id in agents:
        if plan.agents[agent_id].observation_space is MASKED:
            mask = (rng.random(3) < 0.5).astype(np.int8)
            mask[rng.integers(3)] = 1
            observation = rng.standard_normal(2).astype(np.float32)
            seen[agent_id] = {"observation": observation, "action_mask": mask}
        else:
            seen[agent_id] = rng.standard_normal(4).astype(np.float32)
    return seen


def states(plan: ServerPlan, rng: np.random.Generator) -> dict[str, Any]:
    return {"state": rng.standard_normal(2, np.float32)} if plan.state_size else {}


PLANS = [
    make_plan("DQN", SEES, server_id="dqn", model=SMALL_MODEL),
    make_plan("SAC", SEES, server_id="sac", model=SMALL_MODEL),
    team_plan("QMIX", "qmix", settings=QUICK, state_size=2),
    team_plan("IQL", "iql", settings={**QUICK, "agent": "mlp", "obs_agent_id": False}),
]


@pytest.fixture(scope="module", params=PLANS, ids=lambda plan: plan.algorithm)
def server(request: pytest.FixtureRequest, make_server: MakeServer) -> PolicyServer:
    return make_server(request.param)


@pytest.mark.parametrize("num", [1, 3])
def test_a_local_client_acts_as_the_server_does(
    server: PolicyServer, num: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Local and remote actions are the same: greedy ones, in episodes that a server continues from
    the client's recurrent state.

    Several episodes are sent in rows where the same agents act, and one by one where other agents
    act.
    """
    monkeypatch.setattr(local_transport, "_MOST_STEPS", 5)
    rng, plan = np.random.default_rng(num), server.plan
    with local(server) as here, MultiplexingClient([server.address]) as there:
        frames = frames_of(here)
        for _ in range(2):
            ids = [
                [client.start_episode(training_enabled=False) for _ in range(num)]
                for client in (here, there)
            ]
            for t in range(40):
                turn = [observed(rng, plan) for _ in range(num)]
                if t % 4:  # makes the same agents act in all episodes
                    turn = [{a: one.get(a, turn[0][a]) for a in turn[0]} for one in turn]
                given = [states(plan, rng).get("state") for _ in range(num)]
                mine, theirs = (
                    client.get_action(
                        own,
                        dict(zip(own, turn, strict=True)),
                        state=dict(zip(own, given, strict=True)) if plan.state_size else None,
                    ).values()
                    for client, own in zip((here, there), ids, strict=True)
                )
                assert list(mine) == list(theirs), t
            for client, own in zip((here, there), ids, strict=True):
                for one in own:
                    (client.abort_episode if plan.state_size else client.end_episode)(one)
        told = [item for frame in frames for item in frame]
        played = [item for item in told if isinstance(item, PlayedSteps)]
        assert not any(item.logits for item in played), "its learner reads none"
        if num == 1:
            assert 50 < sum(len(item.steps) for item in played) < 80
        else:
            assert len(played) > 3
            assert sum(isinstance(item, PlayedRows) for item in told) > 10
    assert (server.status().num_env_steps, server.status().num_refused) == (0, 0)


@pytest.mark.parametrize("num", [1, 3])
def test_local_teams_whose_members_take_turns_act_as_the_server_does(
    make_server: MakeServer, num: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    groups = {"odd": ("a", "c"), "even": ("b", "d")}
    alone = {"agent": "mlp", "obs_agent_id": False, "obs_last_action": False}
    settings = {**QUICK, **alone}
    plan = make_plan("IQL", {}, groups=groups, late_members="allow", settings=settings)
    agents = {
        member: AgentPlan("team", Box((4,)), Discrete(3), group)
        for member, group in zip("abcd", ["odd", "even"] * 2, strict=True)
    }
    server = make_server(dataclasses.replace(plan, agents=agents))
    test_a_local_client_acts_as_the_server_does(server, num, monkeypatch)


def train(client: MultiplexingClient, plan: ServerPlan, num_steps: int) -> None:
    rng = np.random.default_rng(2)
    everybody = plan.agents
    seen: dict[str, Any] = {}
    while seen.keys() != everybody.keys():
        seen = observed(rng, plan)
    episode_id = client.start_episode()
    for _ in range(num_steps):
        client.get_action(episode_id, seen, **states(plan, rng))
        client.log_returns(episode_id, dict.fromkeys(plan.agents, 1.0))
    client.end_episode(episode_id, seen, truncated=True, **states(plan, rng))


def test_counts_agree_in_few_messages(server: PolicyServer) -> None:
    before = server.status()
    with local(server) as client:
        frames = frames_of(client)
        for num_steps in (1, 30, 100, 69):
            train(client, server.plan, num_steps)
        assert client.num_mismatches == 0
        assert client.num_lost_steps == 0
        assert len(frames) < 40, "200 steps, of which 64 share a message at most"
    after = server.status()
    assert after.num_env_steps - before.num_env_steps == 200
    assert after.num_agent_steps - before.num_agent_steps == 200 * len(server.plan.agents)
    assert (after.num_stale_steps, after.problem) == (0, "")


def test_exploration_follows_the_servers_schedule(make_server: MakeServer) -> None:
    """Epsilon falls from 1 to 0 within 200 env steps, long before anything is learned."""
    schedule = [[0, 1.0], [200, 0.0]]
    plan = make_plan(
        "DQN", SEES, server_id="eps", model=SMALL_MODEL, settings={"epsilon": schedule}
    )
    server = make_server(plan)
    with local(server) as client:
        transport = transport_of(client)
        assert transport._policies.epsilon == 1.0
        train(client, plan, 100)
        settled_epsilon(server, 0.6)
        client.update_policy_weights()
        assert transport._policies.epsilon is not None
        assert transport._policies.epsilon <= 0.6
        train(client, plan, 200)
        settled_epsilon(server, 0.0)
        train(client, plan, 10)
        assert transport._policies.epsilon == 0.0, "told with what was recorded"
        assert server.status().weights_seq_no <= 1, "and not with new weights"


def settled_epsilon(server: PolicyServer, most: float) -> None:
    acting: Any = server.policies.acting
    (policy_id,) = acting.learners
    wait_until(lambda: acting.epsilon(policy_id) <= most)


def test_a_recurrent_state_that_is_missing_or_does_not_fit_is_refused(
    make_server: MakeServer,
) -> None:
    server = make_server(team_plan("QMIX", "fits", settings=QUICK))
    seen = {"c": np.zeros(4, np.float32)}
    with local(server) as client:
        transport = transport_of(client)
        wrong: tuple[tuple[dict[str, Any], str], ...] = (
            ({}, r"must come with the recurrent states"),
            (
                {"team": np.zeros((3, 5), np.float32)},
                r"recurrent state of group 'team': expected Box\(3, 64\)",
            ),
            ({"other": np.zeros((3, 64), np.float32)}, "must come with the recurrent states"),
        )
        for given, words in wrong:
            episode_id = client.start_episode()
            client.get_action(episode_id, seen)
            transport._episodes[episode_id].kept.states = given  # type: ignore[union-attr]
            with pytest.raises(Exception, match=words):
                client.end_episode(episode_id)
    assert server.status().num_env_steps == 0


def test_a_local_client_acts_at_random_while_its_server_is_lost(make_server: MakeServer) -> None:
    """A run with `on_server_loss: random` wraps local inference in a stand-in, which acts at random
    while the server is lost."""
    plan = make_plan("DQN", SEES, server_id="away", model=SMALL_MODEL)
    first = PolicyServer(plan)
    address = first.start()
    port = int(address.rpartition(":")[2])
    stand_in = StandIn(LocalTransport(WebSocketTransport(address, patience_s=0.5)), seed=0)
    with MultiplexingClient([stand_in]) as client:
        train(client, plan, 30)
        episode_id = client.start_episode()
        rng = np.random.default_rng(0)
        for _ in range(5):
            client.get_action(episode_id, observed(rng, plan))
        assert first.stop()
        with pytest.raises(ServerLost):
            client.end_episode(episode_id)
        assert client.num_lost_steps > 0
        train(client, plan, 30)  # the actions are random ones
        second = make_server(dataclasses.replace(plan, port=port))
        while stand_in._is_lost.is_set():
            train(client, plan, 3)
        train(client, plan, 30)
        # The last loop's three steps may be the second server's, too, if it was found just before.
        assert second.status().num_env_steps in (30, 33)
        assert client.num_mismatches == 0


def test_a_local_client_takes_the_weights_of_a_server_that_is_started_again(
    make_server: MakeServer, caplog: pytest.LogCaptureFixture
) -> None:
    """A server that is started again within the client's patience loses the open episode, and the
    client pulls the new weights."""
    plan = make_plan("DQN", SEES, server_id="again", model=SMALL_MODEL, seed=1)
    first = PolicyServer(plan)
    port = int(first.start().rpartition(":")[2])
    with local(first, update_interval_s=None) as client, caplog.at_level(logging.WARNING):
        transport = transport_of(client)
        train(client, plan, 30)
        before = transport._policies._networks
        episode_id = client.start_episode()
        client.get_action(episode_id, observed(np.random.default_rng(0), plan))
        assert first.stop()
        second = make_server(dataclasses.replace(plan, port=port))
        with pytest.raises(EpisodeLost, match="does not know episode"):
            client.end_episode(episode_id)
        assert transport.num_lost_steps > 0
        assert "steps are not recorded" in caplog.text
        assert transport._policies._networks is not before, "pulled, though only on demand else"
        train(client, plan, 30)
        assert second.status().num_env_steps == 30
        assert client.num_mismatches == 0
