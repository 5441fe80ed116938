"""Table and picture of the runs in a folder."""

from __future__ import annotations

import json
from collections import defaultdict
from pathlib import Path
from statistics import fmean
from typing import Any

from muxrl.experiments.studies.pictures import Panel, draw_curves

_SIDES = {
    "muxrl": "muxrl",
    "benchmarl": "BenchMARL",
    "benchmarl_two_layer": "BenchMARL, two-layer hypernetworks",
}
_AXES = {
    "env_steps": "env steps",
    "wall_s": "wall time of training, s",
    "processor_s": "processor time of training, s",
}

Run = dict[str, Any]
Runs = dict[str, dict[str, list[Run]]]
"""By setting, by side, ordered by seed."""


def report(folder: Path, out: Path) -> str:
    """Draws `learning.png` into `out` and returns a Markdown table.

    Raises:
        OSError: a folder cannot be read or written to.
        ValueError: there is no run in it.
    """
    runs: Runs = defaultdict(lambda: defaultdict(list))
    for path in sorted(folder.glob("*_*_[0-9]*.json")):
        run = json.loads(path.read_text())
        runs[run["setting"]][run["side"]].append(run)
    if not runs:
        raise ValueError(f"{folder} holds no run; was `turns` given another folder?")
    random_return = json.loads((folder / "random.json").read_text())["return_mean"]
    rows = [
        [
            Panel(
                f"{setting} settings",
                label,
                {
                    name: [[(p[key], p["return_mean"]) for p in r["points"]] for r in sides[side]]
                    for side, name in _SIDES.items()
                    if side in sides
                },
                {"random": random_return},
                "return per agent",
            )
            for key, label in _AXES.items()
        ]
        for setting, sides in sorted(runs.items())
    ]
    draw_curves(rows, "Return of 50 greedy episodes", out / "learning.png")
    return f"{_table(runs)}\n\nrandom {random_return:.2f}\n"


def _table(runs: Runs) -> str:
    rows = [
        "| setting | side | last return, by seed | mean | updates | wall s | processor s |",
        "|---|---|---|---:|---:|---:|---:|",
    ]
    for setting, sides in sorted(runs.items()):
        for side in filter(sides.__contains__, _SIDES):
            last = [run["points"][-1] for run in sides[side]]
            returns = [point["return_mean"] for point in last]
            rows.append(
                f"| {setting} | {_SIDES[side]} | {', '.join(f'{r:.2f}' for r in returns)} "
                f"| {fmean(returns):.2f} "
                f"| {fmean(run['num_updates'] for run in sides[side]):,.0f} "
                f"| {_seconds(last, 'wall_s')} | {_seconds(last, 'processor_s')} |"
            )
    return "\n".join(rows)


def _seconds(points: list[dict[str, float]], key: str) -> str:
    return ", ".join(f"{point[key]:.0f}" for point in points)
