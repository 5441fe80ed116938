"""Draws the figures of a comparison as SVGs of one panel, small enough for a phone.

Contestants have different colours and dashes, which the page's key explains.
"""

from __future__ import annotations

import textwrap
from itertools import product
from typing import TYPE_CHECKING, Any, get_args

import numpy as np
from matplotlib.colors import LinearSegmentedColormap
from matplotlib.ticker import MaxNLocator

from muxrl.orchestrator.comparisons.findings.findings import Findings
from muxrl.orchestrator.comparisons.findings.frames import AT_RANDOM
from muxrl.orchestrator.comparisons.findings.head_to_head import CrossPlay, HeadToHead
from muxrl.orchestrator.comparisons.findings.scores import Axis, band, common_variance
from muxrl.orchestrator.measure.subjects import Subject
from muxrl.orchestrator.reports.plots import Panel, Picture, Style, styles_of, svg

if TYPE_CHECKING:
    from pandas import DataFrame

_ROW_INCHES = 0.36
_LABEL_WIDTH = 26  # characters
_ORANGE_TO_BLUE = LinearSegmentedColormap.from_list("payoffs", ["#e7b08a", "#ffffff", "#8abbdb"])
_BAND: dict[str, Any] = {"linewidth": 1.6, "alpha": 0.13}
_ALONG = {
    "env_steps": ("env steps", "env steps"),
    "time_s": ("seconds, evaluations included", "wall time"),
}
"""By axis: the label of the axis, and its name in captions."""


def styles_of_contestants(found: Findings) -> dict[str, Style]:
    """Returns the style of each contestant that learns, by its name."""
    styles = styles_of([c.name for c in found.contestants])
    return {c.name: styles[c.name] for c in found.contestants if c.learns}


def learning_curves(found: Findings) -> list[Picture]:
    """Draws interquartile means over runs and their bands, by env steps and by time.

    There is a picture for each main subject and axis, unless no contestant has a curve.
    """
    pictures = []
    for subject, axis in product(found.main_subjects, get_args(Axis)):
        along, by = _ALONG[axis]
        panel = Panel(subject.title, along, "return per episode")
        for name, style in styles_of_contestants(found).items():
            runs = _runs(found, name, subject)
            line = band(list(runs.curve), axis, common_variance(list(runs.played)))
            panel.bands.append((line, {**style.line, **_BAND}))
        if any(line for line, _ in panel.bands):
            panel.rules = [("y", mean) for mean in _at_random(found, subject)]
            alt = f"Learning curves of {subject.name} by {by}"
            pictures.append(svg(panel, alt, f"{subject.title}, by {by}"))
    return pictures


def final_returns(found: Findings) -> list[Picture]:
    """Draws for each main subject each contestant's interquartile mean, its interval and runs."""
    styles = styles_of([c.name for c in found.contestants])
    standings, pictures = found.frames["standings"], []
    for subject in found.main_subjects:
        rows = standings[(standings.subject == subject.key) & (standings.num_runs > 0)][::-1]
        panel = Panel(subject.title, "return per episode", height=0.95 + _ROW_INCHES * len(rows))
        for place, (name, mean) in enumerate(zip(rows.contestant, rows.iqm, strict=True)):
            colour = {"color": styles[name].colour}
            runs = list(_runs(found, name, subject)["return"])
            dots = {"ls": "", "marker": "o", "ms": 3, "alpha": 0.5, "zorder": 2}
            panel.curves.append((runs, [place] * len(runs), dots | colour))
            if np.isfinite(mean.low):
                bar = {"lw": 5, "alpha": 0.3}
                panel.curves.append(([mean.low, mean.high], [place, place], bar | colour))
            tick = {"ls": "", "marker": "|", "ms": 13, "mew": 2, "zorder": 3}
            panel.curves.append(([mean.mean], [place], tick | colour))
        names = (textwrap.shorten(name, 60, placeholder=" …") for name in rows.contestant)
        ticks = range(len(rows)), [_by_role(name) for name in names]
        panel.rules = [("x", mean) for mean in _at_random(found, subject)]
        alt = f"Returns of {subject.name} by contestant, with intervals"

        def name_rows(_: Any, axes: Any, ticks: tuple[Any, Any] = ticks) -> None:
            axes.set_yticks(*ticks)
            axes.set_ylim(-0.6, len(ticks[0]) - 0.4)

        pictures.append(svg(panel, alt, f"{subject.title}, after training", name_rows))
    return pictures


