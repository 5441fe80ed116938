"""From a study's runs to its table and its picture.

The numbers are rliable's (Agarwal et al. 2021): a run's score is its mean return over the
evaluation's episodes, and contestants are compared by the interquartile mean over runs with a
bootstrap interval that draws runs. With three seeds the interquartile mean is the mean, and the
interval the range: that is said under the table, beside every run's own score.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from muxrl.orchestrator.config import ConfigError
from muxrl.orchestrator.records.json_files import write_text, write_whole
from muxrl.orchestrator.reports.figure_style import COLOURS
from muxrl.orchestrator.reports.rliable import interquartile_mean_interval
from muxrl.orchestrator.reports.statistics import Estimate

_DASHES: tuple[Any, ...] = ((0, (3, 1.5)), (0, (1, 1)), "-.")  # of fixed policies
_DPI = 150
_TEXT = 8.5  # points


@dataclass(frozen=True)
class Contestant:
    """All runs of one algorithm, by seed; those of a fixed policy have no curve."""

    name: str
    runs: tuple[dict[str, Any], ...]

    @property
    def is_trained(self) -> bool:
        """Whether there was anything to learn."""
        return bool(self.runs[0]["curve"])

    @property
    def rule(self) -> str:
        """How the curve was evaluated."""
        return str(self.runs[0]["rule"])

    def scores(self, rule: str) -> list[float]:
        """Returns each run's mean return in the final evaluation; [] if it was not made so."""
        return [float(np.mean(run["final"][rule])) for run in self.runs if rule in run["final"]]

    def curve(self) -> list[tuple[float, float, Estimate]]:
        """Returns env steps, processor seconds and return of each evaluation that all seeds have.

        Processor time, since wall time would tell what else the machine had to do. A run is one
        process held up by Python's interpreter lock: alone on a machine both are nearly the same.
        """
        points = zip(*(run["curve"] for run in self.runs), strict=False)
        return [
            (
                float(np.mean([point["env_steps"] for point in seeds])),
                float(np.mean([point["cpu_s"] for point in seeds])),
                interquartile_mean_interval([[np.mean(point["returns"]) for point in seeds]]),
            )
            for seeds in points
        ]


def write_report(folder: Path) -> str:
    """Writes ``report.md`` and ``curves.png`` into `folder`.

    Returns:
        The report's text.

    Raises:
        ConfigError: there are no runs, or they are not of one study with one budget.
    """
    contestants, fixed = _load(folder)
    text = _table(contestants, fixed)
    figure = _figure(contestants, fixed)
    write_whole(folder / "curves.png", lambda path: figure.savefig(path, dpi=_DPI))
    write_text(folder / "report.md", text)
    return text


def _load(folder: Path) -> tuple[list[Contestant], list[Contestant]]:
    """Returns who was trained, and the fixed policies; the best ones first."""
    records = [json.loads(path.read_text()) for path in sorted(folder.glob("*_*.json"))]
    if not any(record["curve"] for record in records):
        raise ConfigError(["holds no run of a study"], str(folder))
    for other in records:
        for key in ("study", "settings"):
            if other[key] != records[0][key]:
                raise ConfigError(
                    [
                        f"{other['contestant']} seed {other['seed']} was made with another "
                        f"{key} than {records[0]['contestant']} seed {records[0]['seed']}; "
                        "runs of one report differ in contestant and seed alone"
                    ],
                    str(folder),
                )
    contestants = []
    for name in dict.fromkeys(record["contestant"] for record in records):
        runs = sorted((r for r in records if r["contestant"] == name), key=lambda r: r["seed"])
        contestants.append(Contestant(name, tuple(runs)))
    contestants.sort(key=lambda c: -np.mean(c.scores(c.rule)))
    return [c for c in contestants if c.is_trained], [c for c in contestants if not c.is_trained]


def _table(contestants: Sequence[Contestant], fixed: Sequence[Contestant]) -> str:
    rows = [
        "| | evaluated | return, IQM [95 %] | each seed | greedy | wall s | processor s |",
        "|---|---|---:|---|---:|---:|---:|",
    ]
    for contestant in contestants:
        scores = contestant.scores(contestant.rule)
        estimate = interquartile_mean_interval([scores])
        greedy = contestant.scores("greedy")
        rows.append(
            f"| {contestant.name} | {contestant.rule} | {_interval(estimate)} | "
            f"{', '.join(f'{score:.2f}' for score in scores)} | "
            f"{interquartile_mean_interval([greedy]).mean:.2f} | "
            f"{np.mean([run['time_s'] for run in contestant.runs]):.0f} | "
            f"{np.mean([run['cpu_s'] for run in contestant.runs]):.0f} |"
        )
    settings = contestants[0].runs[0]["settings"]
    for policy in fixed:
        rows.append(f"| {policy.name} | | {np.mean(policy.scores(policy.rule)):.2f} | | | | |")
    if settings["optimum"] is not None:
        rows.append(f"| optimum | | {settings['optimum']:.2f} | | | | |")
    return "\n".join([*rows, "", caption(contestants), ""])


