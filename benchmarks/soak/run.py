"""Launches a run, causes faults in it, watches all its processes, and judges it at the end."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import statistics
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.soak.agreement import Moment, agreement
from benchmarks.soak.faults import Fault, faults
from benchmarks.soak.latency import Latency, free_ports, measure
from benchmarks.soak.samples import Bound, Life, Samples
from tests.faults.started import Started
from tests.processes import Process, marked

from muxrl.orchestrator.errors import CannotResume
from muxrl.orchestrator.launch.resuming import find_checkpoint
from muxrl.orchestrator.records.metrics import read_metrics
from muxrl.orchestrator.records.run_directory import RunDirectory
from muxrl.orchestrator.storage.checkpoints import CheckpointFolder

EXPERIMENT = Path(__file__).with_name("experiment.yaml")
SERVERS = ("qmix", "ppo", "a2c")
SIMULATIONS = tuple(f"simulation-{i}" for i in range(4))
SAMPLE_EVERY_S = 2.0
GOES_ON_ENV_STEPS = 500
"""More env steps than were under way when a process was lost: after them, the run goes on."""
MIN_CALM_S = 30.0
"""Seconds without faults at the end, in which the last fault must be over."""
PATIENCE_S = 180.0
"""Seconds that the run may take to begin, to go on after a loss, and to end, on a busy machine."""
MIN_PACE = 0.3
"""Least pace after the last fault, as a share of the pace before the first. It is low, since other
work on the machine counts, too."""
MAX_LATENCY = 3.0
"""Largest median of an exchange after the last fault, as a multiple of the one before the first."""
MAX_CPU = 1.5
"""Most processor time of a step after the last fault, as a multiple of the one before the first."""


@dataclass(frozen=True)
class Check:
    """One thing that has to hold."""

    what: str
    seen: str
    problems: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class Outcome:
    """The results of a soak."""

    checks: list[Check]
    lives: dict[str, list[Life]]
    faults: list[Fault]

    @property
    def problems(self) -> list[str]:
        """A sentence for each thing that does not hold."""
        return [problem for check in self.checks for problem in check.problems]


class SoakFailed(Exception):
    """The run ended early, or did not go on."""


def soak(
    minutes: float,
    fault_every_s: float,
    seed: int,
    pause_s: float = 0.0,
    bound: Bound | None = None,
) -> Outcome:
    """Runs an experiment and causes faults in it.

    A fault comes `fault_every_s` after the one before, or later if the run has not gone on by then.
    There are no faults in the first and the last `fault_every_s`, and none in the last 30 s at
    least, so that their pace can be compared.

    Args:
        minutes: of training.
        fault_every_s: seconds from fault to fault.
        seed: of the faults, and of the run.
        pause_s: seconds that each step of a simulation sleeps, to leave the processors to others.
        bound: the bound on the growth of processes.

    Raises:
        SoakFailed: the run ended early or does not go on.
    """
    # The name is short because Ray's sockets are in this folder.
    temporary = Path(tempfile.mkdtemp(prefix="soak", dir="/tmp"))
    results = Path(tempfile.mkdtemp(prefix="soaked"))
    try:
        run = _Soaked(results / "run", temporary, minutes * 60.0, fault_every_s, seed, pause_s)
        try:
            return run.soak(bound or Bound())
        finally:
            run.end()
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
        shutil.rmtree(results, ignore_errors=True)


class _Soaked:
    def __init__(
        self,
        folder: Path,
        temporary: Path,
        time_s: float,
        fault_every_s: float,
        seed: int,
        pause_s: float,
    ) -> None:
        self._folder = folder
        self._temporary = temporary
        self._time_s = time_s
        self._fault_every_s = fault_every_s
        self._coming = faults(seed, SERVERS, SIMULATIONS)
        self._done: list[Fault] = []
        self._hurt_at_s: list[float] = []  # by the run's clock
        self._went_on_at_s: list[float] = []
        self._samples = Samples()
        self._moments: dict[int, Moment] = {}
        self._ports = free_ports(len(SERVERS))
        self._latencies: list[Latency] = []
        self._output = (folder.parent / "output").open("w+")
        self._run = Started.of_command(
            [
                "launch",
                str(EXPERIMENT),
                f"seed={seed}",
                f"stop.time_s={time_s}",
                f"simulation.kwargs.pause_s={pause_s}",
                *(f"servers.{s}.port={p}" for s, p in zip(SERVERS, self._ports, strict=True)),
                "--run-dir",
                str(folder),
                "--no-progress",
            ],
            mark="soak",
            temporary=temporary,
            stdout=self._output,
        )
        self._next_sample_at = 0.0

    def end(self) -> None:
        """Kills all that is left of the run."""
        self._run.kill()
        self._output.close()

    # --- the run ------------------------------------------------------------------------

    def soak(self, bound: Bound) -> Outcome:
        self._wait("learning of all servers", self._all_learn)
        self._latencies.append(measure(self._ports))
        began_s = self._clock()
        hurt_until_s = self._time_s - max(self._fault_every_s, MIN_CALM_S)
        due_s = began_s + self._fault_every_s
        while due_s < hurt_until_s:
            self._wait("time", lambda due_s=due_s: self._clock() >= due_s, 10 * PATIENCE_S)
            if self._clock() >= hurt_until_s:  # the run was slow to go on
                break
            self._hurt(next(self._coming))
            due_s += self._fault_every_s
        self._latencies.append(measure(self._ports))
        deadline = time.monotonic() + self._time_s + PATIENCE_S
        while self._run.popen.poll() is None:
            if time.monotonic() > deadline:
                raise SoakFailed(f"the run did not end\n{self.output()}")
            self._look()
        return self._judge(began_s, bound)

    def _hurt(self, fault: Fault) -> None:
        """Causes a fault, and waits until the run goes on."""
        process = self._find(fault.victim)
        if process is None:
            raise SoakFailed(f"no process to hurt: {fault}")
        before = self._num_restarts().get(fault.victim, 0)
        self._hurt_at_s.append(self._clock())
        print(f"{self._hurt_at_s[-1]:7.0f} s  {fault}", flush=True)
        fault.do(process.pid)
        self._done.append(fault)
        if fault.is_loss:
            self._wait(
                f"restart ({fault})",
                lambda: (
                    self._num_restarts().get(fault.victim, 0) > before
                    and self._find(fault.victim) is not None
                ),
            )
        env_steps = self._joint()["env_steps"]
        self._wait(
            f"steps ({fault})", lambda: self._joint()["env_steps"] > env_steps + GOES_ON_ENV_STEPS
        )
        self._went_on_at_s.append(self._clock())

    def _wait(self, what: str, is_so: Any, patience_s: float = PATIENCE_S) -> None:
        deadline = time.monotonic() + patience_s
        while not is_so():
            if self._run.popen.poll() is not None:
                raise SoakFailed(f"the run ended before {what}\n{self.output()}")
            if time.monotonic() > deadline:
                raise SoakFailed(f"no {what} in {patience_s:g} s\n{self.output()}")
            self._look()

    def _look(self) -> None:
        """Waits a little; samples processes and reads checkpoints when it is time."""
        time.sleep(0.2)
        now = time.monotonic()
        if now < self._next_sample_at:
            return
        self._next_sample_at = now + SAMPLE_EVERY_S
        for process in marked(self._run.mark):
            self._samples.take(process.pid, process.started_at, self._name(process), now)
        self._read_moments()

    def _read_moments(self) -> None:
        checkpoints = CheckpointFolder(self._folder / "checkpoints")
        for env_steps in checkpoints.env_steps:
            if env_steps not in self._moments:
                with contextlib.suppress(CannotResume, OSError):  # it was just deleted
                    self._moments[env_steps] = Moment.read(checkpoints.path / str(env_steps))

    def _name(self, process: Process) -> str:
        """Returns a process's name: its log file if it is the run's, otherwise its command."""
        if process.pid == self._run.popen.pid:
            return "launch"
        with contextlib.suppress(OSError):
            log = Path(os.readlink(f"/proc/{process.pid}/fd/1"))
            if log.parent == self._folder / "logs":
                return log.stem
        command = process.command.split() or [""]
        if Path(command[0]).name.startswith("python"):  # some of Ray's processes are scripts
            command = [part for part in command[1:] if not part.startswith("-")] or command
        return Path(command[0]).name

    def _find(self, name: str) -> Process | None:
        found = (p for p in marked(self._run.mark) if self._name(p) == name)
        return next(found, None)

    def _rows(self, name: str) -> list[dict[str, Any]]:
        return read_metrics(self._folder / "metrics" / f"{name}.jsonl")

    def _joint(self) -> dict[str, Any]:
        """Returns the newest joint record."""
        with (self._folder / "metrics" / "joint.jsonl").open("rb") as file:
            file.seek(max(0, file.seek(0, os.SEEK_END) - 4_096))
            whole = file.read().rpartition(b"\n")[0]
        return json.loads(whole.rpartition(b"\n")[2])

    def _clock(self) -> float:
        return self._joint()["time_s"]

    def _all_learn(self) -> bool:
        # A few iterations: the first are slow.
        return bool(self._rows("joint")) and all(len(self._rows(s)) >= 3 for s in SERVERS)

    def _status(self) -> dict[str, Any]:
        return json.loads((self._folder / "status.json").read_text())

    def _num_restarts(self) -> dict[str, int]:
        return self._status()["num_restarts"]

    def output(self) -> str:
        """Returns the output of the command."""
        return (self._folder.parent / "output").read_text()

    # --- judging ------------------------------------------------------------------------

    def _judge(self, began_s: float, bound: Bound) -> Outcome:
        checks = [
            self._check_end(),
            self._check_restarts(),
            self._check_counts(),
            self._check_rows(),
            self._check_growth(bound),
            *self._check_pace(began_s),
            self._check_left(),
        ]
        return Outcome(checks, self._samples.lives(), self._done)

    def _check_end(self) -> Check:
        code, status = self._run.popen.returncode, self._status()
        _, _, damage = find_checkpoint(RunDirectory.open(self._folder))
        problems = [f"exit code {code}\n{self.output()}"] if code else []
        if status["state"] != "done":
            problems.append(f"status.json says {status['state']}: {status['cause']}")
        if "Traceback" in self.output():
            problems.append(f"a traceback\n{self.output()}")
        return Check(
            "end", f"exit code {code}, {status['env_steps']:,} env steps", problems + damage
        )

    def _check_restarts(self) -> Check:
        expected = dict(Counter(fault.victim for fault in self._done if fault.is_loss))
        seen = self._num_restarts()
        in_metrics = Counter(
            name for row in self._rows("joint") for name in row.get("restarted", ())
        )
        problems = [
            f"{place} has the restarts {dict(found)}, the faults make {expected}"
            for place, found in (("status.json", seen), ("joint.jsonl", in_metrics))
            if dict(found) != expected
        ]
        kinds = ", ".join(f"{n}× {kind}" for kind, n in Counter(f.kind for f in self._done).items())
        return Check("restarts", f"{sum(seen.values())} after {kinds}", problems)

    def _check_counts(self) -> Check:
        self._read_moments()
        found = agreement([self._moments[n] for n in sorted(self._moments)], len(SIMULATIONS))
        mismatches = self._joint()["num_mismatches"]
        problems = list(found.problems)
        if mismatches:
            problems.append(f"{mismatches} mismatches between servers")
        if not found.num_exact:
            problems.append("no two checkpoints without a loss between them")
        return Check(
            "counts",
            f"equal in {found.num_exact} intervals without a loss, within bounds in "
            f"{found.num_bounded} with one",
            problems,
        )

    def _check_rows(self) -> Check:
        problems = []
        joint = self._rows("joint")
        times = [row["time_s"] for row in joint]
        steps = [row["env_steps"] for row in joint]
        if times != sorted(set(times)) or steps != sorted(steps):
            problems.append("joint.jsonl does not go forward")
        num = len(joint)
        for server_id in SERVERS:
            rows = self._rows(server_id)
            num += len(rows)
            if [row["iteration"] for row in rows] != list(range(1, len(rows) + 1)):
                problems.append(f"{server_id}.jsonl has iterations missing or twice")
            if [row["env_steps"] for row in rows] != sorted(row["env_steps"] for row in rows):
                problems.append(f"{server_id}.jsonl does not go forward")
        evaluations = [
            (row["env_steps"], row["replaced"], row["is_final"]) for row in self._rows("evaluation")
        ]
        if len(evaluations) != len(set(evaluations)):
            problems.append("evaluation.jsonl has a condition twice")
        return Check("metrics", f"{num + len(evaluations)} rows, none twice or missing", problems)

    def _check_growth(self, bound: Bound) -> Check:
        long = self._samples.long(self._time_s / 2)
        problems = [problem for life in long for problem in life.problems(bound)]
        if "launch" not in {life.name for life in long}:
            problems.append("the launcher was not looked at for long enough")
        return Check(
            "growth",
            f"{len(long)} processes that lived for half of it: memory within {bound.rss_mib:g} MiB "
            f"+ {bound.rss_part:.0%}, descriptors {bound.descriptors:g}, threads "
            f"{bound.threads:g}",
            problems,
        )

    def _check_pace(self, began_s: float) -> Iterator[Check]:
        if not self._hurt_at_s:
            yield Check("pace", "", ["no fault was done"])
            return
        before = _Pace.of(self._rows("joint"), began_s, self._hurt_at_s[0])
        after = _Pace.of(self._rows("joint"), self._went_on_at_s[-1], self._time_s)
        seen = f"{before.env_steps_per_s:.0f} env steps/s before, {after.env_steps_per_s:.0f} after"
        is_slow = after.env_steps_per_s < MIN_PACE * before.env_steps_per_s
        yield Check("pace", seen, [f"slower: {seen}"] if is_slow else [])
        seen = f"{before.cpu_ms:.1f} ms a step before, {after.cpu_ms:.1f} after"
        yield Check(
            "processor", seen, [f"dearer: {seen}"] if after.cpu_ms > MAX_CPU * before.cpu_ms else []
        )
        first, last = self._latencies
        seen = f"of an exchange: {first} before, {last} after"
        is_slow = last.p50_ms > MAX_LATENCY * first.p50_ms
        yield Check("latency", seen, [f"slower: {seen}"] if is_slow else [])
        durations = [b - a for a, b in zip(self._hurt_at_s, self._went_on_at_s, strict=True)]
        median, longest = statistics.median(durations), max(durations)
        yield Check("outage", f"median {median:.0f} s, longest {longest:.0f} s until it went on")

    def _check_left(self) -> Check:
        problems = []
        try:
            self._run.assert_nothing_is_left(10.0)
        except AssertionError as error:
            problems.append(f"orphans: {error}")
        # torch keeps a cache there for each user.
        names = [path.name for path in self._temporary.iterdir()]
        left = [name for name in names if not name.startswith("torchinductor_")]
        if left:
            problems.append(f"left in the temporary folder: {left}")
        return Check("left over", "no process, no temporary file", problems)


@dataclass(frozen=True)
class _Pace:
    env_steps_per_s: float
    cpu_ms: float
    """Processor time of servers and simulations for each env step."""

    @classmethod
    def of(cls, rows: list[dict[str, Any]], from_s: float, to_s: float) -> _Pace:
        rows = [row for row in rows if from_s <= row["time_s"] <= to_s]
        if len(rows) < 2 or rows[-1]["env_steps"] == rows[0]["env_steps"]:
            raise SoakFailed(f"no steps between {from_s:.0f} s and {to_s:.0f} s of the run")
        steps = rows[-1]["env_steps"] - rows[0]["env_steps"]
        return cls(
            steps / (rows[-1]["time_s"] - rows[0]["time_s"]),
            1e3 * (rows[-1]["cpu_s"] - rows[0]["cpu_s"]) / steps,
        )
