"""Serves the live page of a run or a sweep, in a separate process that cannot slow it down."""

from __future__ import annotations

import contextlib
import logging
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from muxrl.orchestrator.supervise.child import Child

logger = logging.getLogger(__name__)

_HOST = "127.0.0.1"
_END_S = 10.0
"""How long the page may take to send its last news."""
_TOO_SOON_S = 10.0
"""A page that ends so soon after its start is not started again."""
_SERVE = (
    "import sys, pathlib; from muxrl.orchestrator.watch.serving import serve_page; "
    "serve_page(pathlib.Path(sys.argv[1]), int(sys.argv[2]))"
)


def listen(port: int) -> socket.socket:
    """Returns a listening socket to which browsers on this machine can connect.

    Args:
        port: its port; 0: any free port.

    Raises:
        OSError: the port is taken.
        OverflowError: the number is no port.
    """
    listening = socket.socket()
    try:
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listening.bind((_HOST, port))
        listening.listen()
    except BaseException:
        listening.close()
        raise
    return listening


def address_of(listening: socket.socket) -> str:
    """Returns the URL to open in a browser."""
    return "http://{}:{}".format(*listening.getsockname())


@contextlib.contextmanager
def page_of(folder: Path, is_wanted: bool, say: Callable[..., object]) -> Iterator[None]:
    """Serves the page of a directory while the ``with`` block lasts.

    The page's process ends with this one, however this one ends; see `Child`. Ctrl-C ends the run
    first, so that the page shows its end. If the page's process is lost, it is started again at the
    same address. A page that cannot be served is logged, and never ends a run.

    Args:
        folder: the directory of a run or a sweep.
        is_wanted: whether to serve the page; if not, nothing happens.
        say: called with a sentence with the page's address.
    """
    with contextlib.ExitStack() as stack:
        if is_wanted:
            try:
                listening = stack.enter_context(listen(0))
                stack.callback(_Page(folder, listening).end)
                say(f"watch it: {address_of(listening)}", soft_wrap=True, highlight=False)
            except OSError as error:
                logger.warning("cannot serve the live page of %s: %s", folder, error)
        yield


class _Page:
    """The process of a page; if it is lost before `end`, it is started again."""

    def __init__(self, folder: Path, listening: socket.socket) -> None:
        self._folder, self._listening = folder, listening
        self._lock = threading.Lock()
        self._is_over = False
        self._process = self._start()
        self._watcher = threading.Thread(target=self._watch, daemon=True)
        self._watcher.start()

    def _start(self) -> Child:
        number = self._listening.fileno()
        command = [sys.executable, "-c", _SERVE, str(self._folder), str(number)]
        self._began_at = time.monotonic()
        return Child(command, pass_fds=[number])

    def _watch(self) -> None:
        while True:
            code = self._process.wait()
            with self._lock:
                if self._is_over:
                    return
                self._process.end(0.0)  # closes its pipe
                lost = f"the live page has ended (exit code {code})"
                if time.monotonic() - self._began_at < _TOO_SOON_S:
                    logger.warning("%s soon after its start; it is not started again", lost)
                    self._listening.close()
                    return
                address = address_of(self._listening)
                logger.warning("%s; it is started again at %s", lost, address)
                try:
                    self._process = self._start()
                except OSError as error:
                    logger.warning("cannot serve the live page of %s: %s", self._folder, error)
                    return

    def end(self) -> None:
        with self._lock:
            self._is_over = True
        self._process.end(_END_S)
        self._watcher.join()
