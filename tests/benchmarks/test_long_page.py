"""A run that lasts eight times as long makes the page's news hardly larger."""

from __future__ import annotations

from pathlib import Path

import msgspec
from benchmarks.long_page import lengthened
from tests.orchestrator.watch.test_page import long_run

from muxrl.orchestrator.records.metrics import iter_metrics
from muxrl.orchestrator.watch.run_view import RunView


def test_news_do_not_grow_with_the_run(tmp_path: Path) -> None:
    short = long_run(tmp_path)  # of a minute
    sizes = []
    for minutes in (20, 160):  # curves are as full at the one as at the other
        run = lengthened(short, tmp_path / f"of {minutes}", 60.0 * minutes)
        records = list(iter_metrics(run.metrics / "joint.jsonl"))
        for key in ("time_s", "env_steps"):
            values = [record[key] for record in records]
            assert values == sorted(set(values)), "it goes on"
        assert records[-1]["time_s"] >= 60 * minutes - 60
        view = RunView(run.path)
        while not (state := view.read())["is_whole"]:
            pass
        assert state["env_steps"] == records[-1]["env_steps"]
        wolves = state["servers"][0]
        seconds = [sum(stretch[2 + i] for stretch in wolves["strip"]) for i in range(6)]
        passed = records[-1]["time_s"] - records[0]["time_s"]
        assert abs(sum(seconds) - passed) < 0.01 * passed, "strips lose nothing"
        sizes.append(len(msgspec.json.encode(state)))
    assert sizes[1] < 1.2 * sizes[0], sizes
