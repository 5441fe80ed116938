"""Serves a front on a port, with uvicorn in a thread; the front may be replaced by another."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
import socket
import threading
import time
from collections.abc import Callable, Coroutine
from typing import Any, NamedTuple, cast

import uvicorn

from muxrl.servers.network.front import Front
from muxrl.servers.network.http import make_asgi_app
from muxrl.servers.network.http_connection import MAX_HEAD_BYTES, HttpConnection
from muxrl.servers.network.websocket import WebSocketConnection

logger = logging.getLogger(__name__)

_START_TIMEOUT_S = 30.0


class CannotListen(Exception):
    """The port is taken, or the network did not come up."""


class _Shown(NamedTuple):
    front: Front
    asgi_app: Callable[..., Coroutine[Any, Any, None]]
    background: Callable[[], Coroutine[Any, Any, object]]
    max_connections: int


class Network:
    """The socket, the event loop and its thread. Listens at once, and answers after `start`.

    Args:
        who: for messages, such as "server 'qmix'".
        host: address to listen on.
        port: 0 takes a free one.

    Raises:
        CannotListen: the port is taken.
    """

    def __init__(self, who: str, host: str, port: int) -> None:
        self._who = who
        self._socket = _listen(who, host, port)
        bound_host, bound_port = self._socket.getsockname()[:2]
        self.address = f"{f'[{bound_host}]' if ':' in bound_host else bound_host}:{bound_port}"
        self.problem = ""
        """Why it has stopped answering; "" while it answers."""
        self._uvicorn: _Uvicorn | None = None
        self._thread = threading.Thread(target=self._serve, name="server", daemon=False)
        self._loop: asyncio.AbstractEventLoop | None = None
        self._shown: _Shown
        self._task: asyncio.Task[object]

    def start(
        self,
        front: Front,
        background: Callable[[], Coroutine[Any, Any, object]],
        *,
        max_connections: int,
        keep_alive_s: float,
    ) -> None:
        """Begins to answer; called again, it lets another front answer from then on.

        Args:
            front: gives the answers.
            background: runs in the event loop until it is cancelled.
            max_connections: most connections at a time.
            keep_alive_s: how long a connection may be silent: as long as its episodes. The value of
                the first call is kept.

        Raises:
            CannotListen: the network did not come up.
        """
        shown = _Shown(front, make_asgi_app(front), background, max_connections)
        if self._loop is not None:
            asyncio.run_coroutine_threadsafe(self._show(shown), self._loop).result(_START_TIMEOUT_S)
            return
        self._shown = shown
        self._uvicorn = _Uvicorn(
            uvicorn.Config(
                self._answer,
                interface="asgi3",
                loop="uvloop",
                # Any callable that returns a protocol will do; uvicorn passes its own arguments.
                http=lambda **given: HttpConnection(  # type: ignore[arg-type]
                    max_connections=self._shown.max_connections, **given
                ),
                h11_max_incomplete_event_size=MAX_HEAD_BYTES,
                timeout_keep_alive=math.ceil(keep_alive_s),
                # No compression, since frames are small, and no pings: a simulation may need
                # minutes for a step, and a lost one is noticed when its episodes expire.
                ws=lambda **given: WebSocketConnection(self._shown.front, **given),  # type: ignore[arg-type]
                proxy_headers=False,
                lifespan="off",
                log_config=None,
                access_log=False,
                timeout_graceful_shutdown=2,
            )
        )
        self._thread.start()
        deadline = time.monotonic() + _START_TIMEOUT_S
        while not self._uvicorn.started:
            if not self._thread.is_alive() or time.monotonic() > deadline:
                raise CannotListen(f"{self._who} could not open {self.address}")
            time.sleep(0.005)

    def cut(self) -> None:
        """Breaks off all connections, as a failing network would; called on the event loop."""
        assert self._uvicorn is not None
        for connection in list(self._uvicorn.server_state.connections):
            cast(HttpConnection | WebSocketConnection, connection).transport.abort()

    def stop(self, timeout_s: float) -> bool:
        """Closes all connections and the port; returns whether the thread ended in time."""
        if self._uvicorn is not None:
            self._uvicorn.should_exit = True
            if self._loop is not None:
                with contextlib.suppress(RuntimeError):  # the loop is closed: it has ended
                    self._loop.call_soon_threadsafe(self._uvicorn.woken.set)
        if self._thread.ident is not None:
            self._thread.join(timeout_s)
        self._socket.close()
        return not self._thread.is_alive()

    async def _answer(self, scope: Any, receive: Any, send: Any) -> None:
        await self._shown.asgi_app(scope, receive, send)

    async def _show(self, shown: _Shown) -> None:
        self._task.cancel()
        self._shown = shown
        self._task = asyncio.create_task(shown.background())

    def _serve(self) -> None:
        async def serve() -> None:
            assert self._uvicorn is not None
            self._loop = asyncio.get_running_loop()
            self._task = asyncio.create_task(self._shown.background())
            try:
                await self._uvicorn.serve(sockets=[self._socket])
            finally:
                self._task.cancel()

        import uvloop

        try:
            with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
                runner.run(serve())
        except Exception as error:  # the top of the thread: nothing else would report it
            logger.exception("%s has stopped answering, by an error", self._who)
            self.problem = f"it has stopped answering: {type(error).__name__}: {error}"


class _Uvicorn(uvicorn.Server):
    """Checks `should_exit` when it is `woken`; uvicorn itself would check ten times a second."""

    def __init__(self, config: uvicorn.Config) -> None:
        super().__init__(config)
        self.woken = asyncio.Event()

    async def main_loop(self) -> None:
        """Renews once a second the date that uvicorn sends with each answer."""
        while not await self.on_tick(0):
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self.woken.wait(), 1.0)


def _listen(who: str, host: str, port: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    sock = socket.socket(family, socket.SOCK_STREAM)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        sock.bind((host, port))
    except OSError as error:
        sock.close()
        raise CannotListen(
            f"{who} cannot listen on {host}:{port}: {error.strerror}; is another server running "
            "there? (port: 0 takes a free port)"
        ) from None
    sock.listen(1024)
    return sock
