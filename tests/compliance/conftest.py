"""Real policy servers in this process, and the transports that reach them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.compliance.real_servers import (
    MAX_BYTES,
    PPO_SETTINGS,
    SEES,
    SMALL_MODEL,
    TOKEN,
    MakeServer,
    make_plan,
)

from muxrl.servers.config import LimitsConfig, ServerPlan
from muxrl.servers.server import PolicyServer


@pytest.fixture(scope="session")
def one_thread() -> None:
    """For servers that learn in this process."""
    torch.set_num_threads(1)


@pytest.fixture(scope="module")
def make_server(one_thread: None) -> Iterator[MakeServer]:
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


@pytest.fixture(scope="session")
def checkpoint(one_thread: None, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Of a PPO server that has not learned anything yet."""
    agents = {agent: SEES[agent] for agent in "ab"}
    server = PolicyServer(make_plan("PPO", agents, settings=PPO_SETTINGS, model=SMALL_MODEL))
    path = server.policies.save(tmp_path_factory.mktemp("checkpoint"))
    assert path is not None
    assert server.stop()
    return path


@pytest.fixture(scope="module", params=["PPO", "RANDOM", "SCRIPTED", "FROZEN"])
def server(
    request: pytest.FixtureRequest, make_server: MakeServer, checkpoint: Path
) -> PolicyServer:
    """One of each kind: a learning one like `ppo`, and those that do not learn."""
    settings: dict[str, Any] = {
        "PPO": PPO_SETTINGS,
        "RANDOM": {},
        "SCRIPTED": {"policy": "tests.compliance.real_servers:make_counter"},
        "FROZEN": {"checkpoint": str(checkpoint)},
    }[request.param]
    model = SMALL_MODEL if request.param == "PPO" else {}
    agents = {agent: SEES[agent] for agent in "ab"}
    limits = LimitsConfig(max_episodes=8, max_message_bytes=MAX_BYTES)
    return make_server(
        make_plan(request.param, agents, settings=settings, model=model, token=TOKEN,
                  limits=limits)
    )  # fmt: skip
