"""Starts real policy servers in the process of the tests."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.compliance.real_servers import (
    MAX_BYTES,
    PPO_SETTINGS,
    SMALL_MODEL,
    TOKEN,
    TWO,
    MakeServer,
    make_plan,
    ppo_plan,
    running,
)

from muxrl.servers.config import LimitsConfig
from muxrl.servers.server import PolicyServer

LIMITED: dict[str, Any] = {
    "token": TOKEN,
    "limits": LimitsConfig(max_episodes=8, max_message_bytes=MAX_BYTES),
}
"""Fields of the plan of a server that requires a token and takes only short messages."""


@pytest.fixture(scope="session")
def one_thread() -> None:
    """Lets torch use one thread, for the servers that learn in this process."""
    torch.set_num_threads(1)


@pytest.fixture(scope="module")
def make_server(one_thread: None) -> Iterator[MakeServer]:
    """Gives a function that starts servers; they are stopped after the module's last test."""
    with contextlib.ExitStack() as stack:
        yield lambda plan: stack.enter_context(running(plan))


@pytest.fixture(scope="module")
def ppo(make_server: MakeServer) -> PolicyServer:
    return make_server(ppo_plan(**LIMITED))


@pytest.fixture(scope="session")
def checkpoint(one_thread: None, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Gives the checkpoint of a PPO server that has not learned anything yet."""
    server = PolicyServer(ppo_plan())
    path = server.policies.save(tmp_path_factory.mktemp("checkpoint"))
    assert path is not None
    assert server.stop()
    return path


@pytest.fixture(scope="module", params=["PPO", "RANDOM", "SCRIPTED", "FROZEN"])
def server(
    request: pytest.FixtureRequest, make_server: MakeServer, checkpoint: Path
) -> PolicyServer:
    """Gives one server of each kind: one that learns, like `ppo`, and those that do not learn."""
    settings: dict[str, Any] = {
        "PPO": PPO_SETTINGS,
        "RANDOM": {},
        "SCRIPTED": {"policy": "tests.compliance.real_servers:make_counter"},
        "FROZEN": {"checkpoint": str(checkpoint)},
    }[request.param]
    model = SMALL_MODEL if request.param == "PPO" else {}
    return make_server(make_plan(request.param, TWO, settings=settings, model=model, **LIMITED))
