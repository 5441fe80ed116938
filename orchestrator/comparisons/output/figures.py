"""The figures of a comparison: one panel each, as SVG, small enough for a phone.

Text stays text, so that figures are sharp at any size and a page with twenty of them is small.
Contestants differ by colour and dashes, which the page's key explains. Only matplotlib's object
interface is used: no global state, no display.
"""

from __future__ import annotations

import base64
import io
import textwrap
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import matplotlib
import numpy as np
from matplotlib.backends.backend_svg import FigureCanvasSVG
from matplotlib.colors import LinearSegmentedColormap
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from muxrl.orchestrator.comparisons.findings.findings import Findings
from muxrl.orchestrator.comparisons.findings.head_to_head import CrossPlay, HeadToHead
from muxrl.orchestrator.comparisons.findings.scores import Axis, band, luck_of
from muxrl.orchestrator.measure.subjects import Subject
from muxrl.orchestrator.reports.plots import (
    RANDOM_COLOUR,
    Style,
    draw_band,
    finish_axes,
    styles_of,
)

if TYPE_CHECKING:
    from pandas import DataFrame

_SIZE = (4.4, 2.9)  # inches; 317 points wide, so that text is near its size on a phone
_TEXT = 8.5  # points
_ROW_INCHES = 0.36
_LABEL_WIDTH = 26  # characters
_ORANGE_TO_BLUE = LinearSegmentedColormap.from_list("payoffs", ["#e7b08a", "#ffffff", "#8abbdb"])
_RANDOM: dict[str, Any] = {"color": RANDOM_COLOUR, "ls": (0, (3, 1.5)), "lw": 1, "zorder": 1}
_BAND: dict[str, Any] = {"linewidth": 1.6, "alpha": 0.13}
_SVG = {
    "svg.fonttype": "none",
    "svg.hashsalt": "muxrl",  # the same comparison makes the same file
}


@dataclass(frozen=True)
class Picture:
    """One figure: its data URI, its description and its caption."""

    uri: str
    alt: str
    caption: str


def learning_curves(
    found: Findings, subject: Subject, axis: Axis, styles: Mapping[str, Style]
) -> Picture | None:
    """Interquartile means over runs with their bands; None if no contestant has a curve."""
    along = "env steps" if axis == "env_steps" else "seconds, evaluations included"
    lines = {}
    for name in (contestant.name for contestant in found.contestants if contestant.learns):
        runs = _runs(found, name, subject)
        lines[name] = band(list(runs.curve), axis, luck_of(list(runs.played)))
    if not any(lines.values()):
        return None
    figure, axes = _panel(subject.title, along, "return per episode")
    for name, line in lines.items():
        draw_band(axes, line, **styles[name].line, **_BAND)
    _draw_random(axes, found, subject)
    by = "env steps" if axis == "env_steps" else "wall time"
    return _picture(
        figure, f"Learning curves of {subject.name} by {by}", f"{subject.title}, by {by}"
    )


def final_returns(found: Findings, subject: Subject, styles: Mapping[str, Style]) -> Picture:
    """Each contestant's interquartile mean with its interval, and each of its runs."""
    standings = found.frames["standings"]
    rows = standings[(standings.subject == subject.key) & (standings.num_runs > 0)]
    rows = rows[::-1]
    height = 0.95 + _ROW_INCHES * len(rows)
    figure, axes = _panel(subject.title, "return per episode", height=height)
    for place, (name, estimate) in enumerate(zip(rows.contestant, rows.iqm, strict=True)):
        colour = styles[name].colour
        runs = list(_runs(found, name, subject)["return"])
        axes.plot(runs, [place] * len(runs), "o", ms=3, color=colour, alpha=0.5, zorder=2)
        if np.isfinite(estimate.low):
            axes.plot([estimate.low, estimate.high], [place, place], color=colour, lw=5, alpha=0.3)
        axes.plot([estimate.mean], [place], "|", ms=13, mew=2, color=colour, zorder=3)
    names = [textwrap.shorten(name, 60, placeholder=" …") for name in rows.contestant]
    axes.set_yticks(range(len(rows)), [_by_role(name) for name in names])
    axes.set_ylim(-0.6, len(rows) - 0.4)
    _draw_random(axes, found, subject, is_vertical=True)
    alt = f"Returns of {subject.name} by contestant, with intervals"
    return _picture(figure, alt, f"{subject.title}, after training")


