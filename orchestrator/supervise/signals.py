"""Lets Ctrl-C, SIGTERM and SIGHUP (the terminal is closed) end a run, but never its shutdown.

All three do the same: the first signal raises `KeyboardInterrupt`, and all later ones do nothing. A
shutdown that begins for another reason calls `ignore_signals` first.

A signal during the import of a module raises when the import is done: Ray and torch catch whatever
is raised in between, continue half imported, and crash. In the event loop of a run a signal raises
between two callbacks: raised anywhere else, it might lose a callback.
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
"""How long a signal waits for an import to end before it interrupts it all the same."""
_LOOK_S = 0.05


def claim_signals() -> None:
    """Lets the next of these signals raise `KeyboardInterrupt`, and all later ones do nothing.

    A signal that was ignored when this process started stays ignored: Ctrl-C in a background job of
    a script, SIGHUP under ``nohup``. Call this again after `ray.init`, which sets another handler
    for SIGTERM.
    """
    _set(_interrupt)


def are_signals_claimed() -> bool:
    """Whether the next SIGTERM raises `KeyboardInterrupt`, and so ends a run cleanly."""
    return signal.getsignal(signal.SIGTERM) is _interrupt


def ignore_signals() -> None:
    """Ignores these signals: during shutdown, a signal would leave processes behind."""
    _set(signal.SIG_IGN)


def interruptible() -> contextlib.AbstractContextManager[None]:
    """`claim_signals` for the length of a ``with`` block, which then restores the old handlers."""
    return _restored_after(claim_signals)


def uninterrupted() -> contextlib.AbstractContextManager[None]:
    """`ignore_signals` for the length of a ``with`` block, which then restores the old handlers."""
    return _restored_after(ignore_signals)


@contextlib.contextmanager
def raised_between_callbacks(loop: asyncio.AbstractEventLoop) -> Iterator[None]:
    """Makes an event loop raise `KeyboardInterrupt` only when a callback is done."""
    _loops.add(loop)
    try:
        yield
    finally:
        _loops.discard(loop)


@contextlib.contextmanager
def without_hangup() -> Iterator[None]:
    """Blocks SIGHUP, for good, in the processes that this thread starts in the ``with`` block.

    A terminal that is closed sends SIGHUP to all of its processes. Processes that a run needs for
    its shutdown must not end by it; Ray protects them from Ctrl-C in the same way.
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
"""When a signal that waits for an import stops waiting (monotonic)."""
_again: threading.Timer | None = None
"""Sends the waiting signal again."""
_loops: set[asyncio.AbstractEventLoop] = set()
"""The event loops in which a signal raises between two callbacks."""


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
