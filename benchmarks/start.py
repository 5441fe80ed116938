"""What it costs to start: processor seconds and memory of each process until the first env step.

    python -m benchmarks.start --rounds 3
    python -m benchmarks.start --rounds 5 --against ../another-checkout -- chase seed=1

Launches an experiment (``chase``, or what follows ``--``) without evaluations, reads ``/proc`` as
soon as the metrics show a first env step, and ends the run. Then it runs commands that start
nothing. With ``--against`` each is done in the other checkout, too, in turn, by the same
interpreter; the first of a pair is the other one in every second round.

Prints the median over the rounds and, with ``--against``, the median of the ratios this / other.
Processor seconds are of all threads and of children that have ended, which another process on the
machine changes far less than it does the time that passes. A process's memory is its proportional
share (PSS): pages that several share are counted once.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import ray  # noqa: F401
from tests.faults.started import ROOT, Started, environment_of

from muxrl.orchestrator.records.metrics import last_record

import psutil  # type: ignore[import-untyped]  # isort: skip  # Ray brings it along, once imported

# Processes by what is in their command; the first that fits.
PARTS = {
    "gcs_server": "Ray: GCS",
    "raylet/raylet": "Ray: raylet",
    "dashboard.py": "Ray: dashboard",
    "log_monitor.py": "Ray: log monitor",
    "monitor.py": "Ray: autoscaler's monitor",
    "ray::DashboardAgent": "Ray: dashboard agent",
    "dashboard/agent.py": "Ray: dashboard agent",
    "ray::RuntimeEnvAgent": "Ray: runtime env agent",
    "runtime_env/agent/main.py": "Ray: runtime env agent",
    "runs.fork_server": "fork server",
    "fork_client.py": "fork clients",
    "ray::IDLE": "Ray: idle workers",
    "default_worker.py": "Ray: idle workers",
}
NO_EVALUATIONS = (
    "metrics_interval_s=0.1", "stop.time_s=null", "stop.env_steps=1000000000",
    "evaluation.interval_env_steps=null", "evaluation.final_num_episodes=0",
    "checkpoint.at_end=false",
)  # fmt: skip
COMMANDS = (("--help",), ("configs",), ("runs", "."), ("check", "chase"))
START_S = 600.0
"""For a run to start, on a machine that is busy."""
_TICKS_PER_S = os.sysconf("SC_CLK_TCK")
ALL = "all"


@dataclass(frozen=True)
class Cost:
    """What a process, or several, took until a moment."""

    cpu_s: float = 0.0
    pss_mib: float = 0.0
    passed_s: float = 0.0
    """Since the command began."""

    def __add__(self, other: Cost) -> Cost:
        passed_s = max(self.passed_s, other.passed_s)
        return Cost(self.cpu_s + other.cpu_s, self.pss_mib + other.pss_mib, passed_s)


def cost_of(pid: int, passed_s: float) -> Cost:
    """Returns what a process has cost so far, its children that have ended included."""
    place = Path("/proc") / str(pid)
    fields = (place / "stat").read_text().rpartition(")")[2].split()
    pss_kib = 0
    for line in (place / "smaps_rollup").read_text().splitlines():
        if line.startswith("Pss:"):
            pss_kib = int(line.split()[1])
    return Cost(sum(map(int, fields[11:15])) / _TICKS_PER_S, pss_kib / 1024, passed_s)


def cost_of_run(checkout: Path, launch: Sequence[str]) -> dict[str, Cost]:
    """Launches a run and returns what each process took until the first env step, and all."""
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place) / "run"
        began = time.monotonic()
        with (Path(place) / "output.txt").open("w") as output:
            run = Started.of_command(
                ["launch", *launch, *NO_EVALUATIONS, "--run-dir", str(folder), "--no-progress"],
                "start",
                Path(place),
                checkout=checkout,
                stdout=output,
            )
        try:
            joint = folder / "metrics" / "joint.jsonl"
            run.wait_for(
                "env steps", lambda: bool((last_record(joint) or {}).get("env_steps")), START_S
            )
            passed_s = time.monotonic() - began
            own = psutil.Process(run.popen.pid)
            costs = {ALL: Cost()}
            for process in (own, *own.children(recursive=True)):
                name = "orchestrator" if process == own else _name(process, folder)
                with contextlib.suppress(OSError):  # it has just ended
                    cost = cost_of(process.pid, passed_s)
                    costs[name] = costs.get(name, Cost()) + cost
                    costs[ALL] += cost
        finally:
            run.kill()
    return costs


def _name(process: psutil.Process, folder: Path) -> str:
    """What a process is: a server and a simulation by its log, others by their command."""
    with contextlib.suppress(OSError):
        output = Path(os.readlink(f"/proc/{process.pid}/fd/1"))
        if folder in output.parents:
            return output.stem
    command = " ".join(process.cmdline())
    return next((name for part, name in PARTS.items() if part in command), command[:28])


def cost_of_command(checkout: Path, arguments: Sequence[str]) -> Cost:
    """Runs a command to its end and returns what it took; its memory is not looked at."""
    before, began = resource.getrusage(resource.RUSAGE_CHILDREN), time.monotonic()
    subprocess.run(
        [sys.executable, "-m", "muxrl", *arguments],
        cwd=checkout,
        env=environment_of(checkout),
        stdout=subprocess.DEVNULL,
        check=True,
    )
    passed_s = time.monotonic() - began
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    cpu_s = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return Cost(cpu_s, 0.0, passed_s)


def measure(checkout: Path, launch: Sequence[str]) -> dict[str, Cost]:
    """Returns one round's costs: of each process of a run, of all, and of each command."""
    commands = {
        f"muxrl {' '.join(arguments)}": cost_of_command(checkout, arguments)
        for arguments in COMMANDS
    }
    return {**cost_of_run(checkout, launch), **commands}


def show(rounds: Sequence[Mapping[str, Cost]], others: Sequence[Mapping[str, Cost]]) -> None:
    """Prints a row for each process and command, the most expensive process first."""
    names = dict.fromkeys(name for costs in (*rounds, *others) for name in costs)
    head = ("cpu s", "MiB", "passed s")
    if others:
        head = tuple(f"{column}{which}" for column in head for which in ("", ", other", ", ratio"))
    print(f"{'':<28}" + "".join(f"{column:>16}" for column in head))
    for name in names:
        pairs = [(name in costs, costs.get(name, Cost())) for costs in rounds]
        cells = ""
        for attribute in ("cpu_s", "pss_mib", "passed_s"):
            own = [getattr(cost, attribute) for _, cost in pairs]
            cells += f"{statistics.median(own):>16.2f}"
            if others:
                theirs = [getattr(costs.get(name, Cost()), attribute) for costs in others]
                ratios = [a / b for a, b in zip(own, theirs, strict=True) if b]
                cells += f"{statistics.median(theirs):>16.2f}"
                cells += f"{statistics.median(ratios):>16.2f}" if ratios else f"{'-':>16}"
        print(f"{name:<28}{cells}", flush=True)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--against", type=Path, help="another checkout")
    parser.add_argument("launch", nargs="*", default=["chase"], help="for muxrl launch, after --")
    args = parser.parse_args()
    rounds, others = [], []
    for number in range(args.rounds):
        checkouts = [(ROOT, rounds)]
        if args.against is not None:
            checkouts.insert(number % 2, (args.against.resolve(), others))
        for checkout, costs in checkouts:
            costs.append(measure(checkout, args.launch))
    show(rounds, others)
    return 0


if __name__ == "__main__":
    sys.exit(main())