def _by_role(name: str) -> str:
    """Breaks a contestant's name into lines, one for each role, after its bars."""
    parts = name.replace(" | ", " |\n").split("\n")
    return "\n".join(textwrap.fill(part, _LABEL_WIDTH) for part in parts)


def performance_profiles(found: Findings, role: str) -> Picture:
    """Draws for each label of a role the proportion of its runs above each return."""
    subject, standings = found.subject(f"role:{role}"), found.of_role("roles", role)
    styles = styles_of(list(standings.label))
    panel = Panel(subject.title, "return τ", "part of runs above τ")
    panel.bands = [
        (profile, {**styles[label].line, **_BAND, "step": "post"})
        for label, profile in zip(standings.label, standings.profile, strict=True)
    ]
    return svg(panel, f"Performance profiles of role {role}", f"{role}: performance profiles")


def meetings(played: HeadToHead) -> list[Picture]:
    """Draws the ratings and the payoffs of a head to head."""
    curves = [rating_curves(played, table) for table in played.by_label]
    return [*filter(None, curves), *map(payoff_picture, played.by_label)]


def payoff_picture(table: CrossPlay) -> Picture:
    """Draws the returns of a role as colours, with players as rows and others as columns."""
    returns = np.array(
        [
            [table.cells[at]["return"].mean if at in table.cells else np.nan for at in row]
            for row in ([(player, others) for others in table.others] for player in table.players)
        ]
    )
    names = [_shortened(name) for name in table.others], [_shortened(p) for p in table.players]

    def colour(figure: Any, axes: Any) -> None:
        drawn = axes.pcolormesh(returns, cmap=_ORANGE_TO_BLUE, edgecolors="white")
        figure.colorbar(drawn, ax=axes).ax.tick_params(labelsize=7.5)
        axes.set_xticks(np.arange(len(names[0])) + 0.5, names[0], rotation=40, ha="right")
        axes.set_yticks(np.arange(len(names[1])) + 0.5, names[1])
        axes.invert_yaxis()

    height = 1.3 + _ROW_INCHES * len(table.players)
    panel = Panel(f"return of {table.role}", "others", height=height)
    name = f"Payoffs of {table.role}"
    return svg(panel, f"{name}, by who plays it and who the others", name, colour)


def rating_curves(played: HeadToHead, table: CrossPlay, along: str = "env steps") -> Picture | None:
    """Draws ratings of snapshots by env steps, with intervals; None if no snapshots met."""
    curves = played.rating_curves(table)
    if not curves:
        return None

    def round_places(_: Any, axes: Any) -> None:
        axes.xaxis.set_major_locator(MaxNLocator(nbins=5, integer=True))  # no ticks such as 1.25

    styles = styles_of(list(curves))
    panel = Panel(f"rating of {table.role}", along, "Elo points above random", rules=[("y", 0.0)])
    panel.bands = [
        (curve, {**styles[label].line, **_BAND, "label": _shortened(label)})
        for label, curve in curves.items()
    ]
    name = f"Ratings of {table.role}"
    return svg(panel, f"{name} by {along}", name, round_places)


def _runs(found: Findings, contestant: str, subject: Subject) -> DataFrame:
    runs = found.frames["runs"]
    return runs[(runs.contestant == contestant) & (runs.subject == subject.key)]


def _shortened(name: str) -> str:
    return textwrap.shorten(name, _LABEL_WIDTH, placeholder=" …")


def _at_random(found: Findings, subject: Subject) -> list[float]:
    """Returns the mean return of random agents in all roles, [] if it is not known."""
    rows = found.frames["standings"]
    known = rows[(rows.contestant == AT_RANDOM) & (rows.subject == subject.key)]
    return [mean.mean for mean in known["mean"]]
