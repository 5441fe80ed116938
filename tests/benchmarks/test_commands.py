"""Every command of a benchmark or a study runs with its smallest budget."""

from __future__ import annotations

import importlib
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SMALLEST: dict[str, list[str] | str] = {
    "benchmarks.acting": ["--seconds", "0"],
    "benchmarks.learners": ["--rounds", "1", "--cases", "DQN", "--simulations", "1"],
    "benchmarks.messages": ["--rounds", "1", "--cases", "1 row"],
    "benchmarks.peers": [
        *("--rounds", "1", "--seconds", "0.5", "--setups", "1x1", "--updaters"),
        *("--contestants", "muxrl, remote"),
    ],
    "benchmarks.pools": ["--rounds", "2", "--seconds", "0.1", "--simulations", "1"],
    "benchmarks.scale": ["--seconds", "0.2", "--cases", "processes"],
    "benchmarks.soak": "what it judges takes minutes",
    "benchmarks.starts": ["--rounds", "1"],
    "benchmarks.step_path": [
        *("--rounds", "1", "--seconds", "0.2", "--simulations", "1", "--vectors", "4")
    ],
    "muxrl.experiments.studies.beside_benchmarl.run": [
        *("run", "qmix", "muxrl", "default", "0", "--env-steps", "1000", "--out", "{out}")
    ],
    "muxrl.experiments.studies.progress.cases": "it compares checkpoints of long runs",
    # Trains nothing; see test_studies.py.
    "muxrl.experiments.studies.compared_outcomes": ["--help"],
}
"""By module: arguments of the smallest budget, or the reason why there is none.

Modules with a table of cases get `SMALLEST_OF_CASES` and their first case.
"""
SMALLEST_OF_CASES = ["--seeds", "0", "--env-steps", "1000", "--out", "{out}"]


def commands() -> list[str]:
    """Returns the modules that users run, without programs that other ones start."""
    found = []
    for folder, package in (("benchmarks", "benchmarks"), ("experiments/studies", "")):
        for path in sorted((ROOT / folder).rglob("*.py")):
            if '__name__ == "__main__"' in path.read_text() and "contestants" not in path.parts:
                name = ".".join(path.relative_to(ROOT).with_suffix("").parts)
                name = name.removesuffix(".__main__")
                found.append(name if package else f"muxrl.{name}")
    return found


def test_every_command_has_a_smallest_budget() -> None:
    lacking = [name for name in commands() if name not in SMALLEST and not name.endswith(".cases")]
    assert not lacking, f"give these their smallest budgets in SMALLEST: {lacking}"
    assert not SMALLEST.keys() - commands()


@pytest.mark.night
@pytest.mark.ray
@pytest.mark.timeout(600)
@pytest.mark.parametrize("module", commands())
def test_a_command_runs_with_the_smallest_budget(module: str, tmp_path: Path) -> None:
    arguments = SMALLEST.get(module)
    if isinstance(arguments, str):
        pytest.skip(arguments)
    if arguments is None:
        first = next(iter(importlib.import_module(module).TABLE.cases))
        arguments = ["--cases", first.replace("[", "[[]"), *SMALLEST_OF_CASES]
    done = subprocess.run(
        [sys.executable, "-m", module, *(a.format(out=tmp_path / "out") for a in arguments)],
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": f"{ROOT / 'src'}{os.pathsep}{ROOT}"},
        timeout=580,
        check=False,
    )
    if lacks := re.search(r"No module named '(?!muxrl|benchmarks)(\w+)", done.stderr):
        pytest.skip(f"needs {lacks[1]}, which is not installed here")
    assert done.returncode == 0, done.stderr[-2_000:]
    assert done.stdout
