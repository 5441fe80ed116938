"""A client of another language, used by two threads at a time or by a fork, refuses the second."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from tests.client.standalone.test_clients import BUILDS, HERE, run

ANSWERS_AFTER_S = 1.5
"""While the program's other thread waits for an answer."""


class Slow(BaseHTTPRequestHandler):
    """A server that takes its time to start an episode."""

    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        self._answer({"protocol_version": 1})

    def do_POST(self) -> None:
        (item,) = json.loads(self.rfile.read(int(self.headers["Content-Length"])))["items"]
        if item["type"] == "start":
            time.sleep(ANSWERS_AFTER_S)
        kind = {"start": "started", "abort": "aborted"}[item["type"]]
        self._answer({"replies": [{"type": kind, "episode_id": item["episode_id"]}]})

    def _answer(self, reply: object) -> None:
        body = json.dumps(reply).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        """Says nothing."""


@pytest.fixture
def address() -> Iterator[str]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), Slow)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()


def test_java(address: str, tmp_path: Path) -> None:
    said = run(*BUILDS["java"](tmp_path, HERE / "Shared.java"), address).splitlines()
    refusal = "thread 'main' uses this client while thread 'waiting' waits for an answer; make a"
    assert said == [f"{refusal} client in each thread", "started", "started"]


def test_cpp(address: str, tmp_path: Path) -> None:
    said = run(*BUILDS["cpp"](tmp_path, HERE / "shared.cpp"), address).splitlines()
    assert said[0].startswith("a thread uses this client while another one waits for an answer")
    assert said[1:3] == ["started", "started"]
    (forked,) = [line for line in said[3:] if line != "started"]
    assert "a fork of it, uses its connection; make a client in each process" in forked
    assert said[3:].count("started") == 1
