"""A TCP proxy in front of a server that can be cut, hang, or swallow what it carries."""

from __future__ import annotations

import contextlib
import math
import selectors
import socket
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

_CHUNK = 1 << 16
_TICK_S = 0.02
_HALF = 20
"""So many bytes of an answer are passed on before it is cut; they end within its HTTP head."""


@dataclass
class _End:
    """One end of a connection through the link."""

    socket: socket.socket
    is_clients: bool
    peer: _End | None = None
    carries_frames: bool = False
    """Whether the connection carries steps, and not a request for the status."""
    is_shaken: bool = False
    """Whether the server's answer to the WebSocket's handshake has passed."""


class Link:
    """Passes bytes on between clients and one server.

    Args:
        target: the server's "host:port"; may be changed.

    Clients connect to `address`. In the `state` "up" the link passes all bytes on. In "down" it
    refuses connections, as a machine does whose server has ended. In "hung" it takes connections,
    but is silent. It carries `bytes_per_s`.
    """

    def __init__(self, target: str) -> None:
        self.target = target
        self.bytes_per_s = math.inf
        self.num_opened = 0
        self.num_swallowed = 0
        self._should_swallow: set[str] = set()
        self._state: Literal["up", "down", "hung"] = "up"
        self._lock = threading.Lock()
        self._is_closed = False
        self._ends: list[_End] = []
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._listener.setblocking(False)
        self._port = int(self._listener.getsockname()[1])
        self.address = f"127.0.0.1:{self._port}"
        self._thread = threading.Thread(target=self._run, name="link", daemon=True)
        self._thread.start()

    def set(self, state: Literal["up", "down", "hung"]) -> None:
        with self._lock:
            if state == "down" and self._state != "down":
                self._listener.close()
                self._cut()
                # Bound but not listening, it refuses connections and keeps the port from others.
                self._listener = socket.socket()
                self._listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                self._listener.bind(("127.0.0.1", self._port))
                self._listener.setblocking(False)
            if state != "down" and self._state == "down":
                self._listener.listen()
            if state == "up" and self._state == "hung":
                self._cut()
            self._state = state

    def cut(self) -> None:
        """Closes all connections."""
        with self._lock:
            self._cut()

    def swallow(self, what: Literal["frame", "answer", "half"]) -> None:
        """Lets the next frame, or the next answer to a frame, disappear; the connection stays open.

        "half" passes on the first bytes of the next answer and then closes the connection.
        """
        with self._lock:
            self._should_swallow.add(what)

    def close(self) -> None:
        with self._lock:
            self._is_closed = True
        self._thread.join()
        self._listener.close()
        self._cut()

    def __enter__(self) -> Link:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _cut(self) -> None:
        for end in self._ends:
            with contextlib.suppress(OSError):
                end.socket.close()
        self._ends = []

    def _run(self) -> None:
        while True:
            with self._lock:
                if self._is_closed:
                    return
                watched = [end.socket for end in self._ends if end.socket.fileno() >= 0]
                if self._state != "down":
                    watched.append(self._listener)
            if self._state == "hung":
                watched = watched[-1:]
            for ready in _readable(watched):
                with self._lock:
                    if ready is self._listener:
                        self._accept()
                    else:
                        self._pass_on(next((e for e in self._ends if e.socket is ready), None))

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            client, _ = self._listener.accept()
            self.num_opened += 1
            end = _End(client, is_clients=True)
            if self._state == "up":
                host, port = self.target.rsplit(":", 1)
                try:
                    server = socket.create_connection((host, int(port)), 5.0)
                except OSError:
                    client.close()
                    return
                end.peer = _End(server, is_clients=False, peer=end)
                self._ends.append(end.peer)
            self._ends.append(end)

    def _pass_on(self, end: _End | None) -> None:
        if end is None or end.peer is None or self._state != "up":
            return
        try:
            data = end.socket.recv(_CHUNK)
            if data and not self._swallows(end, end.peer, data):
                end.peer.socket.sendall(data)
                time.sleep(len(data) / self.bytes_per_s)
        except OSError:
            data = b""
        if not data:
            for one in (end, end.peer):
                one.socket.close()
                if one in self._ends:
                    self._ends.remove(one)

    def _swallows(self, end: _End, peer: _End, data: bytes) -> bool:
        what = "frame" if end.is_clients else "answer"
        carrier = end if end.is_clients else peer
        is_handshake = False
        if end.is_clients and data.startswith((b"GET /v1/ws", b"POST /v1/step")):
            carrier.carries_frames = True
            is_handshake = data.startswith(b"GET")
            carrier.is_shaken = not is_handshake
        elif not end.is_clients and not carrier.is_shaken:
            carrier.is_shaken = is_handshake = True
        if not carrier.carries_frames or is_handshake:
            return False
        if not end.is_clients and "half" in self._should_swallow:
            self._should_swallow.discard("half")
            peer.socket.sendall(data[:_HALF])
            raise ConnectionError("cut in the middle of an answer")
        if what not in self._should_swallow:
            return False
        self._should_swallow.discard(what)
        self.num_swallowed += 1
        return True


def _readable(sockets: list[socket.socket]) -> Iterator[socket.socket]:
    with selectors.DefaultSelector() as selector:
        for one in sockets:
            with contextlib.suppress(ValueError, KeyError, OSError):
                selector.register(one, selectors.EVENT_READ)
        for key, _ in selector.select(_TICK_S):
            assert isinstance(key.fileobj, socket.socket)
            yield key.fileobj
