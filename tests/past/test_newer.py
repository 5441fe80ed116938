"""Every command refuses files of a newer muxrl and leaves them as they are."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path

import pytest

from muxrl import RunResult, SweepResult, launch, load_policy, sweep
from muxrl.orchestrator import cli
from muxrl.orchestrator.errors import OrchestratorError
from muxrl.orchestrator.watch.app import view_of
from muxrl.servers.setting_values import AlgorithmProblem

NEWER = "was made by a newer muxrl (format 3; this one reads up to 1): update muxrl"


@pytest.fixture
def newer(past: Path) -> Path:
    """Gives a folder with a run and a sweep whose records have format 3."""
    plan = past / "one" / "plan.json"
    plan.write_text(json.dumps({"format": 3, **json.loads(plan.read_text())}))
    trials = past / "swept" / "trials.jsonl"
    trials.write_text(re.sub("(?m)^{", '{"format": 3, ', trials.read_text()))
    return past


def files(folder: Path) -> dict[Path, bytes]:
    """Returns a folder's files, without the empty ones by which runs and sweeps are locked."""
    paths = (p for p in folder.rglob("*") if p.is_file() and p.name not in ("lock", ".lock"))
    return {path: path.read_bytes() for path in paths}


@pytest.mark.parametrize(
    "command",
    [
        "report one",
        "report one two --out both",
        "compare one two",
        "evaluate one",
        "export one",
        "launch --resume one stop.env_steps=440",
        "logs one",
        "stop one",
        "compare swept",
        "sweep --resume swept",
    ],
)
def test_commands_refuse_files_of_a_newer_muxrl_and_change_nothing(
    command: str,
    newer: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(newer)
    before = files(newer)
    assert cli.main(command.split()) == 2
    assert NEWER in " ".join(capsys.readouterr().err.split())
    assert files(newer) == before


def test_the_listing_names_files_of_a_newer_muxrl(
    newer: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["runs", str(newer), "--json"]) == 0
    causes = {entry["name"]: entry.get("cause") for entry in json.loads(capsys.readouterr().out)}
    assert causes == {
        "one": f"{newer / 'one'} {NEWER}",
        "two": "",
        "swept": f"{newer / 'swept'} {NEWER}",
    }


@pytest.mark.parametrize(
    ("name", "read"),
    [
        ("one", RunResult.read),
        ("one", view_of),
        ("one", lambda path: launch(path, resume=True)),
        ("swept", SweepResult.read),
        ("swept", lambda path: view_of(path).read()),
        ("swept", lambda path: sweep(path, resume=True)),
    ],
)
def test_functions_refuse_files_of_a_newer_muxrl(
    name: str, read: Callable[[Path], object], newer: Path
) -> None:
    before = files(newer)
    with pytest.raises(OrchestratorError, match=re.escape(NEWER)):
        read(newer / name)
    assert files(newer) == before


def test_a_newer_checkpoint_is_refused(past: Path, capsys: pytest.CaptureFixture[str]) -> None:
    checkpoint = past / "one" / "checkpoints" / "400"
    for name, written, newer in (("ppo/muxrl.json", 1, 4), ("manifest.json", 1, 3)):
        path = checkpoint / name
        path.write_text(path.read_text().replace(f'"format": {written}', f'"format": {newer}'))
    problem = re.escape("made by a newer muxrl (format 4; this one reads up to 1): update muxrl")
    with pytest.raises(AlgorithmProblem, match=rf"muxrl\.json of checkpoint .*{problem}"):
        load_policy(past / "one")
    before = files(past)
    assert cli.main(["launch", "--resume", str(past / "one"), "stop.env_steps=440"]) == 2
    assert f"manifest.json {NEWER}" in " ".join(capsys.readouterr().err.split())
    assert files(past) == before
