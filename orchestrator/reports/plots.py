"""The picture of a run's report: each server against random in its place, or the sides of one that
plays itself; training; metrics.

Only matplotlib's object interface is used: no global state, no display, any thread.
"""

from __future__ import annotations

import io
import textwrap
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch
from matplotlib.ticker import FuncFormatter, MaxNLocator

from muxrl.orchestrator.measure.against_random import AgainstRandom
from muxrl.orchestrator.measure.judged import Judged, MetricResult, ServerResult
from muxrl.orchestrator.measure.number_text import signed_interval
from muxrl.orchestrator.measure.results import Report
from muxrl.orchestrator.measure.statistics import Line
from muxrl.orchestrator.records.recorded_run import TrainingCurve

# Okabe and Ito's palette, told apart under every common colour blindness. Its yellow is left out,
# too pale for a line. A seventh name begins again, dashed.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9")
RANDOM_COLOUR = "#6B6B6B"
_METRICS_KEY = "Metrics: dots are evaluated, lines without are training."

_DASHES: tuple[tuple[str, Any], ...] = (
    ("solid", "-"),
    ("dashed", (0, (5, 2))),
    ("dotted", (0, (1.2, 1.2))),
    ("double", (0, (6, 1.5, 1.2, 1.5))),
)
"""By CSS's name for a page's key, and matplotlib's for the line."""
_TEXT_COLOUR = "#333333"
_WIDTH_INCHES = 8.0
_DPI = 200  # 1,600 px wide: text of 8 points is 17 px high once shown at 1,200 px
_ROW_INCHES = 2.5
_TEXT, _SMALL = 8.5, 7.5  # points
_TITLE: dict[str, Any] = {"fontsize": _TEXT, "fontweight": "bold", "loc": "left"}
_LEGEND: dict[str, Any] = {"fontsize": _SMALL, "frameon": False}
_PLACE = {"loc": "lower right", "bbox_to_anchor": (1.0, 0.98), "ncols": 3, "borderpad": 0}
_LEGEND_ABOVE = _LEGEND | _PLACE
_LEARNED: dict[str, Any] = {"marker": "o", "markersize": 2.6}
_RANDOM: dict[str, Any] = {
    "color": RANDOM_COLOUR, "linestyle": (0, (3, 1.5)), "marker": "s", "markersize": 2.6,
}  # fmt: skip
_MOST_METRICS = 6  # the table has all
_NUM_SAMPLES = 200  # of a mean training curve; finer than a panel's pixels can show


@dataclass(frozen=True)
class Style:
    """How a name is drawn; `css` is the border style of the page's key."""

    colour: str
    css: str
    dashes: Any

    @property
    def line(self) -> dict[str, Any]:
        """For matplotlib."""
        return {"color": self.colour, "linestyle": self.dashes}


