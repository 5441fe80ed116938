"""Plays one contestant in one setup: start, wait until its learners have learned, measure, end.

All contestants are measured alike and from outside: from the files that simulations write of their
steps (`simulation.py`), and from the files of updates (`updates.py`).
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import tempfile
import time
from pathlib import Path

import numpy as np
from benchmarks.peers.contest import Contestant, Played, Updated, Updater
from benchmarks.peers.simulation import MOMENT
from benchmarks.peers.updates import trained_env_steps
from benchmarks.peers.work import AGENTS, BATCH_ENV_STEPS, Setup
from tests.faults.started import Started

from muxrl.orchestrator.supervise.process import ONE_THREAD

ROOT = Path(__file__).parents[2]
LEARNS_S = 600.0
"""Seconds in which all simulations must step and all learners make their first update; nothing is
measured before."""
ENDS_S = 15.0
_LOOK_S = 0.2


class RoundFailed(Exception):
    """A contestant ended, or did not learn; the message has the end of what it printed."""


def play(
    contestant: Contestant,
    setup: Setup,
    python: Path,
    number: int,
    seconds: float,
    learns_s: float = LEARNS_S,
) -> Played:
    """Plays one round.

    Args:
        contestant: the contestant that plays.
        setup: the setup that it plays.
        python: the contestant's interpreter.
        number: of the round, which is also the seed.
        seconds: how long to measure.
        learns_s: how long the servers have for their first updates.

    Raises:
        RoundFailed: the program ended by itself, or a server made no update within `learns_s`.
    """
    load = os.getloadavg()[0]
    with tempfile.TemporaryDirectory(prefix="peers", ignore_cleanup_errors=True) as place:
        folder = Path(place)
        program = _started(contestant.command(str(python), place, setup, number), folder)
        try:
            names = [server.name for server in setup.servers] if contestant.is_learning else []
            deadline = time.monotonic() + learns_s
            while not _all_play_and_learn(folder, setup, names):
                if time.monotonic() > deadline:
                    trained = {name: trained_env_steps(folder / "metrics", name) for name in names}
                    raise RoundFailed(
                        f"{contestant.title} ({setup}): all were to play, and servers that learn "
                        f"to train on their first batch within {learns_s:g} s, and they trained on "
                        f"{trained} env steps; {_said(folder)}"
                    )
                _look(program, contestant, setup, folder)
            begin = time.monotonic()
            while time.monotonic() < begin + seconds:
                _look(program, contestant, setup, folder)
            # In this order, so that all that was trained on has also been played by `end`.
            trained = {name: trained_env_steps(folder / "metrics", name) for name in names}
            end = time.monotonic()
            steps = read_steps(folder)
        finally:
            _end(program)
        rate, waits = measured(steps, begin, end)
        return Played(
            contestant.title,
            setup,
            number,
            rate,
            waits,
            sum(int((one[:, 1] <= end).sum()) for one in steps),
            trained,
            load,
        )


def measured(
    steps: list[np.ndarray], begin: float, end: float
) -> tuple[float, tuple[float, float, float]]:
    """Returns env steps per second, and p50, p99 and maximum of simulations' waits, in ms.

    A wait is the time from the end of a simulation's step to the beginning of its next. It counts
    if it ends in the measured time. A wait that is not over at `end` counts up to there, so that a
    stall longer than the measured time is not lost.

    Args:
        steps: of each simulation, float64 ``[num_steps, 2]``: when each began and ended, s.
        begin: of the measured time.
        end: of the measured time.
    """
    num_steps, waits = 0, []
    for one in steps:
        began, ended = one[:, 0], one[:, 1]
        num_steps += int(((ended > begin) & (ended <= end)).sum())
        next_began = np.append(began[1:], np.inf)
        counts = (next_began > begin) & (ended < end)
        waits.append(np.minimum(next_began, end)[counts] - ended[counts])
    waited = 1e3 * np.concatenate(waits)
    p50, p99 = np.percentile(waited, [50, 99])
    return num_steps / (end - begin), (float(p50), float(p99), float(waited.max()))


def read_steps(folder: Path) -> list[np.ndarray]:
    """Returns the steps of each simulation, float64 ``[num_steps, 2]``."""
    steps = []
    for path in sorted(folder.glob("steps-*.bin")):
        data = path.read_bytes()
        whole = len(data) // MOMENT.size * MOMENT.size
        if whole:  # a simulation that is only asked for its spaces writes nothing
            steps.append(np.frombuffer(data[:whole]).reshape(-1, 2))
    return steps


def update(updater: Updater, python: Path, number: int, num_updates: int) -> Updated:
    """Times updates on a batch, and takes the median of all but the first two.

    Raises:
        RoundFailed: the program failed.
    """
    load = os.getloadavg()[0]
    with tempfile.TemporaryDirectory(prefix="peers", ignore_cleanup_errors=True) as place:
        folder = Path(place)
        command = [str(python), "-m", *updater.program]
        command += [f"--updates={num_updates + 2}", f"--seed={number}", f"--out={place}/out.json"]
        program = _started(command, folder)
        try:
            code = program.wait(LEARNS_S)
        except subprocess.TimeoutExpired as error:
            raise RoundFailed(
                f"{updater.title}: no end in {LEARNS_S:g} s; {_said(folder)}"
            ) from error
        finally:
            _end(program)
        if code:
            raise RoundFailed(f"{updater.title} ended with exit code {code}; {_said(folder)}")
        took = json.loads((folder / "out.json").read_text())[2:]
    agent_steps = BATCH_ENV_STEPS * len(AGENTS)
    return Updated(updater.title, number, 1e3 * float(np.median(took)) * 1_000 / agent_steps, load)


def _started(command: list[str], folder: Path) -> Started:
    """Starts a program with its output in a file, and one thread for each process."""
    environment = {
        **{name: value for name, value in os.environ.items() if name != "RAY_ADDRESS"},
        **ONE_THREAD,
        "PYTHONPATH": f"{ROOT / 'src'}{os.pathsep}{ROOT}",
        "RAY_TMPDIR": str(folder),
    }
    with (folder / "output.txt").open("w") as output:
        return Started.of_program(command, folder.name, folder, stdout=output, env=environment)


def _all_play_and_learn(folder: Path, setup: Setup, learners: list[str]) -> bool:
    """Whether every simulation has made a step, and every server that learns has trained."""
    files = [path for path in folder.glob("steps-*.bin") if path.stat().st_size]
    return len(files) >= setup.num_simulations and all(
        trained_env_steps(folder / "metrics", name) for name in learners
    )


def _look(program: Started, contestant: Contestant, setup: Setup, folder: Path) -> None:
    """Waits a little; raises `RoundFailed` if the program has ended."""
    time.sleep(_LOOK_S)
    if (code := program.popen.poll()) is not None:
        raise RoundFailed(
            f"{contestant.title} ({setup}) ended with exit code {code}, and was to play on; "
            f"{_said(folder)}"
        )


def _said(folder: Path) -> str:
    """Returns the end of what a program printed."""
    lines = (folder / "output.txt").read_text(errors="replace").strip()[-1_500:]
    return f"it printed:\n{lines}" if lines else "it printed nothing"


def _end(program: Started) -> None:
    """Ends a program, first by Ctrl-C, and then kills all that it started."""
    if program.popen.poll() is None:
        program.popen.send_signal(signal.SIGINT)
        with contextlib.suppress(subprocess.TimeoutExpired):
            program.wait(ENDS_S)
    program.kill()
