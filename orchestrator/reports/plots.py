"""Describes panels of a picture as data, and draws many as one PNG, or one as an SVG.

Only matplotlib's object interface is used: it needs no global state and no display, and works in
any thread. The text of an SVG stays text, so it is sharp at any size and a page with twenty
pictures is small.
"""

from __future__ import annotations

import base64
import io
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import matplotlib
import numpy as np
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.backends.backend_svg import FigureCanvasSVG
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, MaxNLocator
from numpy.typing import ArrayLike

from muxrl.orchestrator.measure.statistics import Line

# Okabe and Ito's palette, which people with any common colour blindness can tell apart, without its
# yellow, which is too pale for a line. A seventh name gets the first colour again, dashed.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9")
RANDOM: Mapping[str, Any] = {"color": "#6B6B6B", "linestyle": (0, (3, 1.5))}
"""The line style of random agents."""
DOTS: Mapping[str, Any] = {"marker": "o", "markersize": 2.6}

_DASHES: tuple[tuple[str, Any], ...] = (
    ("solid", "-"),
    ("dashed", (0, (5, 2))),
    ("dotted", (0, (1.2, 1.2))),
    ("double", (0, (6, 1.5, 1.2, 1.5))),
)
"""Dashes: the CSS name for the page's key, and matplotlib's for the line."""
_MOMENT: dict[str, Any] = {"color": RANDOM["color"], "linewidth": 0.6, "zorder": 0}
_TEXT, _SMALL = 8.5, 7.5  # points
_TITLE: dict[str, Any] = {"fontsize": _TEXT, "fontweight": "bold", "loc": "left"}
_LEGEND: dict[str, Any] = {"fontsize": _SMALL, "frameon": False}
_PLACE = {"loc": "lower right", "bbox_to_anchor": (1.0, 0.98), "ncols": 3, "borderpad": 0}
_WIDTH_INCHES, _ROW_INCHES = 8.0, 2.5
_DPI = 200  # 1,600 px wide: text of 8 points is 17 px high if shown at 1,200 px
_ALONE = (4.4, 2.9)  # inches; 317 points wide, so that text has about its own size on a phone
_SVG = {
    "svg.fonttype": "none",
    "svg.hashsalt": "muxrl",  # the same comparison makes the same file
}


@dataclass(frozen=True)
class Style:
    """Colour and dashes of a name; `css` is the border style in the page's key."""

    colour: str
    css: str
    dashes: Any

    @property
    def line(self) -> dict[str, Any]:
        """The style as matplotlib's options."""
        return {"color": self.colour, "linestyle": self.dashes}


