"""Small real servers, and transports that reach them, for all compliance tests.

They are not in ``conftest.py``: there are several files of that name, and an import may find any of
them.
"""

from __future__ import annotations

import contextlib
import itertools
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np

from muxrl.client.transport import Transport
from muxrl.protocol.messages import AnyItem, AnyReply
from muxrl.protocol.spaces import Box, Discrete, Space
from muxrl.servers.config import AgentPlan, ServerPlan
from muxrl.servers.server import PolicyServer

TOKEN = "open-sesame"
MAX_BYTES = 20_000
SEES: dict[str, Space] = {"a": Box((2,)), "b": Box((2,)), "c": Box((2, 2), "uint8", 0, 9)}
TWO = {agent: SEES[agent] for agent in "ab"}
SEEN = {"a": np.array([0.1, 0.2], np.float32), "b": np.array([0.3, 0.4], np.float32)}
"""An observation of each of the two agents of `TWO`."""

MakeServer = Callable[..., PolicyServer]


def make_plan(
    algorithm: str, agents: Mapping[str, Space | tuple[Space, Space]], **fields: Any
) -> ServerPlan:
    """Returns the plan of a server.

    Args:
        algorithm: of the server.
        agents: by agent: its observation space; it then has three actions, and agents whose
            observations have equally many dimensions share a policy. Or its observation and action
            spaces; it then has a policy of its own.
        fields: further fields of the plan.
    """
    group_of = {a: group for group, members in fields.get("groups", {}).items() for a in members}
    plans = {}
    for agent, given in agents.items():
        spaces = given if isinstance(given, tuple) else (given, Discrete(3))
        own = agent if spaces is given else f"policy_{len(getattr(given, 'shape', ()))}"
        group = group_of.get(agent)
        plans[agent] = AgentPlan(group or own, *spaces, group)
    defaults: dict[str, Any] = {
        "server_id": algorithm.lower(),
        "groups": {},
        "state_size": None,
        "while_learning": "wait",
        "host": "127.0.0.1",
    }
    return ServerPlan(**{"algorithm": algorithm, "agents": plans, **defaults, **fields})


PPO_SETTINGS: dict[str, Any] = {
    "train_batch_size_per_learner": 40,
    "minibatch_size": 20,
    "num_epochs": 1,
}
SMALL_MODEL: dict[str, Any] = {"fcnet_hiddens": [8]}


def ppo_plan(**fields: Any) -> ServerPlan:
    """Returns the plan of a server that learns from every 40 steps of a and b."""
    return make_plan("PPO", TWO, **{"settings": PPO_SETTINGS, "model": SMALL_MODEL, **fields})


@contextlib.contextmanager
def running(plan: ServerPlan, **how: Any) -> Iterator[PolicyServer]:
    """Yields a server that has started; stops it afterwards."""
    server = PolicyServer(plan, **how)
    server.start()
    try:
        yield server
    finally:
        assert server.stop(), "all threads ended in time"


def wait_until(condition: Callable[[], bool], patience_s: float = 60.0) -> None:
    deadline = time.monotonic() + patience_s
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def make_counter(
    agent_id: str, observation_space: Any, action_space: Any, seed: int
) -> Callable[[Any], int]:
    """Returns a scripted policy that counts its episode's steps, modulo the number of actions."""
    steps = itertools.count()
    return lambda observation: next(steps) % int(action_space.n)


class Peer:
    """Sends items to a server and returns its replies."""

    def __init__(self, transport: Transport) -> None:
        self.transport = transport

    def say(self, *items: AnyItem) -> list[AnyReply]:
        self.transport.send(items)
        return self.transport.receive()

    def ask(self, item: AnyItem) -> AnyReply:
        (reply,) = self.say(item)
        return reply
