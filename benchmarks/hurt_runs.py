"""Whether a run that is hurt learns what an undisturbed one learns: both ways on the same seeds.

    python -m benchmarks.hurt_runs servers --every-s 60 -- chase stop.time_s=600 stop.env_steps=null
    python -m benchmarks.hurt_runs resume -- chase stop.time_s=null stop.env_steps=30000

``servers`` kills a server every so often, one after another; each goes on from its checkpoint.
``resume`` kills all of a run's processes at half of its env steps, and goes on with it by
``muxrl launch --resume``. What follows ``--`` is for ``muxrl launch``. Both runs of a seed go side
by side, so that other work on the machine is there for both.

Prints one row for each learner: its return in the final evaluation, with random actions in its
place, too, and the difference between hurt and undisturbed runs with its 95 % interval, which is
bootstrapped over the seeds' means. A second table takes the undisturbed run's evaluation that is
nearest to the env steps with which the hurt one ended. Exit code 1: a run did not end well.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import cycle, pairwise
from pathlib import Path

import numpy as np
from tests.faults.started import Started

from muxrl.orchestrator.config import load_config
from muxrl.orchestrator.measure.statistics import Estimate, difference_interval, mean_interval
from muxrl.orchestrator.records.metrics import read_metrics
from muxrl.orchestrator.records.recorded_run import RecordedRun

CHECKPOINTS = "checkpoint.interval_s=10"
QUOTA = 1_000
"""Restarts: as many as there are faults."""
LOOK_S = 0.5


class Launched(Started):
    """One ``muxrl launch``."""

    folder: Path

    @classmethod
    def of(cls, arguments: Sequence[str], folder: Path, temporary: Path) -> Launched:
        temporary.mkdir(exist_ok=True)
        output = folder.with_suffix(".txt").open("a")
        launched = cls.of_command(
            ["launch", *arguments, "--no-progress"],
            mark=folder.name,
            temporary=temporary,
            stdout=output,
        )
        output.close()
        launched.folder = folder
        return launched

    @property
    def is_over(self) -> bool:
        return self.popen.poll() is not None

    @property
    def env_steps(self) -> int:
        """Env steps of its newest joint record; 0 before the first."""
        path = self.folder / "metrics" / "joint.jsonl"
        rows = read_metrics(path)
        return rows[-1]["env_steps"] if rows else 0


@dataclass(frozen=True)
class Ended:
    """How a run ended."""

    exit_code: int
    env_steps: int
    num_restarts: int
    num_resumed: int
    longest_gap_s: float
    """Between two rows of joint.jsonl."""
    recorded: RecordedRun

    @classmethod
    def of(cls, launched: Launched) -> Ended:
        status = json.loads((launched.folder / "status.json").read_text())
        times = [row["time_s"] for row in read_metrics(launched.folder / "metrics" / "joint.jsonl")]
        return cls(
            launched.popen.returncode,
            status["env_steps"],
            sum(status["num_restarts"].values()),
            status["num_resumed"],
            max((b - a for a, b in pairwise(times)), default=0.0),
            RecordedRun.read(launched.folder),
        )

    def returns(
        self, server_id: str, replaced: str | None = None, at: int | None = None
    ) -> np.ndarray:
        """Returns of a server's agents in an evaluation, ``[num_episodes]``.

        Args:
            server_id: whose.
            replaced: the server whose agents acted at random.
            at: the evaluation nearest to these env steps; None: the final one.
        """
        agents = self.recorded.servers[server_id].agents
        points = self.recorded.points
        point = points[-1] if at is None else min(points, key=lambda p: abs(p.env_steps - at))
        values = point.returns_of(agents, replaced)
        assert values is not None
        return values


def undisturbed(launched: Launched) -> Iterator[None]:
    """Yields until the run is over."""
    while not launched.is_over:
        yield


def with_servers_killed(
    launched: Launched, servers: Sequence[str], every_s: float
) -> Iterator[None]:
    """Kills a server each `every_s` seconds of learning."""
    while not launched.env_steps:
        yield
    due = time.monotonic() + every_s
    for server_id in cycle(servers):
        while time.monotonic() < due:
            if launched.is_over:
                return
            yield
        status = json.loads((launched.folder / "status.json").read_text())
        pid = launched.writer_of(launched.folder / "logs" / f"{server_id}.log")
        if pid is not None and status["state"] == "running":
            os.kill(pid, signal.SIGKILL)
        due += every_s


def play(ways: Sequence[Iterator[None]]) -> None:
    """Lets runs go on, side by side, until all are over."""
    left = list(ways)
    while left:
        time.sleep(LOOK_S)
        for way in list(left):
            if next(way, StopIteration) is StopIteration:
                left.remove(way)


class Study:
    """Both runs of each seed.

    Args:
        arguments: for ``muxrl launch``.
        folder: where the runs' directories go.
    """

    def __init__(self, arguments: Sequence[str], folder: Path) -> None:
        config = load_config(arguments[0], list(arguments[1:]))
        self.servers = list(config.servers)
        self._half = (config.stop.env_steps or 0) // 2
        self._arguments = [*arguments, CHECKPOINTS]
        self._folder = folder

    def start(self, name: str, seed: int, *more: str) -> Launched:
        folder = self._folder / f"{name}-{seed}"
        arguments = [*self._arguments, f"seed={seed}", *more, "--run-dir", str(folder)]
        return Launched.of(arguments, folder, Path(f"/tmp/{name[0]}{seed}{os.getpid()}"))

    def hurt_servers(self, seed: int, every_s: float) -> tuple[Ended, Ended]:
        """Returns how the undisturbed run ended, and the one whose servers were killed."""
        quota = [f"servers.{s}.restarts.max={QUOTA}" for s in self.servers]
        calm, hurt = self.start("calm", seed), self.start("hurt", seed, *quota)
        return self._play(
            calm, hurt, lambda: with_servers_killed(hurt, self.servers, every_s), lambda: hurt
        )

    def resume(self, seed: int) -> tuple[Ended, Ended]:
        """Returns how the undisturbed run ended, and the one that was cut at half and resumed."""
        if not self._half:
            raise SystemExit("resume: give stop.env_steps, so that there is a half")
        calm, hurt = self.start("calm", seed), self.start("hurt", seed)
        runs = [hurt]

        def cut() -> Iterator[None]:
            while hurt.env_steps < self._half:
                if hurt.is_over:
                    said = hurt.folder.with_suffix(".txt").read_text()[-1_000:]
                    raise SystemExit(f"{hurt.folder} ended before it was cut:\n{said}")
                yield
            hurt.kill()
            resumed = Launched.of(
                ["--resume", str(hurt.folder)], hurt.folder, Path(f"/tmp/r{seed}{os.getpid()}")
            )
            runs.append(resumed)
            yield from undisturbed(resumed)

        return self._play(calm, hurt, cut, lambda: runs[-1])

    def _play(
        self,
        calm: Launched,
        hurt: Launched,
        way: Callable[[], Iterator[None]],
        last: Callable[[], Launched],
    ) -> tuple[Ended, Ended]:
        try:
            play([undisturbed(calm), way()])
            return Ended.of(calm), Ended.of(last())
        finally:
            for launched in (calm, hurt, last()):
                launched.kill()
            for path in Path("/tmp").glob(f"[chr]*{os.getpid()}"):
                shutil.rmtree(path, ignore_errors=True)


def show(pairs: dict[int, tuple[Ended, Ended]], servers: Sequence[str]) -> None:
    """Prints the runs, and what their learners came to."""
    print(
        f"{'seed':6}{'run':13}{'exit':>5}{'env steps':>11}{'restarts':>10}{'resumed':>9}"
        f"{'gap s':>7}"
    )
    for seed, pair in pairs.items():
        for name, ended in zip(("undisturbed", "hurt"), pair, strict=True):
            print(
                f"{seed:<6}{name:13}{ended.exit_code:>5}{ended.env_steps:>11,}"
                f"{ended.num_restarts:>10}{ended.num_resumed:>9}{ended.longest_gap_s:>7.1f}"
            )
    for title, is_at_as_many in (("at the end", False), ("after as many env steps", True)):
        print(f"\n{title}")
        print(f"{'learner':10}{'undisturbed':>22}{'hurt':>22}{'difference':>22}{'random':>9}")
        for server_id in servers:
            means: dict[str, list[float]] = {"calm": [], "hurt": [], "random": []}
            for calm, hurt in pairs.values():
                at = hurt.env_steps if is_at_as_many else None
                # One number a seed, so that the interval speaks of other seeds, too.
                means["calm"].append(float(np.mean(calm.returns(server_id, at=at))))
                means["hurt"].append(float(np.mean(hurt.returns(server_id))))
                means["random"].append(float(np.mean(calm.returns(server_id, server_id, at))))
            cells = (
                mean_interval([means["calm"]]),
                mean_interval([means["hurt"]]),
                difference_interval([means["hurt"]], [means["calm"]]),
            )
            print(
                f"{server_id:10}{''.join(f'{_shown(cell):>22}' for cell in cells)}"
                f"{np.mean(means['random']):>9.2f}"
            )


def _shown(estimate: Estimate) -> str:
    return f"{estimate.mean:.2f} [{estimate.low:.2f}, {estimate.high:.2f}]"


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.hurt_runs", description=__doc__.splitlines()[0]
    )
    parser.add_argument("how", choices=["servers", "resume"])
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--every-s", type=float, default=60.0, help="of servers")
    parser.add_argument("--out", type=Path, help="keep the runs there (default: delete them)")
    parser.add_argument("arguments", nargs="+", metavar="ARGUMENT", help="of muxrl launch")
    args = parser.parse_args()
    folder = args.out or Path(tempfile.mkdtemp(prefix="hurt"))
    folder.mkdir(parents=True, exist_ok=True)
    study = Study(args.arguments, folder.absolute())
    pairs: dict[int, tuple[Ended, Ended]] = {}
    try:
        for seed in args.seeds:
            pairs[seed] = (
                study.resume(seed)
                if args.how == "resume"
                else study.hurt_servers(seed, args.every_s)
            )
            show(pairs, study.servers)
            print(flush=True)
    finally:
        if args.out is None:
            shutil.rmtree(folder, ignore_errors=True)
    return int(any(ended.exit_code for pair in pairs.values() for ended in pair))


if __name__ == "__main__":
    sys.exit(main())
