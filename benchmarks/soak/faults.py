"""Faults for the processes of a run, in an order that depends on a seed."""

from __future__ import annotations

import contextlib
import os
import random
import signal
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Literal, get_args

Kind = Literal[
    "kill a server", "kill a simulation", "stop a server", "kill the evaluation", "pause"
]
PAUSE_S = 3.0
"""Much less than `timeouts.report_s`, so that a process that is stopped for so long is not lost."""


@dataclass(frozen=True)
class Fault:
    """A kind of fault, and the process that it happens to."""

    kind: Kind
    victim: str

    @property
    def is_loss(self) -> bool:
        """Whether the process has to be started again."""
        return self.kind != "pause"

    def do(self, pid: int) -> None:
        """Causes the fault in a process; a paused process continues later.

        Raises:
            ProcessLookupError: there is no such process.
        """
        if self.kind == "stop a server":
            os.kill(pid, signal.SIGSTOP)
        elif self.kind == "pause":
            os.kill(pid, signal.SIGSTOP)
            threading.Timer(PAUSE_S, _go_on, (pid,)).start()
        else:
            os.kill(pid, signal.SIGKILL)

    def __str__(self) -> str:
        return f"{self.kind}: {self.victim}"


def _go_on(pid: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGCONT)


def faults(seed: int, servers: Sequence[str], simulations: Sequence[str]) -> Iterator[Fault]:
    """Yields faults for ever: all kinds once in random order, then all again in another order."""
    rng = random.Random(seed)
    victims: dict[Kind, Callable[[], str]] = {
        "kill a server": lambda: rng.choice(servers),
        "kill a simulation": lambda: rng.choice(simulations),
        "stop a server": lambda: rng.choice(servers),
        "kill the evaluation": lambda: "evaluation",
        "pause": lambda: rng.choice([*servers, *simulations]),
    }
    while True:
        kinds = list(get_args(Kind))
        rng.shuffle(kinds)
        for kind in kinds:
            yield Fault(kind, victims[kind]())
