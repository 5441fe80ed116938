"""How Ctrl-C, SIGTERM and SIGHUP (a terminal that is gone) end a run, and not its shutdown.

All are the same: the first one raises `KeyboardInterrupt`, and all after it do nothing. A shutdown
that begins for another reason calls `ignore_signals` first.

One that comes while a module is imported raises once it is: Ray and torch catch whatever is raised
in between, continue half imported, and crash. In the event loop of a run it raises between two
callbacks: anywhere else it might lose one.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from types import FrameType

_NUMBERS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_IMPORT_S = 10.0
"""For an import to end; after that it is interrupted all the same."""
_LOOK_S = 0.05


def claim_signals() -> None:
    """Lets the next of these signals raise `KeyboardInterrupt`, and all after it do nothing.

    One that was ignored when this process was started stays so: Ctrl-C in a script's background
    job, SIGHUP under ``nohup``. Call it again after `ray.init`, which sets a handler of its own
    for SIGTERM.
    """
    _set(_interrupt)


def are_signals_claimed() -> bool:
    """Whether the next SIGTERM raises `KeyboardInterrupt`, so that a run ends cleanly by it."""
    return signal.getsignal(signal.SIGTERM) is _interrupt


def ignore_signals() -> None:
    """Lets shutdown run to completion: a signal there would leave processes behind."""
    _set(signal.SIG_IGN)


def interruptible() -> contextlib.AbstractContextManager[None]:
    """`claim_signals` while the ``with`` block lasts; then the old handlers are back."""
    return _restored_after(claim_signals)


def uninterrupted() -> contextlib.AbstractContextManager[None]:
    """`ignore_signals` while the ``with`` block lasts; then the old handlers are back."""
    return _restored_after(ignore_signals)


@contextlib.contextmanager
def raised_between_callbacks(loop: asyncio.AbstractEventLoop) -> Iterator[None]:
    """Has an event loop raise `KeyboardInterrupt` when it is done with a callback."""
    _loops.add(loop)
    try:
        yield
    finally:
        _loops.discard(loop)


@contextlib.contextmanager
def without_hangup() -> Iterator[None]:
    """Blocks SIGHUP, for good, in the processes that this thread starts in the ``with`` block.

    A terminal that is gone tells all its processes. Those that a run needs for its shutdown must
    not end by themselves; Ray protects them in the same way from Ctrl-C.
    """
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGHUP})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


@contextlib.contextmanager
def _restored_after(change: Callable[[], None]) -> Iterator[None]:
    before = {number: signal.getsignal(number) for number in _NUMBERS}
    try:
        change()
        yield
    finally:
        with contextlib.suppress(ValueError):  # as in _set
            for number, handler in before.items():
                signal.signal(number, handler)


_waits_until = math.inf
"""When a signal that waits for an import has waited long enough."""
_again: threading.Timer | None = None
"""Sends the signal that waits once more."""
_loops: set[asyncio.AbstractEventLoop] = set()
"""In which it raises between two callbacks."""


def _interrupt(number: int, frame: FrameType | None) -> None:
    global _waits_until
    if _is_importing(frame):
        _waits_until = min(_waits_until, time.monotonic() + _IMPORT_S)
        if time.monotonic() < _waits_until:
            _send_later(number)
            return
    _waits_until = math.inf
    if _again is not None:
        _again.cancel()
    ignore_signals()
    if (loop := asyncio._get_running_loop()) in _loops:
        loop.call_soon_threadsafe(_raise)
    else:
        _raise()


def _raise() -> None:
    raise KeyboardInterrupt


def _send_later(number: int) -> None:
    global _again

    def send() -> None:
        global _again
        _again = None
        os.kill(os.getpid(), number)

    if _again is None:
        _again = threading.Timer(_LOOK_S, send)
        _again.daemon = True
        _again.start()


def _is_importing(frame: FrameType | None) -> bool:
    while frame is not None:
        if frame.f_code.co_filename.startswith("<frozen importlib"):
            return True
        frame = frame.f_back
    return False


def _set(handler: object) -> None:
    with contextlib.suppress(ValueError):  # only the main thread may set handlers
        for number in _NUMBERS:
            if signal.getsignal(number) is not signal.SIG_IGN:
                signal.signal(number, handler)  # type: ignore[arg-type]
