"""Stores what `muxrl compare` reads of the benchmark's sweeps, and writes README.md's table.

    python -m muxrl.experiments.benchmark.store sweeps/spread sweeps/foraging ...

A sweep's folder has its task's name. Checkpoints, logs, and files that name a machine are not
stored. Without folders only the table is written.
"""

from __future__ import annotations

import json
import re
import shutil
import sys
from collections.abc import Iterable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

from muxrl.orchestrator.comparisons.compare import Comparison, compare_runs
from muxrl.orchestrator.measure.number_text import MISSING, interval_lines, number
from muxrl.orchestrator.measure.statistics import Estimate

HERE = Path(__file__).parent
RESULTS, PAGE = HERE / "results", HERE / "README.md"
FILES = ("config.yaml", "plan.json", "versions.json", "metrics/evaluation.jsonl")
"""The files of a run that are read."""
_DIGITS = 4  # of a return; seeds differ by far more
_TABLE = re.compile(r"(?<=<!-- results -->\n\n).*?(?=\n\n)", re.DOTALL)


def store(sweep: Path, results: Path = RESULTS) -> Path:
    """Copies the read files of a sweep; returns the new folder, which replaces an older one."""
    stored = results / sweep.name
    shutil.rmtree(stored, ignore_errors=True)
    for run in sorted((sweep / "runs").iterdir()):
        for name in FILES:
            text = (run / name).read_text(encoding="utf-8")
            copy = stored / "runs" / run.name / name
            copy.parent.mkdir(parents=True, exist_ok=True)
            copy.write_text(_SHORT.get(copy.suffix, str)(text), encoding="utf-8")
    for name in ("sweep.yaml", "trials.jsonl"):
        shutil.copyfile(sweep / name, stored / name)
    return stored


def _plain(value: Any) -> str:
    return json.dumps(value, separators=(",", ":")) + "\n"


def _rounded(lines: str) -> str:
    """Returns evaluations with fewer decimals."""
    read = partial(json.loads, parse_float=lambda digits: round(float(digits), _DIGITS))
    return "".join(_plain(read(line)) for line in lines.splitlines())


_SHORT = {".json": lambda text: _plain(json.loads(text)), ".jsonl": _rounded}
"""By suffix of a file: how its text is shortened; other files stay as they are."""


def comparisons(tasks: Iterable[str]) -> dict[str, Comparison]:
    """Returns by task the comparison of its results.

    Returns of random agents are read from the results, too, so one played episode is enough.
    """
    return {task: compare_runs([RESULTS / task], num_episodes=1) for task in tasks}


def table(found: Mapping[str, Comparison]) -> str:
    """Returns a Markdown table with a row for each algorithm and a column for each task."""
    columns = {task: dict(_cells(one)) for task, one in found.items()}
    rows = list(dict.fromkeys(row for column in columns.values() for row in column))
    lines = ["| | " + " | ".join(columns) + " |", "|---|" + "---|" * len(columns)]
    for row in [*rows[2:], *rows[:2]]:
        cells = (column.get(row, MISSING) for column in columns.values())
        lines.append(f"| {row} | {' | '.join(cells)} |")
    return "\n".join(lines)


def _cells(found: Comparison) -> Iterator[tuple[str, str]]:
    roles = found.frame("roles").query("role == 'team'")
    yield "random", number(roles["random_in_place"].mean())
    yield "env steps, actions", f"{found.budget.place:,}, {_rule(found)}"
    for row in roles.to_dict("records"):
        yield str(row["label"]), _interval(row)


def _rule(found: Comparison) -> str:
    return "sampled" if found.should_explore else "greedy"


def _interval(row: dict[Any, Any]) -> str:
    return " ".join(interval_lines(Estimate(row["iqm"], row["iqm_low"], row["iqm_high"])))


if __name__ == "__main__":
    for argument in sys.argv[1:]:
        store(Path(argument))
    tasks = sorted(path.name for path in RESULTS.iterdir())
    PAGE.write_text(_TABLE.sub(table(comparisons(tasks)), PAGE.read_text("utf-8")), "utf-8")
