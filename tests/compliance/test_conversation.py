"""One suite for whoever speaks the protocol: over WebSocket, over HTTP, and without a server."""

from __future__ import annotations

import time
import uuid
from typing import Any

import numpy as np
import pytest
from tests.compliance.real_servers import Peer, transport_to

from muxrl.client.network_transport import NetworkTransport
from muxrl.protocol.messages import (
    Aborted,
    AbortEpisode,
    Actions,
    Ended,
    EndEpisode,
    Refused,
    Started,
    StartEpisode,
    Step,
)
from muxrl.servers.server import PolicyServer

SOON_S = 1.0
SEEN = {"a": np.array([0.1, 0.2], np.float32), "b": np.array([0.3, 0.4], np.float32)}


def new_id() -> str:
    return uuid.uuid4().hex


def refusal(reply: Any) -> Refused:
    assert isinstance(reply, Refused), reply
    return reply


def acted(reply: Any) -> Actions:
    assert isinstance(reply, Actions), reply
    return reply


# --- any implementation ---------------------------------------------------------------------


def test_the_spec_names_agents_and_spaces(any_peer: Peer, server: PolicyServer) -> None:
    spec = any_peer.transport.fetch_spec()
    algorithm = server.plan.algorithm
    assert (spec.server_id, spec.algorithm, spec.protocol_version) == (
        algorithm.lower(), algorithm, 1
    )  # fmt: skip
    assert spec.agents.keys() == {"a", "b"}
    assert str(spec.agents["a"].observation_space) == "Box(2,) float32"
    assert str(spec.agents["a"].action_space) == "Discrete(3)"


def test_an_episode(any_peer: Peer) -> None:
    e = new_id()
    assert any_peer.ask(StartEpisode(e)) == Started(e)
    for t in range(5):
        reply = acted(any_peer.ask(Step(e, t, SEEN, {"a": 1.0, "b": 0.5} if t else {})))
        assert (reply.episode_id, reply.t, reply.actions.keys()) == (e, t, {"a", "b"})
        assert all(action in range(3) for action in reply.actions.values())
    assert any_peer.ask(EndEpisode(e, 5, rewards={"a": 1.0})) == Ended(e, 5, {"a": 5.0, "b": 2.0})


def test_actions_are_of_those_who_were_seen(any_peer: Peer) -> None:
    e = new_id()
    any_peer.ask(StartEpisode(e))
    assert acted(any_peer.ask(Step(e, 0, {"b": SEEN["b"]}))).actions.keys() == {"b"}
    assert acted(any_peer.ask(Step(e, 1, {"a": SEEN["a"]}))).actions.keys() == {"a"}
    assert any_peer.ask(AbortEpisode(e)) == Aborted(e)


def test_a_frame_of_many_items_is_answered_in_order(any_peer: Peer) -> None:
    e, f = new_id(), new_id()
    replies = any_peer.say(
        StartEpisode(e), Step(e, 0, SEEN), StartEpisode(f, "eval"), Step(f, 0, SEEN)
    )
    assert [type(reply) for reply in replies] == [Started, Actions, Started, Actions]
    assert [reply.episode_id for reply in replies] == [e, e, f, f]
    replies = any_peer.say(EndEpisode(e, 1), AbortEpisode(f))
    assert [type(reply) for reply in replies] == [Ended, Aborted]


def test_zero_steps(any_peer: Peer) -> None:
    e = new_id()
    any_peer.ask(StartEpisode(e))
    assert any_peer.ask(EndEpisode(e, 0)) == Ended(e, 0)


def test_abort_of_what_was_never_open(any_peer: Peer) -> None:
    e = new_id()
    assert any_peer.ask(AbortEpisode(e)) == Aborted(e)


# --- real servers ---------------------------------------------------------------------------


def test_an_answer_does_not_change_with_the_weights(ppo: PolicyServer) -> None:
    peer = Peer(transport_to(ppo, "websocket"))
    e, f = new_id(), new_id()
    first = acted(peer.say(StartEpisode(e), Step(e, 0, SEEN))[1])
    peer.ask(StartEpisode(f))
    for t in range(60):  # more than a batch: the server learns meanwhile
        later = acted(peer.ask(Step(f, t, SEEN)))
    assert later.weights_seq_no > first.weights_seq_no
    assert peer.ask(Step(e, 0, SEEN)) == first
    peer.say(EndEpisode(e, 1), EndEpisode(f, 60))
    peer.transport.close()


WRONG: dict[str, tuple[dict[str, Any], str | None, str, str]] = {
    "shape": (
        {"observations": {**SEEN, "b": np.zeros(3, np.float32)}},
        "b", "Box(2,) float32", "shape (3,)"),
    "dtype": (
        {"observations": {**SEEN, "b": np.array(["x", "y"]).tolist()}},
        "b", "Box(2,) float32", "str 'x' at index [0]"),
    "not a number": (
        {"observations": {**SEEN, "b": np.array([1, np.nan], np.float32)}}, "b", "", ""),
    "unknown agent": (
        {"observations": {**SEEN, "x": np.zeros(2, np.float32)}}, "x", "one of ['a', 'b']", "'x'"),
    "unknown reward": ({"rewards": {"x": 1.0}}, "x", "one of ['a', 'b']", "'x'"),
    "no final observation": (
        {"observations": {"a": SEEN["a"]}, "truncations": {"b": True}},
        "b", "final_observations['b']", "none"),
}  # fmt: skip


@pytest.mark.parametrize("what", WRONG)
def test_a_mismatch_is_answered_at_once_by_name_and_other_episodes_go_on(
    peer: Peer, server: PolicyServer, what: str
) -> None:
    fields, culprit, expected, got = WRONG[what]
    e, other = new_id(), new_id()
    peer.say(StartEpisode(e), Step(e, 0, SEEN), StartEpisode(other), Step(other, 0, SEEN))
    began = time.monotonic()
    wrong = Step(e, 1, **{"observations": SEEN, **fields})
    replies = peer.say(wrong, Step(other, 1, SEEN))
    assert time.monotonic() - began < SOON_S
    refused = refusal(replies[0])
    assert (refused.code, refused.agent_id) == (422, culprit)
    server_id = server.plan.server_id
    assert (
        f"server {server_id!r} ({peer_address(peer)}) refused t=1 of episode {e}" in refused.message
    )
    assert repr(culprit) in refused.message
    assert expected in (refused.expected or "")
    assert got in (refused.got or "")
    acted(replies[1])
    acted(peer.ask(Step(e, 1, SEEN)))  # nothing of it was recorded: the same t, mended
    peer.say(EndEpisode(e, 2), EndEpisode(other, 2))


def peer_address(peer: Peer) -> str:
    assert isinstance(peer.transport, NetworkTransport)
    return peer.transport.url.removeprefix("http://")


def test_counts_and_open_episodes_in_the_status(peer: Peer, server: PolicyServer) -> None:
    before = server.status()
    e = new_id()
    peer.say(StartEpisode(e), Step(e, 0, SEEN))
    assert server.status().num_open_episodes == 1
    peer.ask(Step(e, 1, {"a": SEEN["a"]}))
    peer.ask(EndEpisode(e, 2, rewards={"a": 3.0}))
    after = server.status()
    assert after.num_open_episodes == 0
    assert after.num_env_steps - before.num_env_steps == 2
    assert after.num_agent_steps - before.num_agent_steps == 3
    assert after.num_episodes - before.num_episodes == 1