def styles_of(names: Sequence[str]) -> dict[str, Style]:
    """Gives each name a colour, and dashes once the colours are used up."""
    return {
        name: Style(COLOURS[i % len(COLOURS)], *_DASHES[i // len(COLOURS) % len(_DASHES)])
        for i, name in enumerate(names)
    }


def metrics_key(report: Report) -> str:
    """Returns what the figure's metrics are drawn by; "" if it has none."""
    return _METRICS_KEY if _drawn_metrics(report) else ""


def learning_png(report: Report) -> bytes:
    """Returns the picture as a PNG, 1,600 px wide; its caption stands in the report beside it.

    Args:
        report: of one run, or of several seeds, whose own curves are then drawn thin.
    """
    picture = io.BytesIO()
    _figure(report).savefig(picture, dpi=_DPI)
    return picture.getvalue()


def _figure(report: Report) -> Any:
    drawn = [(s, part) for s in report.servers if s.curve for part in s.sides or (s,)]
    num_columns = {0: 1, 1: 2, 2: 2, 4: 2}.get(len(drawn), 3)
    num_rows = -(-len(drawn) // num_columns)
    is_beside = len(drawn) == 1  # one panel and the training share a row
    metrics = _drawn_metrics(report)
    first_metric = num_columns * (num_rows + (not is_beside))
    num_rows_in_all = num_rows + (not is_beside) - (-len(metrics) // num_columns)
    height = _ROW_INCHES * num_rows_in_all + 1.0
    figure = Figure(figsize=(_WIDTH_INCHES, height), layout="constrained")
    FigureCanvasAgg(figure)
    grid = figure.add_gridspec(num_rows_in_all, num_columns)
    limit = _last_env_step(report)

    def add(place: Any, draw: Callable[..., None], *what: Any, is_first: bool = False) -> None:
        axes = figure.add_subplot(place)
        draw(axes, *what)
        finish_axes(axes, "env steps", "return per episode" if is_first else "")
        axes.set_xlim(-0.03 * limit, 1.03 * limit)
        axes.xaxis.set_major_locator(MaxNLocator(nbins=4, steps=[1, 2, 2.5, 5, 10], integer=True))
        restarted_at = [n for env_steps in report.restarted_at.values() for n in env_steps]
        for env_steps in {*report.resumed_at, *restarted_at}:
            axes.axvline(env_steps, color=RANDOM_COLOUR, linewidth=0.6, zorder=0)

    subtitles = [_subtitle(*part, len(report.seeds)) for part in drawn]
    num_lines = max((text.count("\n") + 1 for text in subtitles), default=1)
    for index, part in enumerate(drawn):
        place, is_first = grid[divmod(index, num_columns)], index % num_columns == 0
        add(place, _draw_part, part, report, num_lines, limit, is_first=is_first)
    place = grid[0, 1] if is_beside else grid[num_rows, :]
    add(place, _draw_training, report, is_first=not is_beside)
    for index, (name, results) in enumerate(metrics.items(), start=first_metric):
        add(grid[divmod(index, num_columns)], _draw_metric, name, results, report)
    heading = "\n".join(_wrapped_assignment(report.assignment))
    if drawn:
        figure.legend(
            handles=_key(report),
            title=heading,
            title_fontproperties={"size": _TEXT + 1.5, "weight": "bold"},
            loc="outside upper center",
            ncols=4,
            **_LEGEND,
        )
    else:
        figure.suptitle(heading, fontsize=_TEXT + 1.5, fontweight="bold")
    return figure


def _key(report: Report) -> list[Any]:
    """The legend of the servers' panels."""
    handles = [
        Line2D([], [], color="black", **_LEARNED, label="all as learned"),
        Line2D([], [], **_RANDOM, label="random in its place"),
        Patch(color="black", alpha=0.2, linewidth=0, label=f"95 % over {report.interval_unit}"),
    ]
    if len(report.seeds) > 1:
        handles.append(Line2D([], [], color="black", linewidth=0.6, alpha=0.6, label="one seed"))
    return handles


Part = tuple[ServerResult, Judged]
"""What a panel shows: a server, and itself or one of its sides."""


def _title(server: ServerResult, part: Judged) -> str:
    """Names it as `run_tables` does."""
    name = server.server_id if part is server else f"{server.server_id}/{part.name}"
    return f"{name}: {server.algorithm}, {len(part.agents)} agent{'s'[: len(part.agents) != 1]}"


def _subtitle(server: ServerResult, part: Judged, num_seeds: int) -> str:
    if part is server and not server.learns:
        return str(server.judgement)
    if part is server and server.plays_itself:
        return "plays itself: a mean over its sides"
    return _advantage(part.final, num_seeds)


def _advantage(final: AgainstRandom | None, num_seeds: int) -> str:
    """The advantage, the verdict and on how many seeds, a line each: panels are narrow."""
    if final is None or final.advantage is None:
        return "never measured with random in its place"
    seeds = f"\n{final.num_seeds_above} of {num_seeds} seeds above" * (num_seeds > 1)
    return f"advantage {signed_interval(final.advantage)}\n{final.verdict}{seeds}"


def _style(report: Report, server_id: str) -> dict[str, Any]:
    """The colour and dashes that stand for a server in all panels."""
    return styles_of([server.server_id for server in report.servers])[server_id].line


def _draw_part(axes: Any, part: Part, report: Report, num_lines: int, limit: float) -> None:
    server, judged = part
    colour = _style(report, server.server_id)["color"]
    random = [(c.env_steps, c.random) for c in judged.curve if c.random is not None]
    draw_band(axes, random, shift=0.01 * limit, **_RANDOM)
    for seed_curve in judged.seed_curves if len(judged.seed_curves) > 1 else ():
        line = np.array(seed_curve).reshape(-1, 2).T
        axes.plot(*line, color=colour, linewidth=0.6, alpha=0.45, zorder=2)
    learned = [(c.env_steps, c.learned) for c in judged.curve]
    draw_band(axes, learned, shift=-0.01 * limit, color=colour, **_LEARNED)
    axes.set_title(_title(*part), pad=4 + 10.5 * num_lines, **_TITLE)
    subtitle = axes.annotate(
        _subtitle(*part, len(report.seeds)),
        xy=(0, 1),
        xycoords="axes fraction",
        xytext=(0, 4),
        textcoords="offset points",
        fontsize=_SMALL,
        color=_TEXT_COLOUR,
    )
    subtitle.set_in_layout(False)  # a long one may stand out, but not narrow its panel


def draw_band(
    axes: Any,
    line: Line,
    *,
    color: str,
    shift: float = 0.0,
    alpha: float = 0.2,
    step: str | None = None,
    **style: Any,
) -> None:
    """A line of means with its intervals, as far as they are known.

    Of one point alone they are whiskers, `shift` to the side.
    """
    if not line:
        return
    is_alone = len(line) == 1
    places = [place + is_alone * shift for place, _ in line]
    means, low, high = np.array([(e.mean, e.low, e.high) for _, e in line]).T
    axes.plot(places, means, **{"color": color, "linewidth": 1.5, "zorder": 3, **style})
    if is_alone:
        axes.errorbar(places, means, [means - low, high - means], color=color, capsize=3)
    elif np.isfinite(low).all():
        axes.fill_between(places, low, high, step=step, color=color, alpha=alpha, linewidth=0)


def _draw_training(axes: Any, report: Report) -> None:
    axes.set_title("training, exploration included", pad=6, **_TITLE)
    of_servers = [(s, [c for c in s.training if len(c.returns)]) for s in report.servers]
    for server, curves in of_servers:
        if not curves:
            continue
        style = _style(report, server.server_id)
        for curve in curves if len(curves) > 1 else ():
            where = curve.env_steps, curve.returns
            axes.plot(*where, linewidth=0.5, alpha=0.4, color=style["color"])
        env_steps, returns = _mean_curve(curves)
        marker = "o" if len(env_steps) == 1 else ""
        label = f"{server.server_id}{' (mean over its sides)' * server.plays_itself}"
        axes.plot(env_steps, returns, linewidth=1.5, marker=marker, label=label, **style)
    if any(curves for _, curves in of_servers):
        axes.legend(**_LEGEND_ABOVE)
    else:
        style = {"ha": "center", "fontsize": _TEXT, "color": RANDOM_COLOUR}
        axes.text(0.5, 0.5, "no episode had ended", transform=axes.transAxes, **style)


def _drawn_metrics(report: Report) -> dict[str, list[MetricResult]]:
    """By name; of many the first few, without those that never change (a fixed episode length)."""
    found: dict[str, list[MetricResult]] = {}
    for metric in report.metrics:
        found.setdefault(metric.name, []).append(metric)
    changing = {name: those for name, those in found.items() if len(_values(those)) > 1}
    return dict(list(changing.items())[:_MOST_METRICS])


def _values(metrics: Sequence[MetricResult]) -> set[float]:
    trained = {float(v) for m in metrics for curve in m.training for v in curve.returns}
    return trained | {value for m in metrics for curve in m.curves for _, value in curve}


def _draw_metric(axes: Any, name: str, metrics: Sequence[MetricResult], report: Report) -> None:
    for metric in metrics:
        style: dict[str, Any] = {"color": "black", "linestyle": "-"}
        if metric.server is not None:
            style = _style(report, metric.server)
        if metric.training:
            axes.plot(*_mean_curve(metric.training), linewidth=0.8, alpha=0.5, **style)
        for curve in metric.curves:
            axes.plot(*np.array(curve).reshape(-1, 2).T, linewidth=1.2, **_LEARNED, **style)
        axes.plot([], [], label=metric.server or "episode", **style)
    axes.set_title(name, pad=6, **_TITLE)
    axes.legend(**_LEGEND_ABOVE)


def _mean_curve(curves: Sequence[TrainingCurve]) -> tuple[np.ndarray, np.ndarray]:
    """The mean over seeds, over the env steps that all of them cover."""
    if len(curves) == 1:
        return curves[0].env_steps, curves[0].returns
    start = max(curve.env_steps[0] for curve in curves)
    stop = min(curve.env_steps[-1] for curve in curves)
    env_steps = np.linspace(start, max(start, stop), _NUM_SAMPLES)
    rows = [np.interp(env_steps, curve.env_steps, curve.returns) for curve in curves]
    return env_steps, np.mean(rows, axis=0)


def _last_env_step(report: Report) -> float:
    evaluated = [c.env_steps for server in report.servers for c in server.curve]
    curves = [curve.env_steps for server in report.servers for curve in server.training]
    return max([*evaluated, *(float(e[-1]) for e in curves if len(e)), 1.0])


def _wrapped_assignment(assignment: str) -> list[str]:
    """Lines of a title: broken between servers, a long list of agents cut short."""
    lines = [""]
    for part in assignment.split("|"):
        part = textwrap.shorten(part.replace(",", ", "), 90, placeholder=" …")
        if lines[-1] and len(lines[-1]) + len(part) > 85:
            lines.append("")
        lines[-1] += ("  |  " if lines[-1] else "") + part
    return lines


def finish_axes(axes: Any, x: str, y: str = "") -> None:
    """Sets grid, spines and labels; counts on the horizontal axis are short."""
    axes.xaxis.set_major_formatter(FuncFormatter(short_count))
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_major_locator(MaxNLocator(nbins=5))
    axes.set_xlabel(x, fontsize=_TEXT)
    axes.set_ylabel(y, fontsize=_TEXT)
    axes.tick_params(labelsize=_SMALL, length=2.5)
    axes.grid(color="#E3E3E3", linewidth=0.6)
    axes.set_axisbelow(True)
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)


def short_count(value: float, _position: int | None = None) -> str:
    """20,000 as ``20k``, for a narrow axis."""
    divided, letter = value, ""
    for size, name in ((1e3, "k"), (1e6, "M")):
        if abs(value) >= size:
            divided, letter = value / size, name
    return f"{divided:g}{letter}".replace("-", "\u2212")
