"""A server whose actions show what it was sent, behind a link that fails on cue."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import itertools
import threading
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
from tests.compliance.links import Link
from tests.compliance.real_servers import TOKEN, make_plan, running

from muxrl.protocol.spaces import Box, DictSpace, Discrete, MultiDiscrete, Space
from muxrl.servers.config import AgentPlan, LimitsConfig
from muxrl.servers.server import PolicyServer

SEES: dict[str, Space] = {
    "a": DictSpace({"observation": Box((3,)), "action_mask": Box((4,), "int8", 0, 1)}),
    "b": Box((2, 2)),
    "c": Discrete(5),
}
DOES: dict[str, Space] = {"a": Discrete(4), "b": Box((2,)), "c": MultiDiscrete((2, 3))}
HELD_S = 3.9
OUTAGE_S = 3.9
"""Both exceed the clients' patience of 2.4 s by the delays that a busy machine may add."""

_CUES: dict[tuple[int, int], Callable[[], None]] = {}
"""By rehearsal and the first number that "b" observes: what fails then."""
_IDS = itertools.count()


def act(agent_id: str, observation: Any, num_calls: int) -> Any:
    """Returns an action that depends on all of an observation, and on the number of calls
    before."""
    if agent_id == "a":
        allowed = np.flatnonzero(observation["action_mask"])
        index = int(np.sum(observation["observation"]) * 8) + num_calls
        return int(allowed[index % len(allowed)])
    if agent_id == "b":
        return (observation.mean(axis=0) + num_calls).astype(np.float32)
    return [observation % 2, (observation + num_calls) % 3]


def make_policy(
    agent_id: str, observation_space: Any, action_space: Any, seed: int, *, rehearsal_id: int
) -> Callable[[Any], Any]:
    """Returns the policy of SCRIPTED for one agent. The first number that "b" observes may be a
    cue."""
    calls = itertools.count()

    def policy(observation: Any) -> Any:
        if agent_id == "b":
            _CUES.get((rehearsal_id, int(observation[0, 0])), lambda: None)()
        return act(agent_id, observation, next(calls))

    return policy


@contextlib.contextmanager
def rehearsal() -> Iterator[tuple[PolicyServer, Link]]:
    """Yields a running server, without Ray, and the link that its clients use; ends both."""
    agents = {agent: AgentPlan(agent, space, DOES[agent]) for agent, space in SEES.items()}
    me = next(_IDS)
    plan = make_plan(
        "SCRIPTED",
        {},
        settings={"policy": f"{__name__}:make_policy", "kwargs": {"rehearsal_id": me}},
        token=TOKEN,
        limits=LimitsConfig(max_message_bytes=100_000),
    )
    with (
        running(dataclasses.replace(plan, agents=agents)) as server,
        Link(server.address) as link,
    ):
        _CUES.update(
            {
                (me, 100): lambda: link.swallow("half"),
                (me, 101): link.cut,
                (me, 102): lambda: link.swallow("answer"),
                (me, 103): lambda: _be_down(link, 0.5),
                (me, 104): lambda: _hold_next_steps(server),
                (me, 106): lambda: _be_down_and_stopping(link, server),
            }
        )
        yield server, link


def _be_down(link: Link, time_s: float) -> None:
    link.set("down")
    threading.Timer(time_s, link.set, ["up"]).start()


def _be_down_and_stopping(link: Link, server: PolicyServer) -> None:
    """Is out of reach, then refuses one start of an episode, as a server does while it stops."""
    store, num_refused = server.policies.store, server.status().num_refused
    loop = asyncio.get_running_loop()

    def accept_again() -> None:
        store.is_accepting = server.status().num_refused > num_refused
        if not store.is_accepting:
            loop.call_later(0.02, accept_again)

    accept_again()
    _be_down(link, OUTAGE_S)


def _hold_next_steps(server: PolicyServer) -> None:
    """Closes the gate between acting and learning for a while, as during an update."""
    feed, max_ahead = server.policies.feed, server.policies.feed.max_ahead

    def open_gate() -> None:
        feed.max_ahead = max_ahead
        feed._let_through()

    feed.max_ahead = -2  # a server that never learns counts as -1 batches ahead
    asyncio.get_running_loop().call_later(HELD_S, open_gate)
