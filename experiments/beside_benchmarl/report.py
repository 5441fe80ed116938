"""Table and picture of the runs in a folder."""

from __future__ import annotations

import json
from collections import defaultdict
from pathlib import Path
from statistics import fmean
from typing import Any

from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.ticker import EngFormatter

_SIDES = {
    "muxrl": ("muxrl", "#0072B2"),
    "benchmarl": ("BenchMARL", "#D55E00"),
    "benchmarl_two_layer": ("BenchMARL, two-layer hypernetworks", "#009E73"),
}
_AXES = {
    "env_steps": "env steps",
    "wall_s": "wall time of training, s",
    "processor_s": "processor time of training, s",
}
_RANDOM_COLOUR = "#6B6B6B"

Run = dict[str, Any]
Runs = dict[tuple[str, str], list[Run]]
"""By setting and side, ordered by seed."""


def report(folder: Path) -> None:
    """Prints a Markdown table and draws `learning.png`.

    Raises:
        OSError: the folder cannot be read or written to.
        ValueError: there is no run in it.
    """
    runs: Runs = defaultdict(list)
    for path in sorted(folder.glob("*_*_[0-9]*.json")):
        run = json.loads(path.read_text())
        runs[run["setting"], run["side"]].append(run)
    if not runs:
        raise ValueError(f"{folder} holds no run; was `turns` given another folder?")
    random_return = json.loads((folder / "random.json").read_text())["return_mean"]
    print(_table(runs))
    print(f"\nrandom {random_return:.2f}")
    _draw(runs, random_return, folder / "learning.png")


def _table(runs: Runs) -> str:
    rows = [
        "| setting | side | last return, by seed | mean | updates | wall s | processor s |",
        "|---|---|---|---:|---:|---:|---:|",
    ]
    for (setting, side), seeds in sorted(runs.items(), key=_place):
        last = [run["points"][-1] for run in seeds]
        returns = [point["return_mean"] for point in last]
        rows.append(
            f"| {setting} | {_SIDES[side][0]} | {', '.join(f'{r:.2f}' for r in returns)} "
            f"| {fmean(returns):.2f} "
            f"| {fmean(run['num_updates'] for run in seeds):,.0f} "
            f"| {_seconds(last, 'wall_s')} | {_seconds(last, 'processor_s')} |"
        )
    return "\n".join(rows)


def _place(item: tuple[tuple[str, str], list[Run]]) -> tuple[str, int]:
    (setting, side), _ = item
    return setting, list(_SIDES).index(side)


def _seconds(points: list[dict[str, float]], key: str) -> str:
    return ", ".join(f"{point[key]:.0f}" for point in points)


def _draw(runs: Runs, random_return: float, path: Path) -> None:
    settings = sorted({setting for setting, _ in runs})
    figure = Figure(figsize=(9.0, 2.6 * len(settings) + 0.5), layout="constrained")
    FigureCanvasAgg(figure)
    grid = figure.subplots(len(settings), len(_AXES), sharey=True, squeeze=False)
    for row, setting in zip(grid, settings, strict=True):
        for axes, (key, label) in zip(row, _AXES.items(), strict=True):
            for side, (name, colour) in _SIDES.items():
                _draw_side(axes, runs.get((setting, side), []), key, name, colour)
            axes.axhline(random_return, color=_RANDOM_COLOUR, linestyle=(0, (3, 1.5)), lw=1)
            axes.set_xlabel(label, fontsize=8)
            axes.xaxis.set_major_formatter(EngFormatter(sep=""))
            axes.tick_params(labelsize=7.5)
            axes.grid(alpha=0.25, lw=0.5)
            axes.spines[["top", "right"]].set_visible(False)
        row[0].set_ylabel(f"{setting} settings\nreturn per agent", fontsize=8)
    grid[0][-1].annotate(
        "random", (1, random_return), xycoords=("axes fraction", "data"), ha="right", va="bottom",
        fontsize=7, color=_RANDOM_COLOUR,
    )  # fmt: skip
    figure.legend(
        *grid[-1][0].get_legend_handles_labels(), loc="outside upper center", ncols=len(_SIDES),
        fontsize=8, frameon=False,
    )  # fmt: skip
    figure.savefig(path, dpi=200)


def _draw_side(axes: Any, seeds: list[Run], key: str, name: str, colour: str) -> None:
    """Each seed thin; their mean, point by point on both axes, thick."""
    curves = [
        ([p[key] for p in run["points"]], [p["return_mean"] for p in run["points"]])
        for run in seeds
    ]
    for x, y in curves:
        axes.plot(x, y, color=colour, lw=0.7, alpha=0.5)
    if curves:
        xs, ys = zip(*curves, strict=True)
        mean_x = [fmean(point) for point in zip(*xs, strict=True)]
        mean_y = [fmean(point) for point in zip(*ys, strict=True)]
        axes.plot(mean_x, mean_y, color=colour, lw=1.8, marker="o", ms=3, label=name)
