"""Tables and pictures of what the former engine of studies measured, from its committed files.

    python -m muxrl.experiments.studies.former_engine experiments/studies/doors/results --out DIR

Up to commit 7a814c4 `experiments/study.py` trained the contestants of a study and wrote a JSON file
for each contestant and seed. `muxrl sweep` trains them now. The numbers are rliable's (Agarwal et
al. 2021): a run's score is its mean return over the evaluation's episodes, and contestants are
compared by the interquartile mean over runs, with a bootstrap interval that draws runs.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from muxrl.experiments.studies.pictures import Curve, Panel, draw_curves
from muxrl.orchestrator.config import ConfigError
from muxrl.orchestrator.measure.rliable import interquartile_mean_interval
from muxrl.orchestrator.storage.json_files import write_text

Runs = list[dict[str, Any]]
"""Of one contestant, by seed; those of a policy that does not learn have no curve."""


def write_report(folder: Path, out: Path) -> str:
    """Writes ``report.md`` and ``curves.png``.

    Args:
        folder: with the JSON files.
        out: where to write, which exists.

    Returns:
        The report's text.

    Raises:
        ConfigError: there are no runs, or they are not of one study with one budget.
    """
    contestants = _load(folder)
    trained = [runs for runs in contestants if runs[0]["curve"]]
    fixed = [runs for runs in contestants if not runs[0]["curve"]]
    optimum = trained[0][0]["settings"]["optimum"]
    levels = {runs[0]["contestant"]: float(np.mean(_scores(runs))) for runs in fixed}
    levels |= {} if optimum is None else {"optimum": optimum}
    rows = [*map(_row, trained), *(f"| {name} | | {v:.2f} | | | | |" for name, v in levels.items())]
    head = [
        "| | evaluated | return, IQM [95 %] | each seed | greedy | wall s | processor s |",
        "|---|---|---:|---|---:|---:|---:|",
    ]
    text = "\n".join([*head, *rows, "", _caption(trained), ""])
    rules = {runs[0]["contestant"]: runs[0]["rule"] for runs in trained}
    first = trained[0][0]
    title = f"{first['study']}: {first['settings']['num_episodes']} episodes a point, " + ", ".join(
        f"{name} {rule}" for name, rule in rules.items()
    )
    panels = [
        Panel("", label, {runs[0]["contestant"]: _curves(runs, key) for runs in trained}, levels)
        for key, label in (("env_steps", "env steps"), ("cpu_s", "processor seconds of training"))
    ]
    draw_curves([panels], title, out / "curves.png")
    write_text(out / "report.md", text)
    return text


def _load(folder: Path) -> list[Runs]:
    """Returns all contestants, the best first."""
    records = [json.loads(path.read_text()) for path in sorted(folder.glob("*_*.json"))]
    if not any(record.get("curve") for record in records):
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
    names = dict.fromkeys(record["contestant"] for record in records)
    contestants = [[r for r in records if r["contestant"] == name] for name in names]
    return sorted(contestants, key=lambda runs: -np.mean(_scores(runs)))


def _scores(runs: Runs, rule: str | None = None) -> list[float]:
    """Returns each run's mean return after training, by the rule of its curve or another."""
    return [float(np.mean(run["final"][rule or run["rule"]])) for run in runs]


def _curves(runs: Runs, key: str) -> list[Curve]:
    return [[(p[key], float(np.mean(p["returns"]))) for p in run["curve"]] for run in runs]


def _row(runs: Runs) -> str:
    scores = _scores(runs)
    estimate = interquartile_mean_interval([scores])
    interval = "" if np.isnan(estimate.low) else f" [{estimate.low:.2f}, {estimate.high:.2f}]"
    return (
        f"| {runs[0]['contestant']} | {runs[0]['rule']} | {estimate.mean:.2f}{interval} | "
        f"{', '.join(f'{score:.2f}' for score in scores)} | "
        f"{interquartile_mean_interval([_scores(runs, 'greedy')]).mean:.2f} | "
        f"{np.mean([run['time_s'] for run in runs]):.0f} | "
        f"{np.mean([run['cpu_s'] for run in runs]):.0f} |"
    )


def _caption(contestants: Sequence[Runs]) -> str:
    """Returns how the numbers were made, in sentences."""
    settings = contestants[0][0]["settings"]
    first, last = contestants[0][0]["evaluation_seeds"]
    seeds = {runs[0]["contestant"]: [run["seed"] for run in runs] for runs in contestants}
    listed = {name: ", ".join(map(str, each)) for name, each in seeds.items()}
    alike = set(listed.values())
    if len(alike) == 1:
        told = f"Seeds {alike.pop()}"
    else:
        told = "Seeds: " + "; ".join(f"{name} {each}" for name, each in listed.items())
    few = max(map(len, seeds.values()))
    steps = sorted({run["env_steps"] for runs in contestants for run in runs})
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


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("folder", type=Path, help="a study's committed results")
    parser.add_argument("--out", type=Path, required=True, metavar="DIR")
    args = parser.parse_args()
    args.out.mkdir(parents=True, exist_ok=True)
    print(write_report(args.folder, args.out))
