"""Two scripted servers, and a client of both."""

from __future__ import annotations

import pytest
from tests.client.scripted_servers import Log, Server

from muxrl.client import MultiplexingClient


@pytest.fixture
def log() -> Log:
    return []


@pytest.fixture
def left(log: Log) -> Server:
    return Server("left", "ab", log)


@pytest.fixture
def right(log: Log) -> Server:
    return Server("right", "c", log)


@pytest.fixture
def client(left: Server, right: Server) -> MultiplexingClient:
    return MultiplexingClient([left, right])
