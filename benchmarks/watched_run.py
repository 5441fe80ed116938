"""Whether a page that somebody looks at slows a run, and whether a long run slows the page.

    python -m benchmarks.watched_run --pairs 30 --seconds 60 -- chase

One run with ``watch=true`` goes on for all the time. Its page is looked at in one of each two
stretches that follow each other, the first or the second in turn, so that a run whose pace drifts
is fair to both. What follows ``--`` is for ``muxrl launch``; evaluations and stop conditions are
left out. A page that nobody looks at reads nothing.

Prints for each pair the env steps per second with and without somebody who looks, their ratio, and
that of the processor time that servers and simulations take for an env step, which other work on
the machine changes less; of the page while it is looked at processor time, seconds from one piece
of news to the next, and the size of one. Then the median of the ratios, their quartiles, and a
95 % interval of their mean. Exit code 1: the run ended before that.
"""

from __future__ import annotations

import argparse
import contextlib
import http.client
import os
import signal
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

import numpy as np
from tests.faults.started import Started

from muxrl.orchestrator.measure.statistics import mean_interval
from muxrl.orchestrator.records.metrics import last_record

ENDLESS = ("stop.time_s=null", "stop.env_steps=1000000000", "evaluation.interval_env_steps=null",
           "evaluation.final_num_episodes=0", "watch=true")  # fmt: skip
ADDRESS = "watch it: "
WARM_UP_S = 20.0
START_S = 600.0
"""For a run to start, on a machine that is busy."""
_TICKS_PER_S = os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True)
class Stretch:
    """A stretch of the run."""

    env_steps_per_s: float
    cpu_s_per_step: float
    """Of servers and simulations."""
    page_cpu: float
    """Processor seconds of the page in a second."""
    news_s: float
    """Mean time from one piece of news to the next; NaN if nobody looked."""
    news_bytes: int
    """Of the last one."""


class WatchedRun:
    """A run that goes on, and the page beside it.

    Args:
        launched: the run.
        folder: its directory.
        output: the file with what it prints.
    """

    def __init__(self, launched: Started, folder: Path, output: Path) -> None:
        self._joint = folder / "metrics" / "joint.jsonl"
        launched.wait_for(
            "steps", lambda: bool((last_record(self._joint) or {}).get("env_steps")), START_S
        )
        (line,) = (line for line in output.read_text().splitlines() if line.startswith(ADDRESS))
        self._host = urlsplit(line.split()[-1]).netloc
        (self._page,) = (
            process.pid
            for process in launched.started()
            if b"serve_beside" in Path(f"/proc/{process.pid}/cmdline").read_bytes()
        )

    def play(self, seconds: float, *, is_watched: bool) -> Stretch:
        """Lets a stretch of the run pass."""
        until = time.monotonic() + seconds
        before, cpu_before = self._counts(), self._cpu_s()
        began = time.monotonic()
        if is_watched:
            num_news, num_bytes = self._look(until)
        else:
            num_news, num_bytes = 0, 0
            time.sleep(seconds)
        passed = time.monotonic() - began
        after = self._counts()
        return Stretch(
            (after[1] - before[1]) / (after[0] - before[0]),
            (after[2] - before[2]) / (after[1] - before[1]),
            (self._cpu_s() - cpu_before) / passed,
            passed / num_news if num_news else float("nan"),
            num_bytes,
        )

    def _counts(self) -> tuple[float, int, float]:
        record = last_record(self._joint)
        assert record is not None
        return record["time_s"], record["env_steps"], record["cpu_s"]

    def _cpu_s(self) -> float:
        fields = Path(f"/proc/{self._page}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / _TICKS_PER_S

    def _look(self, until: float) -> tuple[int, int]:
        """Reads the page's news as a browser does; returns how many, and the last one's bytes."""
        num_news = num_bytes = 0
        with contextlib.closing(http.client.HTTPConnection(self._host, timeout=60.0)) as connection:
            connection.request("GET", "/events")
            answer = connection.getresponse()
            while time.monotonic() < until and (line := answer.readline()):
                if line.startswith(b"data: "):
                    num_news, num_bytes = num_news + 1, len(line)
        return num_news, num_bytes


def measure(run: WatchedRun, num_pairs: int, seconds: float) -> None:
    """Plays all pairs and prints them."""
    run.play(WARM_UP_S, is_watched=True)
    head = ("pair", "watched", "not", "ratio", "cpu ratio", "page cpu %", "idle cpu %",
            "news every s", "kB")  # fmt: skip
    print(("{:>13}" * len(head)).format(*head), flush=True)
    ratios, cpu_ratios = [], []
    for pair in range(num_pairs):
        order = (True, False) if pair % 2 == 0 else (False, True)
        of = {is_watched: run.play(seconds, is_watched=is_watched) for is_watched in order}
        watched, idle = of[True], of[False]
        ratios.append(watched.env_steps_per_s / idle.env_steps_per_s)
        cpu_ratios.append(watched.cpu_s_per_step / idle.cpu_s_per_step)
        print(
            f"{pair + 1:>13}{watched.env_steps_per_s:>13,.0f}{idle.env_steps_per_s:>13,.0f}"
            f"{ratios[-1]:>13.3f}{cpu_ratios[-1]:>13.3f}"
            f"{100 * watched.page_cpu:>13.1f}{100 * idle.page_cpu:>13.1f}"
            f"{watched.news_s:>13.2f}{watched.news_bytes / 1e3:>13,.0f}",
            flush=True,
        )
    for what, found in (("env steps/s", ratios), ("processor time of a step", cpu_ratios)):
        low, median, high = np.percentile(found, [25, 50, 75])
        mean = mean_interval([np.array(found)])
        print(f"{what}, watched over not: median {median:.3f}, quartiles {low:.3f} to {high:.3f}, "
              f"mean {mean.mean:.3f} [{mean.low:.3f}, {mean.high:.3f}]")  # fmt: skip


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--pairs", type=int, default=30)
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("launch", nargs="+", help="arguments of muxrl launch, after --")
    args = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that the run ends, too
    with tempfile.TemporaryDirectory() as place:
        folder, output = Path(place) / "run", Path(place) / "output.txt"
        command = ["launch", *args.launch, *ENDLESS, "--run-dir", str(folder), "--no-progress"]
        with output.open("w") as file:
            run = Started.of_command(command, "watched-run", Path(place), stdout=file)
        try:
            measure(WatchedRun(run, folder, output), args.pairs, args.seconds)
            has_lasted = run.popen.poll() is None
            if has_lasted:
                os.killpg(run.popen.pid, signal.SIGINT)
                run.wait()
        finally:
            run.kill()
        if not has_lasted:
            print(f"the run ended too early:\n{output.read_text()}", file=sys.stderr)
        return 0 if has_lasted else 1


if __name__ == "__main__":
    sys.exit(main())
