"""Clients with local inference act as real servers do, which learn from what the clients send."""

from __future__ import annotations

import dataclasses
from collections import Counter
from typing import Any

import numpy as np
import pytest
from tests.compliance.real_servers import (
    SEEN,
    SMALL_MODEL,
    TWO,
    MakeServer,
    make_plan,
    ppo_plan,
    wait_until,
)

from muxrl.client import (
    AssignmentError,
    MultiplexingClient,
    RefusedByServer,
    ServerUnavailable,
)
from muxrl.client.local_transport import LocalTransport
from muxrl.client.random_policy import RandomTransport
from muxrl.protocol.messages import PlayedRows, PlayedSteps, Status, Step
from muxrl.protocol.spaces import Box
from muxrl.servers.config import AgentPlan, LimitsConfig
from muxrl.servers.server import PolicyServer

BATCH = {"train_batch_size_per_learner": 40}


@pytest.fixture(scope="module")
def ppo(make_server: MakeServer) -> PolicyServer:
    return make_server(ppo_plan())


def local(*servers: PolicyServer, **kwargs: Any) -> MultiplexingClient:
    return MultiplexingClient([s.address for s in servers], inference_mode="local", **kwargs)


def transport_of(client: MultiplexingClient) -> LocalTransport:
    (transport,) = client._transports.values()
    assert isinstance(transport, LocalTransport)
    return transport


def frames_of(client: MultiplexingClient) -> list[list[Any]]:
    """Returns a list to which every frame is added that the client sends over the network."""
    frames: list[list[Any]] = []
    behind = transport_of(client)._transport
    send = behind.send

    def kept(items: Any) -> None:
        frames.append(list(items))
        send(items)

    behind.send = kept  # type: ignore[method-assign]
    return frames


def play(client: MultiplexingClient, num_steps: int, **kwargs: Any) -> Counter[int]:
    """Plays an episode in which agent a earns 1 for action 1; returns the actions of both."""
    chosen: Counter[int] = Counter()
    episode_id = client.start_episode(**kwargs)
    for _ in range(num_steps):
        actions = client.get_action(episode_id, SEEN)
        chosen.update(actions.values())
        client.log_returns(episode_id, {"a": float(actions["a"] == 1), "b": 0.5})
    client.end_episode(episode_id, SEEN, truncated=True)
    return chosen


