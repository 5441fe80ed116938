"""Pictures of experiments whose results are returns against env steps, or a table of pairs.

    python -m muxrl.experiments.pictures

Reads the JSON files in `experiments/results` and draws `returns.png` or `pairs.png` beside them.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from muxrl.experiments.combinations import ALGORITHMS
from muxrl.experiments.simulations import cue_game, matrix_game, two_step_game

RESULTS = Path(__file__).resolve().parent / "results"

_COLOURS = {"QMIX": "#0072b2", "VDN": "#e69f00", "IQL": "#009e73", "MAPPO": "#0072b2"}
_OTHERS = ("#d55e00", "#cc79a7")
_DASHES = ("-", (0, (6, 2)), (0, (2, 2)))
Runs = Mapping[str, Sequence[Mapping[str, float]]]
"""Returns by env steps of every seed, by contestant."""


def draw_returns(
    panels: Mapping[str, tuple[Runs, Mapping[str, float]]], title: str, path: Path
) -> None:
    """Draws one panel a task: every seed of every contestant, and levels known beforehand.

    Args:
        panels: by the task's name, its runs and levels (random, optimum).
        title: with the rule of evaluation in it.
        path: of the PNG file.
    """
    figure = Figure(figsize=(max(5.2, 4.2 * len(panels)), 3.6), layout="constrained")
    figure.suptitle(title, fontsize=9)
    for axes, (name, (runs, levels)) in zip(
        np.atleast_1d(figure.subplots(1, len(panels))), panels.items(), strict=True
    ):
        others = iter(_OTHERS)
        for number, (contestant, seeds) in enumerate(runs.items()):
            colour = _COLOURS.get(contestant) or next(others)
            for i, returns in enumerate(seeds):
                axes.plot(
                    [int(steps) / 1000 for steps in returns],
                    list(returns.values()),
                    color=colour,
                    linestyle=_DASHES[number % len(_DASHES)],
                    # Equal curves would hide each other.
                    linewidth=3.5 - number,
                    alpha=0.7,
                    label=f"{contestant}, {len(seeds)} seeds" if i == 0 else None,
                )
        for level, value in levels.items():
            axes.axhline(value, color="0.4", linestyle=":", linewidth=1)
            axes.annotate(level, (1, value), xycoords=("axes fraction", "data"), fontsize=7,
                          ha="right", va="bottom", color="0.3")  # fmt: skip
        axes.set_title(name, fontsize=9)
        axes.set_xlabel("1,000 env steps")
        axes.legend(fontsize=7, loc="best")
    figure.get_axes()[0].set_ylabel("return")
    figure.savefig(path, dpi=110)


def draw_pairs(outcomes: Sequence[Mapping[str, Any]], path: Path) -> None:
    """Draws what each pair of algorithms came to, and what random agents took away from it."""
    learned, least = (np.full((len(ALGORITHMS), len(ALGORITHMS)), np.nan) for _ in range(2))
    for outcome in outcomes:
        names = [part.partition("_")[0].upper() for part in outcome["replaced"]]
        if len(names) == 2:
            at = ALGORITHMS.index(names[0]), ALGORITHMS.index(names[1])
            learned[at] = outcome["learned"]
            least[at] = outcome["learned"] - max(outcome["replaced"].values())
    figure = Figure(figsize=(10, 4.4), layout="constrained")
    titles = (
        f"mean return of the three; random {cue_game.random_return():.2f}, "
        f"optimum {cue_game.oracle_return():g}",
        "less with the server's agents random: the server that matters less",
    )
    for axes, values, title in zip(figure.subplots(1, 2), (learned, least), titles, strict=True):
        axes.imshow(values, cmap="Blues", vmin=0, vmax=cue_game.oracle_return())
        axes.set_title(title, fontsize=9)
        axes.set_xticks(range(len(ALGORITHMS)), ALGORITHMS, fontsize=8)
        axes.set_yticks(range(len(ALGORITHMS)), ALGORITHMS, fontsize=8)
        axes.set_xlabel("agent_1 and agent_2")
        axes.set_ylabel("agent_0")
        for (row, column), value in np.ndenumerate(values):
            if np.isfinite(value):
                axes.text(column, row, f"{value:.1f}", ha="center", va="center", fontsize=8,
                          color="white" if value > 12 else "black")  # fmt: skip
    figure.savefig(path, dpi=110)


def _by_contestant(files: Sequence[Path]) -> Runs:
    runs: dict[str, list[Mapping[str, float]]] = {}
    for outcome in (json.loads(file.read_text()) for file in files):
        runs.setdefault(outcome["algorithm"], []).append(outcome["returns"])
    return {name: runs[name] for name in sorted(runs, key=list(_COLOURS).index)}


def _two_step(folder: Path) -> None:
    levels = {"random": two_step_game.random_return(), "optimum": two_step_game.oracle_return()}
    draw_returns(
        {"two-step game": (_by_contestant(sorted(folder.glob("*.json"))), levels)},
        "Joint return, one greedy episode every 2,000 env steps",
        folder / "returns.png",
    )


def _matrix_games(folder: Path) -> None:
    panels = {}
    games: tuple[tuple[str, matrix_game.Game, float], ...] = (
        ("climbing", "climbing", 0.0),
        ("penalty_100", "penalty", -100.0),
        ("penalty_25", "penalty", -25.0),
    )
    for name, game, k in games:
        levels = {"optimum": matrix_game.oracle_return(game, k)}
        title = name if game == "climbing" else f"penalty, k = {k:g}"
        panels[title] = (_by_contestant(sorted(folder.glob(f"{name}_*.json"))), levels)
    draw_returns(
        panels, "Joint return, one greedy episode every 1,000 env steps", folder / "returns.png"
    )


def _central_critic(folder: Path) -> None:
    runs: dict[str, list[Mapping[str, float]]] = {}
    for outcome in json.loads((folder / "outcomes.json").read_text()):
        runs.setdefault(outcome["contestant"], []).append(outcome["returns"])
    levels = {"random": cue_game.random_return(), "optimum": cue_game.oracle_return()}
    draw_returns(
        {"cues in weather": (runs, levels)},
        "Return per agent, 50 sampled episodes every 1,500 env steps",
        folder / "returns.png",
    )


def _combinations(folder: Path) -> None:
    draw_pairs(json.loads((folder / "outcomes.json").read_text()), folder / "pairs.png")


_DRAWN = {
    "two_step": _two_step,
    "matrix_games": _matrix_games,
    "central_critic": _central_critic,
    "combinations": _combinations,
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--results", type=Path, default=RESULTS)
    args = parser.parse_args()
    for name, draw in _DRAWN.items():
        draw(args.results / name)
        print(args.results / name)


if __name__ == "__main__":
    main()
