"""Real policy servers in this process, and the carriers that reach them."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest
import torch
from real_servers import (
    MAX_BYTES,
    PPO_SETTINGS,
    SEES,
    SMALL_MODEL,
    TOKEN,
    MakeServer,
    Peer,
    carrier_to,
    make_plan,
)

from servers.config import LimitsConfig, ServerPlan
from servers.server import PolicyServer


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
