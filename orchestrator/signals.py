"""How a run is told to end from outside, and how its way out is kept free."""

from __future__ import annotations

import contextlib
import signal
from collections.abc import Iterator


def _interrupt(*_: object) -> None:
    raise KeyboardInterrupt


def claim_sigterm() -> None:
    """A polite kill ends a run as Ctrl-C does.

    To be called again after `ray.init`, which puts a handler there that aborts the process.
    """
    with contextlib.suppress(ValueError):  # not the main thread: the caller's signals are his
        signal.signal(signal.SIGTERM, _interrupt)


@contextlib.contextmanager
def sigterm_as_interrupt() -> Iterator[None]:
    """`claim_sigterm` while the ``with`` block lasts."""
    before = signal.getsignal(signal.SIGTERM)
    claim_sigterm()
    try:
        yield
    finally:
        with contextlib.suppress(ValueError):
            signal.signal(signal.SIGTERM, before)


@contextlib.contextmanager
def interrupts_ignored() -> Iterator[None]:
    """Lets the way out be gone to its end; a second Ctrl-C would leave processes behind."""
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        for number in before:
            signal.signal(number, signal.SIG_IGN)
    except ValueError:  # not the main thread
        yield
        return
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
