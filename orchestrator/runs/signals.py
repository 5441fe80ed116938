"""How a run is told to end from outside, and how its way out is kept free.

Ctrl-C and SIGTERM are the same: the first of them raises `KeyboardInterrupt` and ends what goes on,
those that follow find nothing left to interrupt. Whoever begins a way out without having been told
to calls `ignore_signals` first.
"""

from __future__ import annotations

import contextlib
import signal
from collections.abc import Iterator

_NUMBERS = (signal.SIGINT, signal.SIGTERM)


def claim_signals() -> None:
    """Lets the next Ctrl-C or SIGTERM raise `KeyboardInterrupt`, and all after it do nothing.

    A Ctrl-C that this process ignores from birth, as one in a script's background does, stays so.
    To be called again after `ray.init`, which puts a handler of its own on SIGTERM.
    """
    _set(_interrupt)


def ignore_signals() -> None:
    """Lets the way out be gone to its end: a signal there would leave processes behind."""
    _set(signal.SIG_IGN)


@contextlib.contextmanager
def interruptible() -> Iterator[None]:
    """`claim_signals` while the ``with`` block lasts; then all is as it was before."""
    with _restored():
        claim_signals()
        yield


@contextlib.contextmanager
def uninterrupted() -> Iterator[None]:
    """`ignore_signals` while the ``with`` block lasts; then all is as it was before."""
    with _restored():
        ignore_signals()
        yield


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
    with contextlib.suppress(ValueError):  # not the main thread: the caller's signals are his
        for number in _NUMBERS:
            if signal.getsignal(number) is not signal.SIG_IGN:
                signal.signal(number, handler)  # type: ignore[arg-type]