def caption(contestants: Sequence[Contestant]) -> str:
    """Returns how the numbers were made, in sentences."""
    settings = contestants[0].runs[0]["settings"]
    first, last = contestants[0].runs[0]["evaluation_seeds"]
    seeds = {c.name: tuple(run["seed"] for run in c.runs) for c in contestants}
    alike = len(set(seeds.values())) == 1
    told = (
        f"Seeds {_listed(next(iter(seeds.values())))}"
        if alike
        else "Seeds: " + "; ".join(f"{name} {_listed(each)}" for name, each in seeds.items())
    )
    few = max(map(len, seeds.values()))
    steps = sorted({run["env_steps"] for c in contestants for run in c.runs})
    note = (
        f" With {few} seeds the interquartile mean is the mean, and the interval the range of the "
        f"seeds: it covers about {100 - 200 // 2**few} %, not 95 %."
        if few in (2, 3)
        else ""
    )
    return (
        f"{told}; {' or '.join(f'{n:,}' for n in steps)} env steps each, "
        f"{settings['num_envs']} environments in lockstep. Return: "
        f"{settings['agents']} over the agents of their raw rewards in an episode, in "
        f"{settings['final_num_episodes']} episodes (environment seeds {first} to {last}, the "
        "same for all) after training. IQM: interquartile mean over runs, with a bootstrap "
        f"interval that draws runs.{note} Times are of training, evaluation left out; processor "
        "time counts simulation, client and server."
    )


def _figure(contestants: Sequence[Contestant], fixed: Sequence[Contestant]) -> Any:
    figure = Figure(figsize=(8.0, 3.8), layout="constrained")
    FigureCanvasAgg(figure)
    by_steps, by_cpu = figure.subplots(1, 2, sharey=True)
    settings = contestants[0].runs[0]["settings"]
    for index, contestant in enumerate(contestants):
        curve = contestant.curve()
        means = [estimate.mean for _, _, estimate in curve]
        lows = [estimate.low for _, _, estimate in curve]
        highs = [estimate.high for _, _, estimate in curve]
        style: dict[str, Any] = {"color": COLOURS[index % len(COLOURS)]}
        for axes, axis in ((by_steps, 0), (by_cpu, 1)):
            places = [point[axis] for point in curve]
            dashes = "-" if index < len(COLOURS) else "--"
            axes.plot(places, means, dashes, lw=1.6, label=contestant.name, **style)
            if not np.isnan(lows).any():
                axes.fill_between(places, lows, highs, alpha=0.15, lw=0, **style)
    for axes in (by_steps, by_cpu):
        for policy, dashes in zip(fixed, _DASHES, strict=False):
            level = float(np.mean(policy.scores(policy.rule)))
            axes.axhline(level, color="#6B6B6B", ls=dashes, lw=1, label=policy.name)
        if settings["optimum"] is not None:
            axes.axhline(settings["optimum"], color="#333333", ls=":", lw=1, label="optimum")
        axes.grid(alpha=0.25)
        axes.tick_params(labelsize=_TEXT)
    by_steps.set_xlabel("env steps", fontsize=_TEXT)
    by_steps.xaxis.set_major_formatter(lambda value, _: f"{value / 1000:.0f}k")
    by_cpu.set_xlabel("processor seconds of training, mean over seeds", fontsize=_TEXT)
    by_steps.set_ylabel("return per episode", fontsize=_TEXT)
    by_steps.legend(fontsize=_TEXT - 1, framealpha=0.8)
    counts = sorted({len(c.runs) for c in contestants})
    rules = {c.rule: [d.name for d in contestants if d.rule == c.rule] for c in contestants}
    how = ", ".join(f"{' '.join(names)} {rule}" for rule, names in rules.items())
    figure.suptitle(
        f"{contestants[0].runs[0]['study']}: interquartile mean and 95 % interval over "
        f"{' or '.join(map(str, counts))} seeds each; "
        f"{settings['num_episodes']} episodes a point, {how}",
        fontsize=_TEXT,
        wrap=True,
    )
    return figure


def _interval(estimate: Estimate) -> str:
    if np.isnan(estimate.low):
        return f"{estimate.mean:.2f}"
    return f"{estimate.mean:.2f} [{estimate.low:.2f}, {estimate.high:.2f}]"


def _listed(seeds: Sequence[int]) -> str:
    return ", ".join(map(str, seeds))
