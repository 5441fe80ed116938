"""Real policy servers in this process, and the carriers that reach them."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch

from client.http import HttpTransport
from client.random_policy import RandomTransport
from client.transport import AnyItem, Transport
from client.websocket import WebSocketTransport
from protocol.messages import AnyReply
from protocol.spaces import Box, Discrete, Space
from servers.config import AgentPlan, LimitsConfig, ResourcesConfig, ServerPlan
from servers.server import PolicyServer

TOKEN = "open-sesame"
MAX_BYTES = 20_000
SEES: dict[str, Space] = {"a": Box((2,)), "b": Box((2,)), "c": Box((2, 2), "uint8", 0, 9)}

MakeServer = Callable[..., PolicyServer]


def make_plan(algorithm: str, agents: dict[str, Space], **fields: Any) -> ServerPlan:
    """Returns a plan; every kind of observation has its own policy."""
    groups: dict[str, tuple[str, ...]] = fields.get("groups", {})
    group_of = {member: group for group, members in groups.items() for member in members}
    policy_of: dict[str, str] = {}
    for agent, space in agents.items():
        policy_of[agent] = group_of.get(agent, f"policy_{len(getattr(space, 'shape', ()))}")
    defaults: dict[str, Any] = {
        "server_id": algorithm.lower(),
        "algorithm": algorithm,
        "agents": {
            agent: AgentPlan(policy_of[agent], space, Discrete(3), group_of.get(agent))
            for agent, space in agents.items()
        },
        "groups": {},
        "state_size": None,
        "team_reward": "sum",
        "settings": {},
        "model": {},
        "while_learning": "wait",
        "max_policy_lag": 1,
        "host": "127.0.0.1",
        "port": 0,
        "token": "",
        "seed": 0,
        "resources": ResourcesConfig(),
        "limits": LimitsConfig(),
    }
    return ServerPlan(**(defaults | fields))


PPO_SETTINGS: dict[str, Any] = {
    "train_batch_size_per_learner": 40,
    "minibatch_size": 20,
    "num_epochs": 1,
}
SMALL_MODEL: dict[str, Any] = {"fcnet_hiddens": [8]}


@pytest.fixture(scope="session")
def running_ray() -> Iterator[None]:
    """Ray, which RLlib hands weights over through; shut down again if it was started here."""
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    import ray

    torch.set_num_threads(1)
    is_ours = not ray.is_initialized()
    if is_ours:
        ray.init(num_cpus=1, include_dashboard=False, log_to_driver=False)
    yield
    if is_ours:
        ray.shutdown()


@pytest.fixture(scope="module")
def make_server(running_ray: None) -> Iterator[MakeServer]:
    """Starts servers, and stops them when the module is through."""
    servers: list[PolicyServer] = []

    def make(plan: ServerPlan) -> PolicyServer:
        server = PolicyServer(plan)
        servers.append(server)
        server.start()
        return server

    yield make
    for server in servers:
        assert server.stop(), "all threads ended in time"


@pytest.fixture(scope="module")
def ppo(make_server: MakeServer) -> PolicyServer:
    """A server that learns from every 40 steps, asks for a token, and takes short messages."""
    agents = {agent: SEES[agent] for agent in "ab"}
    limits = LimitsConfig(max_episodes=8, max_message_bytes=MAX_BYTES)
    return make_server(
        make_plan("PPO", agents, settings=PPO_SETTINGS, model=SMALL_MODEL, token=TOKEN,
                  limits=limits)
    )  # fmt: skip


class Peer:
    """Speaks to a server in items."""

    def __init__(self, transport: Transport) -> None:
        self.transport = transport
        self.opened = 0

    def say(self, *items: AnyItem) -> list[AnyReply]:
        self.transport.send(items)
        return self.transport.receive()

    def ask(self, item: AnyItem) -> AnyReply:
        (reply,) = self.say(item)
        return reply


def carrier_to(server: PolicyServer, name: str, **kwargs: Any) -> Transport:
    if name == "random":
        return RandomTransport(server.spec())
    kind = {"websocket": WebSocketTransport, "http": HttpTransport}[name]
    return kind(server.address, **{"token": TOKEN, "timeout_s": 20.0, **kwargs})


@pytest.fixture(params=["websocket", "http", "random"])
def any_peer(request: pytest.FixtureRequest, ppo: PolicyServer) -> Iterator[Peer]:
    """Each implementation of the seam in turn."""
    peer = Peer(carrier_to(ppo, request.param))
    yield peer
    peer.transport.close()


@pytest.fixture(params=["websocket", "http"])
def peer(request: pytest.FixtureRequest, ppo: PolicyServer) -> Iterator[Peer]:
    """Each carrier to the real server in turn."""
    peer = Peer(carrier_to(ppo, request.param))
    yield peer
    peer.transport.close()
