"""Draws the picture of a run's report.

Its panels are: each server (or each side, if it plays itself) against random in its place;
training; metrics.
"""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch

from muxrl.orchestrator.measure.judged import Judged, MetricResult, ServerResult
from muxrl.orchestrator.measure.number_text import interval
from muxrl.orchestrator.measure.results import Report
from muxrl.orchestrator.records.recorded_run import TrainingCurve
from muxrl.orchestrator.reports.plots import DOTS, RANDOM, Panel, panels_figure, png, styles_of

_METRICS_KEY = "Metrics: lines with dots are evaluations, lines without dots are training."
_SQUARES = {**RANDOM, "marker": "s", "markersize": 2.6}
_MOST_METRICS = 6  # the table has the others, too
_NUM_SAMPLES = 200  # points of a mean training curve; more than a panel's pixels can show


def metrics_key(report: Report) -> str:
    """Returns the sentence that explains how metrics are drawn; "" if the figure has none."""
    return _METRICS_KEY if _drawn_metrics(report) else ""


def learning_png(report: Report) -> bytes:
    """Returns the picture as a PNG; the report has its caption.

    Args:
        report: on one run, or on several seeds, each of which then also has a thin curve.
    """
    return png(_figure(report))


def _figure(report: Report) -> Figure:
    evaluated = [c.env_steps for server in report.servers for c in server.curve]
    trained = [curve.env_steps for server in report.servers for curve in server.training]
    limit = max([*evaluated, *(float(e[-1]) for e in trained if len(e)), 1.0])
    panels = list(_panels(report, limit))
    restarted_at = [n for env_steps in report.restarted_at.values() for n in env_steps]
    for panel in panels:
        panel.moments = sorted({*report.resumed_at, *restarted_at})
    heading = "\n".join(_wrapped_assignment(report.assignment))
    key = _key(report) if evaluated else []
    return panels_figure(panels, heading, key, (-0.03 * limit, 1.03 * limit))


def _panels(report: Report, limit: float) -> Iterator[Panel]:
    names = [server.server_id for server in report.servers]
    styles = {name: style.line for name, style in styles_of(names).items()}
    for server in report.servers:
        for name, part in server.parts.items() if server.curve else ():
            style = styles[server.server_id]
            yield _part_panel(name, server, part, style, limit, len(report.seeds))
    yield _training_panel(report.servers, styles)
    for name, results in _drawn_metrics(report).items():
        panel = Panel(name, "env steps")
        for metric in results:
            style = styles.get(metric.server or "", {"color": "black", "linestyle": "-"})
            if metric.training:
                thin = {"linewidth": 0.8, "alpha": 0.5}
                panel.curves.append((*_mean_curve(metric.training), thin | style))
            for curve in metric.curves:
                places = np.array(curve).reshape(-1, 2).T
                panel.curves.append((*places, {"linewidth": 1.2, **DOTS, **style}))
            panel.curves.append(([], [], {"label": metric.server or "episode", **style}))
        yield panel


def _part_panel(
    name: str,
    server: ServerResult,
    part: Judged,
    style: dict[str, Any],
    limit: float,
    num_seeds: int,
) -> Panel:
    """Returns the panel of a server or of one of its sides."""
    agents = f"{len(part.agents)} agent{'s'[: len(part.agents) != 1]}"
    colour, shift = style["color"], 0.01 * limit
    random = [(c.env_steps, c.random) for c in part.curve if c.random is not None]
    thin = {"color": colour, "linewidth": 0.6, "alpha": 0.45, "zorder": 2}
    of_seeds = part.seed_curves if len(part.seed_curves) > 1 else ()
    return Panel(
        f"{name}: {server.trained_by}, {agents}",
        "env steps",
        "return per episode",
        _subtitle(server, part, num_seeds),
        [(*np.array(curve).reshape(-1, 2).T, thin) for curve in of_seeds],
        [
            (random, {"shift": shift, **_SQUARES}),
            ([(c.env_steps, c.learned) for c in part.curve],
             {"shift": -shift, "color": colour, **DOTS}),
        ],
    )  # fmt: skip


