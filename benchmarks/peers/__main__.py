"""The race: other systems' step paths and PPO updates beside ours, all on the same work.

All play the same zero-cost simulation of six agents (``Box(8)``/``Discrete(5)``, 100-step
episodes). All except the last learn meanwhile: PPO (batches of 1,000 env steps, ten epochs,
minibatches of 128) on the first server, A2C on a second, another PPO on a third. Networks are
256x256, with one policy for each server.

- *RLlib 2.6.3*: `PolicyClient` and `PolicyServerInput`, with remote and with local inference. Each
  server and each simulation has a process; a simulation asks its servers one after another.
- *RLlib 2.60, in process*: one PPO for all six agents. RLlib's env runner steps all
  simulations as one vector; there is no network, and only one algorithm.
- *Sample Factory 2.1.1*: its asynchronous multi-agent APPO, with a policy for each server.
- *muxrl*: a process for each server, and one for all simulations, with remote and with local
  inference. Simulations wait while PPO and A2C learn, which is the default.
- *TorchRL 0.14.1's `InferenceServer`*, a process for each policy, which only acts. It is
  compared with a muxrl that only acts; both are measured from the first steps on.

Each contestant's file says what is unequal.

In each round all contestants play in turn, each in every setup, and are started anew each time.
Measuring begins after the first update of every server. Then PPO's update on one batch is timed
alone: ours, RLlib 2.60's, RLlib 2.6.3's and BenchMARL's.

    python -m benchmarks.peers --seconds 5 --rounds 2        # a look
    python -m benchmarks.peers --out benchmarks/peers/results
    python -m benchmarks.peers --report benchmarks/peers/results/findings.json

The environments of the other systems are made at the first call, from ``requirements/``. If a
contestant fails, the report names it, the others go on, and the exit code is 1.
"""

from __future__ import annotations

import argparse
import datetime
import os
import platform
import shlex
import signal
import subprocess
import sys
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from pathlib import Path
from typing import TypeVar

from benchmarks.peers.contest import (
    CONTESTANTS,
    UPDATERS,
    Contestant,
    Failure,
    Updater,
)
from benchmarks.peers.environments import (
    DEFAULT_FOLDER,
    EnvironmentFailed,
    environment,
    versions,
)
from benchmarks.peers.findings import Findings, report
from benchmarks.peers.race import RoundFailed, play, update
from benchmarks.peers.work import Setup

T = TypeVar("T")
ROOT = Path(__file__).parents[2]


def race(
    findings: Findings,
    pythons: dict[str, Path],
    contestants: Iterable[Contestant],
    setups: Iterable[Setup],
    updaters: Iterable[Updater],
    num_updates: int,
    keep: Callable[[], None] = lambda: None,
) -> None:
    """Plays all rounds.

    Args:
        findings: receives results and failures.
        pythons: by environment: its interpreter; an environment that could not be made is missing.
        contestants: the contestants that play.
        setups: the setups, each played by the contestants that can.
        updaters: the updaters that are measured.
        num_updates: number of measured updates of each updater in a round.
        keep: called after each turn.
    """
    contestants, setups, updaters = list(contestants), sorted(setups), list(updaters)

    def attempt(who: str, number: int, act: Callable[[], T], into: list[T]) -> None:
        print(f"round {number + 1}: {who}", file=sys.stderr, flush=True)
        try:
            into.append(act())
        except RoundFailed as error:
            print(error, file=sys.stderr, flush=True)
            findings.failures.append(Failure(who, number, str(error)))
        keep()

    for number in range(findings.num_rounds):
        for setup in setups:
            for contestant in contestants:
                if setup in contestant.setups and contestant.environment in pythons:
                    python = pythons[contestant.environment]
                    attempt(
                        f"{contestant.title}, {setup}",
                        number,
                        partial(play, contestant, setup, python, number, findings.seconds),
                        findings.played,
                    )
        for updater in updaters:
            if updater.environment in pythons:
                attempt(
                    f"update of {updater.title}",
                    number,
                    partial(update, updater, pythons[updater.environment], number, num_updates),
                    findings.updated,
                )


