"""The tutorial's files do what docs/tutorial.md says; the tests do not train with them."""

from __future__ import annotations

import importlib
import shutil
import sys
from pathlib import Path

import pytest
from pettingzoo.test import parallel_api_test

from muxrl.orchestrator.cli import main

FILES = Path(__file__).parents[2] / "experiments" / "examples" / "tutorial"


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Gives a reader's folder with the three files, where `muxrl` is started."""
    for file in FILES.iterdir():
        if file.suffix in (".py", ".yaml"):
            shutil.copy(file, tmp_path)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path, str(tmp_path)])
    return tmp_path


def test_the_environment_passes_pettingzoo_s_tests(folder: Path) -> None:
    parallel_api_test(importlib.import_module("toll_bridge").TollBridge(), num_cycles=100)


def test_the_experiment_is_checked(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check", "bridge.yaml"]) == 0
    assert "qmix:driver_0,driver_1,driver_2|ppo:keeper" in capsys.readouterr().out


def test_the_sweep_has_twelve_trials(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["sweep", "bridge_sweep.yaml", "--dry-run", "calibration_s=0"]) == 0
    assert "12 trials" in capsys.readouterr().out