def _by_role(name: str) -> str:
    """A contestant's name with a line for each role, and its bars where the lines break."""
    parts = name.replace(" | ", " |\n").split("\n")
    return "\n".join(textwrap.fill(part, _LABEL_WIDTH) for part in parts)


def performance_profiles(
    subject: Subject, standings: DataFrame, styles: Mapping[str, Style]
) -> Picture:
    """For each label of a role, the part of its runs above each return."""
    figure, axes = _panel(subject.title, "return τ", "part of runs above τ")
    for label, profile in zip(standings.label, standings.profile, strict=True):
        how = {"step": "post", "drawstyle": "steps-post", **_BAND}
        draw_band(axes, profile, **styles[label].line, **how)
    axes.set_ylim(-0.03, 1.03)
    name = subject.name
    return _picture(figure, f"Performance profiles of role {name}", f"{name}: performance profiles")


def payoff_picture(table: CrossPlay) -> Picture:
    """The returns of a role as colours, players by others."""
    returns = np.array(
        [
            [table.cells[at].score.mean if at in table.cells else np.nan for at in row]
            for row in ([(player, others) for others in table.others] for player in table.players)
        ]
    )
    height = 1.3 + _ROW_INCHES * len(table.players)
    figure, axes = _panel(f"return of {table.role}", "others", height=height)
    drawn = axes.pcolormesh(returns, cmap=_ORANGE_TO_BLUE, edgecolors="white")
    figure.colorbar(drawn, ax=axes).ax.tick_params(labelsize=_TEXT - 1)
    places = np.arange(len(table.others)) + 0.5
    axes.set_xticks(places, map(_shortened, table.others), rotation=40, ha="right")
    axes.set_yticks(np.arange(len(table.players)) + 0.5, map(_shortened, table.players))
    axes.invert_yaxis()
    name = f"Payoffs of {table.role}"
    return _picture(figure, f"{name}, by who plays it and who the others", name)


def rating_curves(played: HeadToHead, table: CrossPlay, along: str = "env steps") -> Picture | None:
    """Ratings of snapshots by env steps, with their intervals; None if no snapshots met."""
    curves = played.rating_curves(table)
    if not curves:
        return None
    figure, axes = _panel(f"rating of {table.role}", along, "Elo points above random")
    axes.xaxis.set_major_locator(MaxNLocator(nbins=5, integer=True))  # no round 1.25
    for (label, curve), style in zip(curves.items(), styles_of(list(curves)).values(), strict=True):
        draw_band(axes, curve, label=_shortened(label), **style.line, **_BAND)
    axes.axhline(0, **_RANDOM)
    axes.legend(fontsize=_TEXT - 1, frameon=False)
    name = f"Ratings of {table.role}"
    return _picture(figure, f"{name} by {along}", name)


def _runs(found: Findings, contestant: str, subject: Subject) -> DataFrame:
    runs = found.frames["runs"]
    return runs[(runs.contestant == contestant) & (runs.subject == subject.key)]


def _shortened(name: str) -> str:
    return textwrap.shorten(name, _LABEL_WIDTH, placeholder=" …")


def _draw_random(
    axes: Any, found: Findings, subject: Subject, *, is_vertical: bool = False
) -> None:
    for baseline in found.baselines[:1]:
        if subject.key in baseline.returns:
            draw = axes.axvline if is_vertical else axes.axhline
            draw(baseline.returns[subject.key].mean, **_RANDOM)


def _panel(title: str, x: str, y: str = "", *, height: float = _SIZE[1]) -> tuple[Any, Any]:
    with matplotlib.rc_context(_SVG):
        figure = Figure(figsize=(_SIZE[0], height), layout="constrained")
        FigureCanvasSVG(figure)
        axes = figure.add_subplot()
    finish_axes(axes, label_size=_TEXT - 1)
    axes.xaxis.set_major_locator(MaxNLocator(nbins=5))
    axes.set_title(title, fontsize=_TEXT + 0.5, fontweight="bold", loc="left")
    axes.set_xlabel(x, fontsize=_TEXT)
    axes.set_ylabel(y, fontsize=_TEXT)
    return figure, axes


def _picture(figure: Any, alt: str, caption: str) -> Picture:
    written = io.BytesIO()
    with matplotlib.rc_context(_SVG):
        # No date: the same comparison makes the same file.
        figure.savefig(written, format="svg", metadata={"Date": None})
    encoded = base64.b64encode(written.getvalue()).decode()
    return Picture(f"data:image/svg+xml;base64,{encoded}", alt, caption)