def settled(server: PolicyServer) -> Status:
    """Returns a server's status once it has learned from every whole batch."""
    batch = BATCH["train_batch_size_per_learner"]
    wait_until(lambda: server.status().iteration >= server.status().num_env_steps // batch)
    return server.status()


@pytest.mark.parametrize("transport", ["websocket", "http"])
def test_counts_agree_in_few_messages_and_with_the_newest_weights(
    ppo: PolicyServer, transport: Any
) -> None:
    before = settled(ppo)
    with local(ppo, transport=transport) as client:
        frames = frames_of(client)
        for num_steps in (1, 30, 100, 69):
            play(client, num_steps)
        assert client.num_mismatches == 0
        assert len(frames) < 25, "200 steps, two messages an episode and one or two a batch"
        told = [item for frame in frames for item in frame]
        num_played = sum(len(item.steps) for item in told if isinstance(item, PlayedSteps))
        num_asked = sum(isinstance(item, Step) for item in told)
        assert num_played + num_asked == 200
        assert num_asked <= 6, "each batch ends with a step that the server acts in"
    after = settled(ppo)
    assert after.num_env_steps - before.num_env_steps == 200
    assert after.num_agent_steps - before.num_agent_steps == 400
    assert after.iteration - before.iteration == 5
    assert after.num_stale_steps == 0
    assert ppo.policies.policy_lag == (0.0, 0), "as without local inference"


def test_a_local_client_draws_actions_from_the_servers_distribution(ppo: PolicyServer) -> None:
    """Local and remote actions are compared in evaluation, where nothing is learned meanwhile."""
    with local(ppo) as here, MultiplexingClient([ppo.address]) as there:
        before = ppo.status().num_env_steps
        mine = play(here, 1000, training_enabled=False, should_explore=True)
        theirs = play(there, 1000, training_enabled=False, should_explore=True)
        assert ppo.status().num_env_steps == before
        # Four standard deviations of the difference between two counts of 2,000 draws.
        for action in range(3):
            assert abs(mine[action] - theirs[action]) < 4 * np.sqrt(2 * 2000 * 0.25)
        greedy = play(here, 5, training_enabled=False)
        assert greedy == play(there, 5, training_enabled=False)


def test_a_wrong_observation_is_refused_at_once_and_what_was_played_is_kept(
    ppo: PolicyServer,
) -> None:
    before = ppo.status().num_env_steps
    with local(ppo) as client:
        episode_id = client.start_episode()
        for _ in range(3):
            client.get_action(episode_id, SEEN)
        with pytest.raises(RefusedByServer, match=r"t=3 .*agent 'a': expected Box\(2,\)"):
            client.get_action(episode_id, {"a": np.zeros(3, np.float32)})
    assert ppo.status().num_env_steps - before == 2
    with local(ppo) as client:
        episode_id = client.start_episode()
        for _ in range(3):
            client.get_action(episode_id, SEEN)
        last = {"a": np.full(2, np.nan, np.float32)}
        client.log_returns(episode_id, {}, truncations={"a": True}, final_observations=last)
        with pytest.raises(RefusedByServer, match=r"t=3 .*final .*agent 'a'.*finite") as refusal:
            client.get_action(episode_id, {"b": SEEN["b"]})
        assert refusal.value.is_unsound


def test_an_episode_in_rows_is_refused_without_the_others(make_server: MakeServer) -> None:
    limits = LimitsConfig(max_abs_reward=10.0)
    server = make_server(ppo_plan(server_id="rows", limits=limits))
    with local(server) as client:
        frames = frames_of(client)
        ids = [client.start_episode() for _ in range(4)]
        for t in range(12):
            seen = {one: {a: np.full(2, t, np.float32) for a in "ab"} for one in ids}
            actions = client.get_action(ids, seen)
            assert [(one, *own) for one, own in actions.items()] == [(one, "a", "b") for one in ids]
            for one in ids:
                client.log_returns(one, {"a": 11.0 if (t, one) == (5, ids[2]) else 1.0})
            if t == 6:
                transport_of(client).tell_played()
                with pytest.raises(RefusedByServer, match=r"reward of agent 'a'.*11") as refusal:
                    client.get_action(ids, seen)
                assert refusal.value.episode_id == ids.pop(2)
        for one in ids:
            client.end_episode(one, SEEN, truncated=True)
        assert client.num_mismatches == 0
        assert client.num_lost_steps == 1, "t=6, which tells of the reward"
        played = [item for frame in frames for item in frame if isinstance(item, PlayedRows)]
        assert len(played) > 5
    # Recorded are the refused episode's steps before t=6; of the others, one more was asked for.
    assert server.status().num_env_steps == 3 * 13 + 5
    assert server.status().num_stale_steps == 0


def test_observations_may_be_overwritten_by_the_simulation_after_each_step(
    ppo: PolicyServer,
) -> None:
    with local(ppo) as client:
        frames = frames_of(client)
        episode_id = client.start_episode()
        array = np.zeros(2, np.float32)
        for t in range(3):
            array[:] = t
            client.get_action(episode_id, {"a": array})
        client.abort_episode(episode_id)
        steps = [s for f in frames for i in f if isinstance(i, PlayedSteps) for s in i.steps]
        assert [s.observations["a"].tolist() for s in steps] == [[s.t, s.t] for s in steps]
        assert len(steps) >= 2


def test_messages_stay_below_the_servers_limit(make_server: MakeServer) -> None:
    server = make_server(
        make_plan("A2C", TWO, server_id="narrow", model=SMALL_MODEL,
                  limits=LimitsConfig(max_message_bytes=10_000))
    )  # fmt: skip
    with local(server) as client:
        play(client, 200)  # 200 steps take some 30,000 bytes, more than one message may have
        assert client.num_mismatches == 0
    assert (server.status().num_refused, server.status().num_env_steps) == (0, 200)


def test_logged_actions_go_to_the_server(ppo: PolicyServer) -> None:
    with local(ppo) as client:
        episode_id = client.start_episode()
        client.get_action(episode_id, SEEN)
        client.log_action(episode_id, SEEN, {"a": 2, "b": 0})
        client.get_action(episode_id, SEEN)
        client.end_episode(episode_id)
        assert client.num_mismatches == 0


@pytest.mark.parametrize("interval_s", [60.0, None])
def test_weights_are_pulled_on_an_interval_or_on_demand(
    ppo: PolicyServer, interval_s: float | None
) -> None:
    with local(ppo, update_interval_s=interval_s) as client:
        transport = transport_of(client)
        version = transport._policies.version
        play(client, 100)
        assert ppo.status().weights_seq_no >= version + 2
        assert transport._policies.version == version, "no minute has passed"
        if interval_s is not None:
            transport._pulled_at -= interval_s
            play(client, 1)
        else:
            stale = ppo.status().num_stale_steps
            assert stale > 0, "counted where its weights are two versions old"
            client.update_policy_weights()
            play(client, 20)
            assert ppo.status().num_stale_steps == stale
        assert transport._policies.version >= version + 2
        assert client.num_mismatches == 0


def test_the_gate_holds_short_episodes_too(make_server: MakeServer) -> None:
    """Short episodes ask the server for no action, but still wait while it learns."""
    server = make_server(
        make_plan("A2C", TWO, server_id="short", settings=BATCH, model=SMALL_MODEL)
    )
    with local(server) as client:
        for _ in range(100):
            play(client, 4)
        assert client.num_mismatches == 0
    assert server.status().num_stale_steps == 0
    lag = server.policies.policy_lag
    assert lag is not None
    assert lag[1] <= 1
    assert server.status().num_env_steps == 400


@pytest.mark.parametrize(
    ("algorithm", "fields", "words"),
    [
        ("DQN", {"settings": {"num_atoms": 5}}, "not one of DQN's default small networks"),
        ("MAPPO", {"groups": {"team": ("a", "b")}}, "by more than what each of them observes"),
        ("PPO", {"model": {"use_lstm": True}}, "not one of PPO's default small networks"),
        ("PPO", {"normalize_observations": True}, "observes is scaled or normalised"),
        ("PPO", {"frame_stack": 4}, "networks read 4 observations at once"),
        ("PPO", {"agents": {"a": AgentPlan("p", Box((2,)), Box((1,), low=0, high=1))}},
         "'a' acts Box.* not Discrete"),
        ("RANDOM", {}, "RANDOM does not learn"),
    ],
)  # fmt: skip
def test_servers_that_local_inference_does_not_cover_are_refused_with_the_reason(
    make_server: MakeServer, algorithm: str, fields: dict[str, Any], words: str
) -> None:
    plan = make_plan(algorithm, TWO, server_id=f"no_{algorithm.lower()}_{len(words)}")
    server = make_server(dataclasses.replace(plan, **fields))
    with pytest.raises(ServerUnavailable, match=f"no policies for local inference: .*{words}"):
        local(server)
    with MultiplexingClient([server.address]) as client:
        item = PlayedSteps("e", 0, [], {})
        client._transports[plan.server_id].send([item])
        (reply,) = client._transports[plan.server_id].receive()
        assert "refused" in str(reply)


def test_the_inference_mode_is_set_by_server(ppo: PolicyServer) -> None:
    with MultiplexingClient([ppo.address], inference_mode={"ppo": "local"}) as client:
        assert isinstance(client._transports["ppo"], LocalTransport)
        play(client, 3)
    for modes in ({"qmix": "local"}, {"ppo": "here"}, "here"):
        with pytest.raises((ValueError, AssignmentError), match="inference_mode"):
            MultiplexingClient([ppo.address], inference_mode=modes)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="was given as a RandomTransport"):
        MultiplexingClient([RandomTransport(ppo.spec())], inference_mode="local")
