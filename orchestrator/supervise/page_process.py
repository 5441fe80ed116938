"""The page of a run or a sweep while it goes on, in a process of its own that cannot slow it."""

from __future__ import annotations

import contextlib
import logging
import socket
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

from muxrl.orchestrator.supervise.child import Child

logger = logging.getLogger(__name__)

_HOST = "127.0.0.1"
_END_S = 10.0
"""For the last news to be sent."""
_SERVE = (
    "import sys, pathlib; from muxrl.orchestrator.watch.serving import serve_beside; "
    "serve_beside(pathlib.Path(sys.argv[1]), int(sys.argv[2]))"
)


def listen(port: int) -> socket.socket:
    """Returns a socket on this machine that browsers can connect to from now on.

    Args:
        port: 0: any free one.

    Raises:
        OSError: it is taken.
        OverflowError: it is no port.
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
    """Returns what to open in a browser."""
    return "http://{}:{}".format(*listening.getsockname())


@contextlib.contextmanager
def page_beside(folder: Path, is_wanted: bool, say: Callable[..., object]) -> Iterator[None]:
    """Serves the page of a directory while the ``with`` block lasts.

    The process ends with this one, however that ends: see `Child`. Ctrl-C ends the run first, and
    the page shows it. A page that cannot be served is logged, and never ends a run.

    Args:
        folder: of a run or a sweep.
        is_wanted: else nothing happens.
        say: is told the page's address.
    """
    process = None
    if is_wanted:
        try:
            with listen(0) as listening:
                process = Child(
                    [sys.executable, "-c", _SERVE, str(folder), str(listening.fileno())],
                    pass_fds=[listening.fileno()],
                )
                say(f"watch it: {address_of(listening)}", soft_wrap=True, highlight=False)
        except OSError as error:
            logger.warning("there is no page of %s: %s", folder, error)
    try:
        yield
    finally:
        if process is not None:
            process.end(_END_S)
