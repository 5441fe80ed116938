"""How Ctrl-C, SIGTERM and SIGHUP (a terminal that is gone) end a run, and not its shutdown.

All are the same: the first one raises `KeyboardInterrupt`, and all after it do nothing. A shutdown
that begins for another reason calls `ignore_signals` first.
"""

from __future__ import annotations

import contextlib
import signal
from collections.abc import Iterator

_NUMBERS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


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


@contextlib.contextmanager
def interruptible() -> Iterator[None]:
    """`claim_signals` while the ``with`` block lasts; then the old handlers are back."""
    with _restored():
        claim_signals()
        yield


@contextlib.contextmanager
def uninterrupted() -> Iterator[None]:
    """`ignore_signals` while the ``with`` block lasts; then the old handlers are back."""
    with _restored():
        ignore_signals()
        yield


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
def _restored() -> Iterator[None]:
    before = {number: signal.getsignal(number) for number in _NUMBERS}
    try:
        yield
    finally:
        with contextlib.suppress(ValueError):  # as in _set
            for number, handler in before.items():
                signal.signal(number, handler)


def _interrupt(*_: object) -> None:
    ignore_signals()
    raise KeyboardInterrupt


def _set(handler: object) -> None:
    with contextlib.suppress(ValueError):  # only the main thread may set handlers
        for number in _NUMBERS:
            if signal.getsignal(number) is not signal.SIG_IGN:
                signal.signal(number, handler)  # type: ignore[arg-type]