def _subtitle(server: ServerResult, part: Judged, num_seeds: int) -> str:
    """Returns the advantage, the verdict and its number of seeds, in lines: panels are narrow."""
    if part is server and not server.learns:
        return str(server.judgement)
    if part is server and server.plays_itself:
        return "plays itself: the mean over its sides"
    final = part.final
    if final is None or final.advantage is None:
        return "never compared with random in its place"
    seeds = f"\n{final.num_seeds_above} of {num_seeds} seeds above" * (num_seeds > 1)
    return f"advantage {interval(final.advantage, final.unit, '+')}\n{final.verdict}{seeds}"


def _training_panel(servers: Sequence[ServerResult], styles: dict[str, dict[str, Any]]) -> Panel:
    panel = Panel("training", "env steps", "return per episode")
    for server in servers:
        curves, style = [c for c in server.training if len(c.returns)], styles[server.server_id]
        thin = {"linewidth": 0.5, "alpha": 0.4, "color": style["color"]}
        if len(curves) > 1:
            panel.curves += [(curve.env_steps, curve.returns, thin) for curve in curves]
        if curves:
            env_steps, returns = _mean_curve(curves)
            marker = "o" if len(env_steps) == 1 else ""
            label = f"{server.server_id}{' (mean over its sides)' * server.plays_itself}"
            how = {"linewidth": 1.5, "marker": marker, "label": label, **style}
            panel.curves.append((env_steps, returns, how))
    panel.subtitle = "" if panel.curves else "no episode had ended"
    return panel


def _key(report: Report) -> list[Any]:
    """Returns the handles of the legend of the servers' panels."""
    handles = [
        Line2D([], [], color="black", **DOTS, label="all as learned"),
        Line2D([], [], **_SQUARES, label="random in its place"),
        Patch(color="black", alpha=0.2, linewidth=0, label=f"95 % over {report.interval_unit}"),
    ]
    if len(report.seeds) > 1:
        handles.append(Line2D([], [], color="black", linewidth=0.6, alpha=0.6, label="one seed"))
    return handles


def _drawn_metrics(report: Report) -> dict[str, list[MetricResult]]:
    """Returns by name the first few metrics that change at all (not a fixed episode length)."""
    found: dict[str, list[MetricResult]] = {}
    for metric in report.metrics:
        found.setdefault(metric.name, []).append(metric)
    changing = {name: those for name, those in found.items() if len(_values(those)) > 1}
    return dict(list(changing.items())[:_MOST_METRICS])


def _values(metrics: Sequence[MetricResult]) -> set[float]:
    trained = {float(v) for m in metrics for curve in m.training for v in curve.returns}
    return trained | {value for m in metrics for curve in m.curves for _, value in curve}


def _mean_curve(curves: Sequence[TrainingCurve]) -> tuple[np.ndarray, np.ndarray]:
    """Returns the mean over seeds, at the env steps that all seeds cover."""
    if len(curves) == 1:
        return curves[0].env_steps, curves[0].returns
    start = max(curve.env_steps[0] for curve in curves)
    stop = min(curve.env_steps[-1] for curve in curves)
    env_steps = np.linspace(start, max(start, stop), _NUM_SAMPLES)
    rows = [np.interp(env_steps, curve.env_steps, curve.returns) for curve in curves]
    return env_steps, np.mean(rows, axis=0)


def _wrapped_assignment(assignment: str) -> list[str]:
    """Returns the lines of a title, broken between servers, with long lists of agents cut short."""
    lines = [""]
    for part in assignment.split("|"):
        part = textwrap.shorten(part.replace(",", ", "), 90, placeholder=" …")
        if lines[-1] and len(lines[-1]) + len(part) > 85:
            lines.append("")
        lines[-1] += ("  |  " if lines[-1] else "") + part
    return lines
