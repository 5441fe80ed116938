"""The referee of a race, with programs of a few lines as contestants."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from benchmarks.peers import __main__ as peers
from benchmarks.peers.contest import CONTESTANTS, OURS, UPDATERS, Contestant, Updater
from benchmarks.peers.environments import OWN, REQUIREMENTS, EnvironmentFailed
from benchmarks.peers.findings import Findings
from benchmarks.peers.race import ROOT, RoundFailed, play
from benchmarks.peers.work import Setup

ONE = Setup(1, 1)
PROGRAM = """
import sys, time
from pathlib import Path
from benchmarks.peers.simulation import TimedZeroCost
from benchmarks.peers.updates import UpdateLog

folder = next(a.partition("=")[2] for a in sys.argv if a.startswith("--folder="))
simulation, played = TimedZeroCost(folder), 0
log = UpdateLog(Path(folder) / "metrics", "ppo_0")
while True:
    simulation.reset()
    while simulation.agents:
        simulation.step(dict.fromkeys(simulation.agents, 0))
        time.sleep(0.002)
        played += 1
    {update}
"""


def contestant(tmp_path: Path, title: str, program: str) -> Contestant:
    """Returns a contestant with its own program, run by a small interpreter that drops ``-m``."""
    script = tmp_path / f"{title}.py"
    script.write_text(program)
    interpreter = tmp_path / "python"
    interpreter.write_text(f'#!/bin/sh\nshift\nexec "{sys.executable}" "$@"\n')
    interpreter.chmod(0o755)
    return Contestant(title, OWN, (str(script),), OURS, (ONE,))


def test_a_contestant_that_fails_is_named_and_the_others_go_on(tmp_path: Path) -> None:
    good = contestant(tmp_path, "good", PROGRAM.format(update="log.add(played)"))
    bad = contestant(tmp_path, "bad", "import sys\nsys.exit('no licence found')")
    found = Findings("", "", "", "", {}, 2.0, 1, [], [], [])
    peers.race(found, {OWN: tmp_path / "python"}, [bad, good], [ONE], [], 1)
    (failure,) = found.failures
    assert failure.who == f"bad, {ONE}"
    assert "ended with exit code 1" in failure.why
    assert "no licence found" in failure.why
    (one,) = found.played
    assert one.contestant == "good"
    assert one.played >= one.trained["ppo_0"] >= 100
    assert one.env_steps_per_s > 0
    assert 2.0 <= one.wait_ms[0] <= one.wait_ms[1] <= one.wait_ms[2]


def test_a_contestant_that_plays_but_does_not_learn_has_failed(tmp_path: Path) -> None:
    idle = contestant(tmp_path, "idle", PROGRAM.format(update="pass"))
    with pytest.raises(RoundFailed, match=r"first batch within 1 s, and they trained on .*: 0}"):
        play(idle, ONE, tmp_path / "python", 0, 0.1, learns_s=1.0)


def test_everybody_is_compared_with_one_of_ours_that_plays_and_learns_alike() -> None:
    by_title = {one.title: one for one in CONTESTANTS}
    assert len(by_title) == len(CONTESTANTS)
    for one in CONTESTANTS:
        ours = by_title[one.beside]
        assert ours.environment == OWN
        assert ours.is_learning == one.is_learning
        assert set(one.setups) <= set(ours.setups)


@pytest.mark.parametrize("one", [*CONTESTANTS, *UPDATERS], ids=lambda one: one.title)
def test_each_program_exists_and_its_packages_are_pinned(one: Contestant | Updater) -> None:
    assert ROOT.joinpath(*one.program[0].split(".")).with_suffix(".py").is_file()
    if one.environment != OWN:
        lines = (REQUIREMENTS / f"{one.environment}.txt").read_text().splitlines()
        assert all("==" in line for line in lines if not line.startswith("#"))
        assert "torch==2.13.0" in lines


def test_the_exit_code_of_a_race_in_which_somebody_failed(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    def fail(name: str, folder: Path) -> Path:
        raise EnvironmentFailed(f"no {name}")

    monkeypatch.setattr(peers, "environment", fail)
    out = tmp_path / "out"
    monkeypatch.setattr(sys, "argv", ["peers", "--rounds", "1", "--out", str(out)])
    assert peers.main() == 1
    page = capsys.readouterr().out
    assert "**Failed**" in page
    assert "environment old_rllib: no old_rllib" in page
    found = Findings.read(out / "findings.json")
    assert found.failures
    assert found.command == "python -m benchmarks.peers --rounds 1"  # without the folder of files
