"""Samples memory, descriptors and threads of a run's processes, and checks that they stay flat."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

_PAGE_MIB = os.sysconf("SC_PAGE_SIZE") / 2**20
_WARM_UP_PART = 1 / 3
_WARM_UP_S = 45.0
"""This part of a process's life, and at least this many seconds, is left out: imports, first
batches, replays that fill."""
_MIN_WINDOW_S = 20.0
"""Over less than this a slope says nothing."""
_OF_A_WORKER = 3
"""Descriptors of Ray 2.60's raylet for each child, a worker; workers come and go with faults."""


@dataclass(frozen=True)
class Sample:
    """One process at one moment."""

    at_s: float
    rss_mib: float
    descriptors: int
    threads: int

    @classmethod
    def of(cls, pid: int, at_s: float, *, per_child: int = 0) -> Sample:
        """Reads a sample of a process.

        Args:
            pid: of the process.
            at_s: the time now.
            per_child: descriptors that the process holds for each child, which do not count.

        Raises:
            OSError: the process has ended.
        """
        folder = Path(f"/proc/{pid}")
        children = (folder / "task" / str(pid) / "children").read_text() if per_child else ""
        stat = (folder / "stat").read_text().rpartition(")")[2].split()
        return cls(
            at_s,
            int((folder / "statm").read_text().split()[1]) * _PAGE_MIB,
            len(os.listdir(folder / "fd")) - per_child * len(children.split()),
            int(stat[17]),
        )


@dataclass(frozen=True)
class Bound:
    """How much a process may grow over the sampled time, by a fitted straight line."""

    rss_mib: float = 16.0
    rss_part: float = 0.1
    """Share of the process's memory, by which it may grow in addition."""
    descriptors: float = 8.0
    threads: float = 4.0

    def of(self, life: Life) -> dict[str, float]:
        """Returns by quantity the limits for one process."""
        return {
            "rss_mib": self.rss_mib + self.rss_part * life.settled[0].rss_mib,
            "descriptors": self.descriptors,
            "threads": self.threads,
        }


@dataclass
class Life:
    """One process under one name, since it has had that name."""

    name: str
    pid: int
    samples: list[Sample] = field(default_factory=list)

    @property
    def lasted_s(self) -> float:
        """Seconds between the first sample and the last."""
        return self.samples[-1].at_s - self.samples[0].at_s

    @property
    def settled(self) -> list[Sample]:
        """The samples after the warm-up."""
        warm_up_s = max(_WARM_UP_S, _WARM_UP_PART * self.lasted_s)
        return [s for s in self.samples if s.at_s - self.samples[0].at_s >= warm_up_s]

    def growth(self, what: str) -> float:
        """Returns the slope of `what` after the warm-up, times its length."""
        settled = self.settled
        times = [sample.at_s for sample in settled]
        return fitted_growth(times, [getattr(sample, what) for sample in settled])

    def problems(self, bound: Bound) -> list[str]:
        """Returns a sentence for each quantity that grows by more than its bound."""
        return [
            f"{self.name} (pid {self.pid}): {what} grew by {self.growth(what):.1f}, at most "
            f"{limit:.1f} were expected"
            for what, limit in bound.of(self).items()
            if self.growth(what) > limit
        ]


def fitted_growth(times: Sequence[float], values: Sequence[float]) -> float:
    """Returns the growth of the line of best fit (least squares) from first to last time."""
    if len(times) < 2:
        return 0.0
    slope = np.polyfit(np.asarray(times) - times[0], np.asarray(values, float), 1)[0]
    return float(slope) * (times[-1] - times[0])


class Samples:
    """The lives of all processes of a run."""

    def __init__(self) -> None:
        self._lives: dict[tuple[int, str, str], Life] = {}

    def take(self, pid: int, started_at: str, name: str, at_s: float) -> None:
        """Samples a process, unless it has just ended."""
        try:
            sample = Sample.of(pid, at_s, per_child=_OF_A_WORKER if name == "raylet" else 0)
        except OSError:
            return
        # By name, too, since Ray's workers first wait without a name.
        life = self._lives.setdefault((pid, started_at, name), Life(name, pid))
        life.samples.append(sample)

    def lives(self) -> dict[str, list[Life]]:
        """Returns all lives by name, oldest first."""
        by_name: dict[str, list[Life]] = {}
        for life in self._lives.values():
            by_name.setdefault(life.name, []).append(life)
        return dict(sorted(by_name.items()))

    def long(self, at_least_s: float) -> list[Life]:
        """Returns the lives that lasted at least this long, and long enough for a slope."""
        at_least_s = max(at_least_s, _WARM_UP_S + _MIN_WINDOW_S)
        return [life for life in self._lives.values() if life.lasted_s >= at_least_s]