def machine() -> str:
    """Returns a description of this machine."""
    models = [
        line.partition(":")[2].strip()
        for line in Path("/proc/cpuinfo").read_text().splitlines()
        if line.startswith("model name")
    ]
    cores = len(os.sched_getaffinity(0))
    return f"{cores} cores, {models[0] if models else platform.machine()}, {platform.system()}"


def commit() -> str:
    """Returns the checkout's commit, with "+" if files differ from it; "" outside a checkout."""
    asked = ["git", "describe", "--always", "--abbrev=10", "--dirty=+"]
    found = subprocess.run(asked, cwd=ROOT, capture_output=True, text=True, check=False)
    return found.stdout.strip()


def command(arguments: Sequence[str]) -> str:
    """Returns the command that started a race, without the paths of files and environments."""
    places = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    places.add_argument("--environments")
    places.add_argument("--out")
    told = places.parse_known_args(arguments)[1]
    return shlex.join(["python", "-m", "benchmarks.peers", *told])


def setup_of(text: str) -> Setup:
    """Returns the setup that "SERVERSxSIMULATIONS" means."""
    known = {f"{s.num_servers}x{s.num_simulations}": s for c in CONTESTANTS for s in c.setups}
    if text not in known:
        raise argparse.ArgumentTypeError(f"{text!r} is none of {', '.join(known)}")
    return known[text]


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.peers", description=__doc__.splitlines()[0]
    )
    titles, updaters = [c.title for c in CONTESTANTS], [u.title for u in UPDATERS]
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=20.0, help="measured in each turn")
    parser.add_argument("--updates", type=int, default=8, help="measured in each turn")
    parser.add_argument("--contestants", nargs="*", choices=titles, default=titles)
    parser.add_argument("--updaters", nargs="*", choices=updaters, default=updaters)
    parser.add_argument(
        "--setups", nargs="+", type=setup_of, metavar="SERVERSxSIMULATIONS", help="default: all"
    )
    parser.add_argument("--environments", type=Path, default=DEFAULT_FOLDER, metavar="DIR")
    parser.add_argument("--out", type=Path, metavar="DIR", help="gets findings.json")
    parser.add_argument("--report", type=Path, metavar="FILE", help="shows a findings.json again")
    args = parser.parse_args()
    if args.report:
        print(report(Findings.read(args.report)))
        return 0
    if args.rounds < 1 or args.seconds <= 0 or args.updates < 1:
        parser.error("--rounds, --seconds and --updates must be positive")
    contestants = [c for c in CONTESTANTS if c.title in args.contestants]
    setups = args.setups or {s for c in contestants for s in c.setups}
    chosen_updaters = [u for u in UPDATERS if u.title in args.updaters]
    findings = Findings(
        datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%d %H:%M UTC"),
        command(sys.argv[1:]),
        commit(),
        machine(),
        {},
        args.seconds,
        args.rounds,
        [],
        [],
        [],
    )
    pythons = {}
    for name in sorted({one.environment for one in (*contestants, *chosen_updaters)}):
        try:
            pythons[name] = environment(name, args.environments)
        except EnvironmentFailed as error:
            print(error, file=sys.stderr, flush=True)
            findings.failures.append(Failure(f"environment {name}", 0, str(error)))
    findings.versions = versions(pythons)
    if args.out:
        args.out.mkdir(parents=True, exist_ok=True)

    def keep() -> None:
        if args.out:
            findings.write(args.out / "findings.json")

    race(findings, pythons, contestants, setups, chosen_updaters, args.updates, keep)
    keep()
    print(report(findings))
    return 1 if findings.failures else 0


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that all children are ended, too
    sys.exit(main())
