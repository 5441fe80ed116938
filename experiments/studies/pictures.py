"""Draws the picture of all studies: returns against env steps, every seed and their mean."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Any

from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.ticker import EngFormatter

from muxrl.orchestrator.reports.plots import COLOURS
from muxrl.orchestrator.storage.json_files import write_whole

_DASHES: tuple[Any, ...] = ("-", (0, (6, 2)), (0, (2, 2)))
_LEVEL_COLOUR = "#6B6B6B"
_TEXT = 8  # points
_COLUMNS = 4

Curve = Sequence[tuple[float, float]]
"""One seed's points: (env steps, return)."""


@dataclass(frozen=True)
class Panel:
    """One pair of axes."""

    title: str
    curves: Mapping[str, Sequence[Curve]]
    """By contestant: a curve for each seed."""
    levels: Mapping[str, float]
    """By name: returns without a curve, such as that of random actions."""


def draw_curves(panels: Sequence[Panel], title: str, path: Path) -> None:
    """Draws panels as a PNG: each seed thin, their mean thick, levels dotted.

    Args:
        panels: in rows of up to four.
        title: of the picture, which says how returns were measured.
        path: of the file.
    """
    num_columns = min(len(panels), _COLUMNS)
    num_rows = -(-len(panels) // _COLUMNS)
    size = (max(5.2, 3.2 * num_columns), 2.6 * num_rows + 0.7)
    figure = Figure(figsize=size, layout="constrained")
    FigureCanvasAgg(figure)
    figure.suptitle(f"{title}; each seed thin, their mean thick", fontsize=_TEXT, wrap=True)
    grid: Any = figure.subplots(num_rows, num_columns, squeeze=False)
    names = list(dict.fromkeys(name for panel in panels for name in panel.curves))
    handles: dict[str, Any] = {}
    for axes, panel in zip(grid.flat, panels, strict=False):
        handles |= _draw_panel(axes, panel, names)
    for axes in grid[:, 0]:
        axes.set_ylabel("return", fontsize=_TEXT)
    for axes in grid.flat[len(panels) :]:
        axes.set_axis_off()
    figure.legend(handles.values(), handles, loc="outside lower center", ncols=4, fontsize=_TEXT)
    write_whole(path, lambda temporary: figure.savefig(temporary, dpi=100))


def _draw_panel(axes: Any, panel: Panel, names: Sequence[str]) -> dict[str, Any]:
    handles = {}
    for name, seeds in panel.curves.items():
        number = names.index(name)
        # Equal curves would hide each other, so later ones are thinner and dashed.
        style = {"color": COLOURS[number % len(COLOURS)], "ls": _DASHES[number % len(_DASHES)]}
        width = 2.8 - 1.4 * number / len(names)
        for curve in seeds:
            axes.plot(*zip(*curve, strict=True), **{**style, "ls": "-"}, lw=0.7, alpha=0.5)
        # The mean goes as far as all seeds have points.
        points = [list(zip(*at, strict=True)) for at in zip(*seeds, strict=False)]
        xs, ys = [fmean(x) for x, _ in points], [fmean(y) for _, y in points]
        (line,) = axes.plot(xs, ys, **style, lw=width)
        handles[name] = line
    for level, value in panel.levels.items():
        axes.axhline(value, color=_LEVEL_COLOUR, ls=":", lw=1)
        axes.annotate(
            level, (1, value), xycoords=("axes fraction", "data"), fontsize=_TEXT - 1,
            ha="right", va="bottom", color=_LEVEL_COLOUR, zorder=5,
        )  # fmt: skip
    axes.set_title(panel.title, fontsize=_TEXT)
    axes.set_xlabel("env steps", fontsize=_TEXT)
    axes.xaxis.set_major_formatter(EngFormatter(sep=""))
    axes.tick_params(labelsize=_TEXT)
    axes.grid(alpha=0.25)
    return handles
