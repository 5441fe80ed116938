"""The figures of a comparison: one panel each, as SVG, small enough for a phone.

Text stays text, so that figures are sharp at any size and a page with twenty of them is small.
Contestants differ by colour and dashes, which the page's key explains. Only matplotlib's object
interface is used: no global state, no display.
"""

from __future__ import annotations

import base64
import io
import textwrap
from dataclasses import dataclass
from itertools import product
from typing import TYPE_CHECKING, Any, get_args

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
_ALONG = {
    "env_steps": ("env steps", "env steps"),
    "time_s": ("seconds, evaluations included", "wall time"),
}
"""By axis, what is along it, and by what a curve is."""
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


def styles_of_contestants(found: Findings) -> dict[str, Style]:
    """Returns how each contestant that learns is drawn, by its name."""
    styles = styles_of([c.name for c in found.contestants])
    return {c.name: styles[c.name] for c in found.contestants if c.learns}


def learning_curves(found: Findings) -> list[Picture]:
    """Interquartile means over runs with their bands, of each main subject over env steps and time.

    Those of which no contestant has a curve are left out.
    """
    pictures = []
    for subject, axis in product(found.main_subjects, get_args(Axis)):
        along, by = _ALONG[axis]
        lines = {}
        for name in styles_of_contestants(found):
            runs = _runs(found, name, subject)
            lines[name] = band(list(runs.curve), axis, luck_of(list(runs.played)))
        if any(lines.values()):
            figure, axes = _panel(subject.title, along, "return per episode")
            for name, style in styles_of_contestants(found).items():
                draw_band(axes, lines[name], **style.line, **_BAND)
            _draw_random(axes, found, subject)
            alt = f"Learning curves of {subject.name} by {by}"
            pictures.append(_picture(figure, alt, f"{subject.title}, by {by}"))
    return pictures


def final_returns(found: Findings) -> list[Picture]:
    """Each contestant's interquartile mean with its interval, and each of its runs, by subject."""
    styles = styles_of([c.name for c in found.contestants])
    standings, pictures = found.frames["standings"], []
    for subject in found.main_subjects:
        rows = standings[(standings.subject == subject.key) & (standings.num_runs > 0)][::-1]
        height = 0.95 + _ROW_INCHES * len(rows)
        figure, axes = _panel(subject.title, "return per episode", height=height)
        for place, (name, mean) in enumerate(zip(rows.contestant, rows.iqm, strict=True)):
            colour = styles[name].colour
            runs = list(_runs(found, name, subject)["return"])
            axes.plot(runs, [place] * len(runs), "o", ms=3, color=colour, alpha=0.5, zorder=2)
            if np.isfinite(mean.low):
                axes.plot([mean.low, mean.high], [place, place], color=colour, lw=5, alpha=0.3)
            axes.plot([mean.mean], [place], "|", ms=13, mew=2, color=colour, zorder=3)
        names = [textwrap.shorten(name, 60, placeholder=" …") for name in rows.contestant]
        axes.set_yticks(range(len(rows)), map(_by_role, names))
        axes.set_ylim(-0.6, len(rows) - 0.4)
        _draw_random(axes, found, subject, is_vertical=True)
        alt = f"Returns of {subject.name} by contestant, with intervals"
        pictures.append(_picture(figure, alt, f"{subject.title}, after training"))
    return pictures


def _by_role(name: str) -> str:
    """A contestant's name with a line for each role, and its bars where the lines break."""
    parts = name.replace(" | ", " |\n").split("\n")
    return "\n".join(textwrap.fill(part, _LABEL_WIDTH) for part in parts)


def performance_profiles(found: Findings, role: str) -> Picture:
    """For each label of a role, the part of its runs above each return."""
    subject, standings = found.subject(f"role:{role}"), found.of_role("roles", role)
    styles = styles_of(list(standings.label))
    figure, axes = _panel(subject.title, "return τ", "part of runs above τ")
    for label, profile in zip(standings.label, standings.profile, strict=True):
        how = {"step": "post", "drawstyle": "steps-post", **_BAND}
        draw_band(axes, profile, **styles[label].line, **how)
    axes.set_ylim(-0.03, 1.03)
    return _picture(figure, f"Performance profiles of role {role}", f"{role}: performance profiles")


def meetings(played: HeadToHead) -> list[Picture]:
    """The ratings and the payoffs of a head to head."""
    curves = [rating_curves(played, table) for table in played.by_label]
    return [*filter(None, curves), *map(payoff_picture, played.by_label)]


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
    finish_axes(axes, x, y)
    axes.set_title(title, fontsize=_TEXT + 0.5, fontweight="bold", loc="left")
    return figure, axes


def _picture(figure: Any, alt: str, caption: str) -> Picture:
    written = io.BytesIO()
    with matplotlib.rc_context(_SVG):
        # No date: the same comparison makes the same file.
        figure.savefig(written, format="svg", metadata={"Date": None})
    encoded = base64.b64encode(written.getvalue()).decode()
    return Picture(f"data:image/svg+xml;base64,{encoded}", alt, caption)
