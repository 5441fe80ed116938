"""The benchmark's tasks can be run again, and its table shows its stored results."""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import pytest
from tests.nights import at_night

from muxrl.experiments.benchmark.store import FILES, PAGE, RESULTS, comparisons, store, table
from muxrl.orchestrator.comparisons.compare import Comparison, compare_runs, default_folder
from muxrl.orchestrator.config import find_config, packaged_configs
from muxrl.orchestrator.config.load import load_written
from muxrl.orchestrator.errors import CannotCompare
from muxrl.orchestrator.sweeps.load import load_sweep
from muxrl.orchestrator.sweeps.plan import make_plan
from muxrl.orchestrator.sweeps.schema import SweepConfig

TASKS = sorted(path.name for path in RESULTS.iterdir())


BY_DAY = ["foraging", "spread_continuous", "tag"]
"""Tasks that cover sampled and greedy evaluations, one role and two, and all algorithms."""


@pytest.fixture(scope="module", params=at_night([BY_DAY, TASKS], [TASKS]))
def compared(request: pytest.FixtureRequest) -> dict[str, Comparison]:
    return comparisons(request.param)


def stored_sweep(task: str) -> SweepConfig:
    config = load_written(RESULTS / task / "sweep.yaml", SweepConfig)
    assert isinstance(config, SweepConfig)
    return config


def test_every_task_has_results() -> None:
    named = {name for name in packaged_configs() if name.startswith("benchmark/")}
    assert named == {f"benchmark/{task}" for task in TASKS}


@pytest.mark.parametrize("task", TASKS)
def test_a_stored_task_can_be_run_again(task: str) -> None:
    for package in re.findall(r"\(package (\w+)\)", find_config(f"benchmark/{task}").read_text()):
        pytest.importorskip(package)
    trials = (RESULTS / task / "trials.jsonl").read_text().splitlines()
    plan = make_plan(stored_sweep(task))
    assert [spec.id for spec in plan.trials] == [json.loads(t)["id"] for t in trials]


def test_the_script_has_the_command_of_each_sweep() -> None:
    file = PAGE.with_name("sweep_all.sh")
    shown = re.findall(r"^(muxrl sweep.*|[A-Z]+=.*)$", file.read_text(), re.MULTILINE)
    script = "\n".join(["muxrl() { echo $2 $*; }", "set -f", *shown])
    told = subprocess.run(["bash", "-c", script], check=True, capture_output=True, text=True).stdout
    named = set()
    for source, *words in map(str.split, told.splitlines()):
        task = words[words.index("--sweep-dir") + 1].removeprefix("sweeps/")
        asked = load_sweep(source, [word for word in words if "=" in word])
        assert replace(asked, base="") == stored_sweep(task), task
        named.add(task)
    assert named == {*TASKS}


def test_all_stored_results_are_compared(compared: Mapping[str, Comparison]) -> None:
    for task, found in compared.items():
        sweep = stored_sweep(task)
        roles = found.frame("roles").query("role == 'team'")
        assert dict(zip(roles.label, roles.num_runs, strict=True)) == dict.fromkeys(
            sweep.algorithms, len(sweep.seeds)
        )
        assert found.budget.place == sweep.experiment.stop.env_steps
        assert not [note for note in found.notes if "left out" in note or "versions" in note]


def cells(text: str) -> dict[tuple[str, str], str]:
    """Returns the cells of a table by task and row."""
    tasks, _, *rows = [line.strip("| ").split(" | ") for line in text.splitlines()]
    return {
        (task, name): cell for name, *row in rows for task, cell in zip(tasks, row, strict=True)
    }


def test_the_table_shows_the_stored_results(compared: Mapping[str, Comparison]) -> None:
    (shown,) = re.findall(r"<!-- results -->\n\n(.*?)\n\n", PAGE.read_text(), re.DOTALL)
    found = cells(table(compared))
    assert {row for _, row in found} == {row for _, row in cells(shown)}
    assert found.items() <= cells(shown).items()
    assert compared.keys() != {*TASKS} or shown == table(compared)


def test_shares_of_truncated_episodes_stay_within_0_and_1(
    compared: Mapping[str, Comparison],
) -> None:
    shares = compared["foraging"].frame("standings").query("subject == 'metric:truncated'")
    ends = shares[["iqm_low", "iqm_high", "mean_low", "mean_high"]].to_numpy()
    assert len(shares) == 13
    assert ((ends >= 0) & (ends <= 1)).all()


def test_stored_results_are_small_and_name_no_machine() -> None:
    files = [path for path in RESULTS.rglob("*") if path.is_file()]
    assert sum(path.stat().st_size for path in files) < 450_000 * len(TASKS)
    of_runs = {"/".join(path.relative_to(RESULTS).parts[3:]) for path in files} - {""}
    assert of_runs == {*FILES}
    for path in files:
        assert not re.search(r"""["'\s]/\w|"host"|"pid""", path.read_text()), path


def test_a_stored_sweep_is_read_back_unchanged(tmp_path: Path) -> None:
    again = store(RESULTS / TASKS[0], tmp_path)
    for path in again.rglob("*.*"):
        assert path.read_bytes() == (RESULTS / path.relative_to(tmp_path)).read_bytes()


def test_another_task_is_refused() -> None:
    run = next((RESULTS / "spread/runs").iterdir())
    with pytest.raises(CannotCompare, match=r"cannot be compared: simulation\.env is"):
        compare_runs([run, "benchmark/two_step"])


def test_missing_results_are_refused() -> None:
    with pytest.raises(CannotCompare, match="name of stored results; did you mean 'spread'"):
        compare_runs(["benchmark/sprea"])


def test_the_report_is_written_beside_the_user_s_run(tmp_path: Path) -> None:
    assert default_folder([Path("benchmark/spread"), tmp_path]) == tmp_path.parent / "comparison"
    assert default_folder([Path("benchmark/spread")]) == Path.cwd() / "comparison"
