"""Measures the start from ``muxrl launch`` to the first env step: seconds, processor time, memory.

Time and memory are of all processes. Checkouts are launched in turn, so that changes of the
machine's speed favour none. For Linux only, as it reads ``/proc``.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[1]
_MARK = "MUXRL_BENCHMARK"
_LOOK_S = 0.02
_SETTLED_S = 3.0
"""Seconds from the first env step to the measurement of memory."""
_TICKS_PER_S = os.sysconf("SC_CLK_TCK")


class Start(NamedTuple):
    """Times and memory of one launch."""

    listens_s: float
    """Seconds until all servers listen."""
    first_step_s: float
    cpu_s: float
    """Processor seconds of all processes until the first env step."""
    memory_mib: float
    """Proportional set size of all processes, some seconds later."""


def _processes(mark: str) -> Iterator[Path]:
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            if f"{_MARK}={mark}".encode() in (folder / "environ").read_bytes().split(b"\0"):
                yield folder
        except OSError:
            continue


def _cpu_s(mark: str) -> float:
    total = 0
    for folder in _processes(mark):
        fields = (folder / "stat").read_text().rpartition(") ")[2].split()
        total += sum(map(int, fields[11:15]))
    return total / _TICKS_PER_S


def _memory_mib(mark: str) -> float:
    texts = [(folder / "smaps_rollup").read_text() for folder in _processes(mark)]
    found = [line.split()[1] for text in texts for line in text.splitlines() if line[:4] == "Pss:"]
    return sum(map(int, found)) / 1024


def _has_played(run: Path) -> bool:
    path = run / "metrics" / "joint.jsonl"
    rows = path.read_text().splitlines() if path.exists() else []
    return bool(rows) and json.loads(rows[-1])["env_steps"] > 0


def start(checkout: Path, experiment: str) -> Start:
    """Launches an experiment from a checkout, and ends it after it has played for some seconds."""
    mark = uuid.uuid4().hex
    quick = ["metrics_interval_s=0.05", "evaluation.interval_env_steps=null", "trackers=[]",
             "evaluation.final_num_episodes=0", "checkpoint.at_end=false"]  # fmt: skip
    with tempfile.TemporaryDirectory() as folder:
        run = Path(folder) / "run"
        began_at = time.monotonic()
        process = subprocess.Popen(
            [sys.executable, "-m", "muxrl", "launch", experiment, "--run-dir", str(run), *quick],
            env={**os.environ, "PYTHONPATH": str(checkout / "src"), _MARK: mark},
            stdout=subprocess.DEVNULL,
        )
        try:
            listens_s = 0.0
            while not _has_played(run):
                if process.poll() is not None:
                    raise SystemExit(f"{checkout}: the launch ended with {process.returncode}")
                if not listens_s and (run / "servers.json").exists():
                    listens_s = time.monotonic() - began_at
                time.sleep(_LOOK_S)
            first_step_s, cpu_s = time.monotonic() - began_at, _cpu_s(mark)
            time.sleep(_SETTLED_S)
            return Start(listens_s, first_step_s, cpu_s, _memory_mib(mark))
        finally:
            process.terminate()
            process.wait()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--experiment", default="chase")
    parser.add_argument("--beside", type=Path, nargs="*", default=[], help="other checkouts")
    args = parser.parse_args()
    starts: dict[Path, list[Start]] = {path: [] for path in (ROOT, *args.beside)}
    for number in range(args.rounds):
        for checkout in sorted(starts, reverse=bool(number % 2)):
            starts[checkout].append(start(checkout, args.experiment))
    print(f"{'medians':40}{'listen s':>10}{'step s':>10}{'cpu s':>10}{'MiB':>10}")
    for checkout, found in starts.items():
        medians = [statistics.median(column) for column in zip(*found, strict=True)]
        print(f"{checkout!s:40}" + "".join(f"{one:10.1f}" for one in medians))


if __name__ == "__main__":
    main()
