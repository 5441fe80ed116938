"""The page of a sweep shows its trials, with curves from their runs."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest
from tests.orchestrator.records.recorded import evaluation, write_whole_run
from tests.orchestrator.watch.browser import Browser
from tests.orchestrator.watch.conftest import Site

from muxrl.orchestrator.manage.listing import Listing
from muxrl.orchestrator.records.metrics import MetricsWriter
from muxrl.orchestrator.records.run_directory import RunDirectory
from muxrl.orchestrator.records.run_status import StatusFile
from muxrl.orchestrator.sweeps.directory import SweepDirectory, TrialRecord
from muxrl.orchestrator.watch.sweep_view import SweepView

SERVERS = {
    "wolves": {"algorithm": "QMIX", "agents": ["wolf_0", "wolf_1"]},
    "sheep": {"algorithm": "PPO", "agents": ["sheep"]},
}
TRIALS = [
    TrialRecord(f"{i}-qmix-s{i}", "a", {"wolves": "qmix", "sheep": "ppo"}, {"lr": 0.1 * i}, i)
    for i in range(4)
]


def new_sweep(root: Path, of: str, source: str = "evaluation") -> SweepDirectory:
    """Makes a sweep in which trial 0 is done, 1 is running, 2 is waiting and 3 has failed."""
    sweep = SweepDirectory.create(root, "tuned", datetime(2026, 11, 21))
    sweep.config_file.write_text(f"metric: {{of: {of}, source: {source}, mode: max}}\n")
    for i in (0, 1):
        run = RunDirectory.create_at(sweep.runs / TRIALS[i].id)
        run.write_plan({"servers": SERVERS, "assignment": "a", "seed": i})
        write_whole_run(run, shift=10.0 * i)
    done = replace(TRIALS[0], status="done", run_dir=f"runs/{TRIALS[0].id}", metric=5.5)
    runs = replace(TRIALS[1], status="running", run_dir=f"runs/{TRIALS[1].id}")
    failed = replace(TRIALS[3], status="failed", cause="no <b>room</b>", metric=99.0)
    sweep.write_trials([replace(done, env_steps=1_000), runs, TRIALS[2], failed])
    return sweep


@pytest.mark.parametrize(
    ("of", "expected"),
    [("wolves", [(0, 0.5), (1_000, 5.5)]), ("total", [(0, 1.0), (1_000, 10.0)])],
)
def test_a_trial_s_curve_is_the_sweep_s_metric(
    tmp_path: Path, of: str, expected: list[tuple[int, float]]
) -> None:
    state = SweepView(new_sweep(tmp_path, of).path).read()
    first, second, waits, failed = state["trials"]
    assert first["curve"] == [(n, pytest.approx(value)) for n, value in expected]
    gain = 10.0 if of == "wolves" else 30.0
    assert second["curve"] == [(n, pytest.approx(value + gain)) for n, value in expected]
    assert second["env_steps"] == 990, "of a trial that goes on, from its own files"
    assert (waits["curve"], failed["curve"]) == ([], [])
    assert state["is_whole"]
    json.dumps(state)


def test_a_trial_whose_process_was_killed_is_interrupted(tmp_path: Path) -> None:
    sweep = new_sweep(tmp_path, "wolves")
    run = RunDirectory(sweep.runs / TRIALS[1].id)
    StatusFile(run).enter("running", 0)
    view, folder = SweepView(sweep.path), Listing(tmp_path)
    assert view.read()["trials"][1]["status"] == "running", "this process lives"
    assert folder.read()["entries"][0]["state"] == "running"
    gone = subprocess.Popen([sys.executable, "-c", ""])
    gone.wait()
    status = json.loads((run.path / "status.json").read_text())
    (run.path / "status.json").write_text(json.dumps(status | {"pid": gone.pid}))
    assert view.read()["trials"][1]["status"] == "interrupted"
    assert folder.read()["entries"][0]["state"] == "interrupted"


@pytest.mark.parametrize("source", ["evaluation", "training"])
def test_training_returns_are_shown_without_evaluations_or_if_the_metric_is_of_training(
    tmp_path: Path, source: str
) -> None:
    sweep = new_sweep(tmp_path, "wolves", source)
    if source == "evaluation":
        (sweep.runs / TRIALS[1].id / "metrics" / "evaluation.jsonl").unlink()
    assert SweepView(sweep.path).read()["trials"][1]["curve"] == [
        (100, 1.0),  # of the only wolf with a return
        (500, 1.0),
        (990, 2.0),
    ]


def rows(tab: Browser) -> dict[str, dict[str, Any]]:
    read: list[Any] = tab.evaluate("""
        [...document.querySelectorAll('[data-trial]')].map((row) => [row.dataset.trial, {
          cells: Object.fromEntries(
            [...row.querySelectorAll('td')].map((cell) => [cell.dataset.name, cell.innerText])),
          link: row.querySelector('th a')?.getAttribute('href') ?? null,
          text: row.querySelector('th').innerText,
          line: row.querySelector('.line')?.getAttribute('d') || '' }])
    """)
    return dict(read)


def test_trials_are_rows_that_follow_the_sweep(tab: Browser, site: Site) -> None:
    sweep = new_sweep(site.root, "wolves")
    tab.open(f"{site.address}/?of={quote(sweep.name)}")
    tab.wait("document.querySelectorAll('[data-trial] .line').length === 2")
    shown = rows(tab)
    assert list(shown) == [trial.id for trial in TRIALS]
    done, runs, waits, failed = shown.values()
    assert done["cells"] == {
        **{"state": "done", "wolves": "qmix", "sheep": "ppo", "lr": "0", "seed": "0"},
        **{"env steps": "1,000", "return": "5.50", "best so far": "5.50", "over env steps": ""},
    }
    assert (runs["cells"]["return"], runs["cells"]["env steps"]) == ("15.50", "990")
    assert (waits["cells"]["return"], waits["link"]) == ("–", None)
    assert "no <b>room</b>" in failed["text"]
    assert done["line"].count("L") == 1, "two evaluations"
    text = tab.evaluate("document.body.innerText")
    assert "4 trials: 1 done, 1 running, 1 waiting, 1 failed" in text
    assert "Best so far: 1-qmix-s1 with 15.50" in text
    tab.resize(390)
    assert tab.evaluate("document.documentElement.scrollWidth") <= 390
    tab.resize(1280)

    with MetricsWriter(RunDirectory(sweep.runs / TRIALS[1].id)) as metrics:
        metrics.evaluation(evaluation(2_000, None, [-3.0], [-4.0], [0.0]))
    tab.wait("document.body.innerText.includes('−3.50')")
    assert rows(tab)[TRIALS[1].id]["cells"]["best so far"] == "15.50"
    assert "Best so far: 0-qmix-s0 with 5.50" in tab.evaluate("document.body.innerText")

    tab.open(f"{site.address}/{done['link']}")
    tab.wait("document.querySelector('svg.assignment')")
    assert tab.evaluate("document.querySelector('h1').innerText").startswith(TRIALS[0].id)
    above = "document.querySelector('#trail a:nth-of-type(2)')"
    assert tab.evaluate(f"{above}.innerText") == sweep.name
    assert tab.evaluate(f"{above}.getAttribute('href')") == f"?of={sweep.name}"
