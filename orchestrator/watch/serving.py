"""Serves the page on a port of this machine."""

from __future__ import annotations

import contextlib
import os
import socket
from pathlib import Path

import uvicorn

from muxrl.orchestrator.supervise.child import when_alone
from muxrl.orchestrator.watch.app import make_app

_NICENESS = 10
"""Niceness of a page next to a run: the run's own processes come first."""


def serve(root: Path, listening: socket.socket) -> None:
    """Serves the page of `root` until Ctrl-C.

    Args:
        root: a run, a sweep, or a folder of runs.
        listening: the socket to which browsers connect.
    """
    with contextlib.suppress(KeyboardInterrupt):
        _server(root).run(sockets=[listening])


def serve_page(root: Path, descriptor: int) -> None:
    """Serves the page in a `Child` of another process, as long as that process lives.

    Args:
        root: a run or a sweep.
        descriptor: of the inherited listening socket.
    """
    os.nice(_NICENESS)
    server = _server(root)
    when_alone(lambda: setattr(server, "should_exit", True))
    with socket.socket(fileno=descriptor) as listening:
        server.run(sockets=[listening])


def _server(root: Path) -> uvicorn.Server:
    server = uvicorn.Server(
        uvicorn.Config(
            make_app(root, lambda: server.should_exit),
            http="h11",  # httptools, if installed, would read heads of any size
            log_config=None,
            access_log=False,
            lifespan="off",
            proxy_headers=False,
            timeout_graceful_shutdown=5,
        )
    )
    return server
