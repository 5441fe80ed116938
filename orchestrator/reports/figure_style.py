"""How all figures look: colours, and axes without clutter."""

from __future__ import annotations

from typing import Any

from matplotlib.ticker import FuncFormatter, MaxNLocator

# Okabe and Ito's palette, told apart under every common colour blindness. Its yellow is left out,
# too pale for a line. A seventh name begins again, dashed.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9")
RANDOM_COLOUR = "#6B6B6B"


def finish_axes(axes: Any, label_size: float) -> None:
    """Sets grid, spines and tick labels; counts on the horizontal axis are short."""
    axes.xaxis.set_major_formatter(FuncFormatter(short_count))
    axes.yaxis.set_major_locator(MaxNLocator(nbins=5))
    axes.tick_params(labelsize=label_size, length=2.5)
    axes.grid(color="#E3E3E3", linewidth=0.6)
    axes.set_axisbelow(True)
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)


def short_count(value: float, _position: int | None = None) -> str:
    """20,000 as ``20k``, for a narrow axis."""
    for size, letter in ((1e6, "M"), (1e3, "k")):
        if abs(value) >= size:
            return f"{value / size:g}{letter}"
    return f"{value:g}"