def styles_of(names: Sequence[str]) -> dict[str, Style]:
    """Returns a style for each name: a new colour, and other dashes when colours are used up."""
    return {
        name: Style(COLOURS[i % len(COLOURS)], *_DASHES[i // len(COLOURS) % len(_DASHES)])
        for i, name in enumerate(names)
    }


@dataclass
class Panel:
    """A pair of axes and all that is drawn in them.

    Attributes:
        title: the title above the axes.
        x, y: labels of the axes.
        subtitle: lines between the title and the axes.
        curves: of each curve: x and y ``[num_points]``, and matplotlib's options.
        bands: of each band: means with their intervals, and options of `draw_band`.
        rules: of each dashed line of random agents: the axis, "x" or "y", and the value on it.
        moments: x of thin vertical lines.
        height: in inches, if the panel stands alone.
    """

    title: str
    x: str
    y: str = ""
    subtitle: str = ""
    curves: list[tuple[ArrayLike, ArrayLike, Mapping[str, Any]]] = field(default_factory=list)
    bands: list[tuple[Line, Mapping[str, Any]]] = field(default_factory=list)
    rules: list[tuple[Literal["x", "y"], float]] = field(default_factory=list)
    moments: Sequence[float] = ()
    height: float = _ALONE[1]

    def draw(self, axes: Any) -> None:
        """Draws the panel in matplotlib's axes."""
        for x, y, style in self.curves:
            axes.plot(x, y, **style)
        for line, style in self.bands:
            draw_band(axes, line, **style)
        for along, place in self.rules:
            across = axes.axvline if along == "x" else axes.axhline
            across(place, **RANDOM, linewidth=1, zorder=1)
        for place in self.moments:
            axes.axvline(place, **_MOMENT)
        axes.xaxis.set_major_formatter(FuncFormatter(short_count))
        for axis in (axes.xaxis, axes.yaxis):
            axis.set_major_locator(MaxNLocator(nbins=5))
        axes.set_xlabel(self.x, fontsize=_TEXT)
        axes.set_ylabel(self.y, fontsize=_TEXT)
        axes.tick_params(labelsize=_SMALL, length=2.5)
        axes.grid(color="#E3E3E3", linewidth=0.6)
        axes.set_axisbelow(True)
        for side in ("top", "right"):
            axes.spines[side].set_visible(False)
        num_lines = self.subtitle.count("\n") + 1 if self.subtitle else 0
        axes.set_title(self.title, pad=5 + 10.5 * num_lines, **_TITLE)
        if self.subtitle:
            where = {"xy": (0, 1), "xycoords": "axes fraction", "xytext": (0, 4)}
            stated = axes.annotate(
                self.subtitle, **where, textcoords="offset points", fontsize=_SMALL, color="#333333"
            )
            stated.set_in_layout(False)  # a long one may overlap the edge, but not shrink its panel
        if axes.get_legend_handles_labels()[0]:
            axes.legend(**_LEGEND, **_PLACE)


def draw_band(
    axes: Any,
    line: Line,
    *,
    color: str,
    shift: float = 0.0,
    alpha: float = 0.2,
    step: Literal["post"] | None = None,
    **style: Any,
) -> None:
    """Draws a line of means, with a band of their intervals if all are known.

    A single point gets whiskers instead, and is moved by `shift` along the x axis.
    """
    if not line:
        return
    is_alone = len(line) == 1
    places = [place + is_alone * shift for place, _ in line]
    means, low, high = np.array([(e.mean, e.low, e.high) for _, e in line]).T
    if step:
        style["drawstyle"] = f"steps-{step}"
    axes.plot(places, means, **{"color": color, "linewidth": 1.5, "zorder": 3, **style})
    if is_alone:
        axes.errorbar(places, means, [means - low, high - means], color=color, capsize=3)
    elif np.isfinite(low).all():
        axes.fill_between(places, low, high, step=step, color=color, alpha=alpha, linewidth=0)


def panels_figure(
    panels: Sequence[Panel], heading: str, key: Sequence[Any], x_limits: tuple[float, float]
) -> Figure:
    """Returns a figure of panels, two in a row.

    Args:
        panels: the panels.
        heading: is shown above all panels.
        key: handles of the legend below the heading.
        x_limits: limits of the x axes of all panels.
    """
    num_columns = min(2, len(panels))
    num_rows = -(-len(panels) // num_columns)
    size = (_WIDTH_INCHES, _ROW_INCHES * num_rows + 1.0)
    figure = Figure(figsize=size, layout="constrained")
    for place, panel in enumerate(panels, start=1):
        axes = figure.add_subplot(num_rows, num_columns, place)
        panel.draw(axes)
        axes.set_xlim(*x_limits)
        axes.xaxis.set_major_locator(MaxNLocator(nbins=4, steps=[1, 2, 2.5, 5, 10], integer=True))
    figure.legend(
        handles=key,
        title=heading,
        title_fontproperties={"size": _TEXT + 1.5, "weight": "bold"},
        loc="outside upper center",
        ncols=4,
        **_LEGEND,
    )
    return figure


def png(figure: Figure) -> bytes:
    """Returns a figure as a PNG, 1,600 px wide."""
    FigureCanvasAgg(figure)
    picture = io.BytesIO()
    figure.savefig(picture, dpi=_DPI)
    return picture.getvalue()


@dataclass(frozen=True)
class Picture:
    """An SVG: its data URI, its description and its caption."""

    uri: str
    alt: str
    caption: str


def svg(
    panel: Panel, alt: str, caption: str, finish: Callable[[Figure, Any], None] | None = None
) -> Picture:
    """Returns a picture of one panel.

    Args:
        panel: the panel.
        alt, caption: description and caption of the picture.
        finish: is called with the figure and its axes at the end.
    """
    written = io.BytesIO()
    with matplotlib.rc_context(_SVG):
        figure = Figure(figsize=(_ALONE[0], panel.height), layout="constrained")
        FigureCanvasSVG(figure)
        axes = figure.add_subplot()
        panel.draw(axes)
        if finish is not None:
            finish(figure, axes)
        # Without a date, so that the same comparison makes the same file.
        figure.savefig(written, format="svg", metadata={"Date": None})
    encoded = base64.b64encode(written.getvalue()).decode()
    return Picture(f"data:image/svg+xml;base64,{encoded}", alt, caption)


def short_count(value: float, _position: int | None = None) -> str:
    """Formats 20,000 as ``20k``, for a narrow axis."""
    divided, letter = value, ""
    for size, name in ((1e3, "k"), (1e6, "M")):
        if abs(value) >= size:
            divided, letter = value / size, name
    return f"{divided:g}{letter}".replace("-", "\u2212")
