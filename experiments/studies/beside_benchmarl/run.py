"""Algorithms through a policy server beside BenchMARL's, on mpe2's simple_spread. See README.md.

    python -m muxrl.experiments.studies.beside_benchmarl.run install ENV
    python -m muxrl.experiments.studies.beside_benchmarl.run turns --beside ENV --out DIR
    python -m muxrl.experiments.studies.beside_benchmarl.run report DIR

`turns` takes `--algorithm`, one of `settings.py`; by default QMIX. BenchMARL is no dependency of
this project: `install` makes an environment of its own for it. `turns` runs each side, setting
and seed in a process of its own, one after another and ours and theirs by turns, so that a machine
whose speed drifts is fair to both.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
import venv
from collections import defaultdict
from contextlib import nullcontext
from dataclasses import asdict
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np

from muxrl.experiments.studies.beside_benchmarl.settings import (
    CASES,
    ENV_STEPS,
    OF_OURS,
    SETTINGS,
    SIDES,
)

_STARTED = time.monotonic()
_SRC = Path(__file__).resolve().parents[3] / "src"
"""BenchMARL's environment has no muxrl installed, and finds it here."""
_MODULE = "muxrl.experiments.studies.beside_benchmarl.run"
_NOT_ALONE = "other work shares the machine: keep no wall times"
_SAMPLED = "sampled_return_mean"
_AXES = {
    "env_steps": "env steps",
    "wall_s": "wall time of training, s",
    "processor_s": "processor time of training, s",
}

Runs = dict[str, dict[str, list[dict[str, Any]]]]
"""By setting, by side, ordered by seed."""
# One command with torch's exact pin: left open, pip may choose a CUDA build.
PACKAGES = (
    "torch==2.13.0",
    "benchmarl==1.5.2",
    "torchrl==0.11.1",
    "tensordict==0.11.0",
    "pettingzoo==1.27.0",  # torchrl warns that it is tested with 1.24.3, which mpe2 is too new for
    "mpe2==1.1.1",
    "numpy==2.4.6",
)


def install(folder: Path) -> None:
    """Makes a virtual environment for BenchMARL."""
    venv.create(folder, with_pip=True)
    subprocess.run([_python(folder), "-m", "pip", "install", "-q", *PACKAGES], check=True)


def run(
    algorithm: str,
    side: str,
    setting: str,
    seed: int,
    env_steps: int,
    out: Path,
    *,
    is_alone: bool = True,
) -> None:
    """Trains one side in this process and writes its JSON; without wall times if not alone."""
    if side in OF_OURS:
        from muxrl.experiments.studies.beside_benchmarl.muxrl_side import train

        result = train(algorithm, side, setting, seed, env_steps, _STARTED)
    else:
        from muxrl.experiments.studies.beside_benchmarl import benchmarl_side

        result = benchmarl_side.train(algorithm, side, setting, seed, env_steps, _STARTED)
    out.mkdir(parents=True, exist_ok=True)
    written = asdict(result)
    if not is_alone:
        for timed in (*written["points"], written):
            timed.update(dict.fromkeys(timed.keys() & {"wall_s", "setup_s"}))
    path = out / f"{side}_{setting}_{seed}.json"
    path.write_text(json.dumps(written, indent=1) + "\n")


def turns(
    algorithm: str,
    beside: Path,
    settings: list[str],
    seeds: list[int],
    env_steps: int,
    out: Path,
    *,
    is_alone: bool = True,
) -> None:
    """Runs all sides, settings and seeds, one process at a time."""
    one_thread = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1")
    for seed in seeds:
        for setting in settings:
            for side in CASES[algorithm].settings[setting].sides:
                command = [sys.executable if side in OF_OURS else _python(beside), "-m", _MODULE]
                command += ["run", algorithm, side, setting, str(seed)]
                command += ["--env-steps", str(env_steps), "--out", str(out)]
                command += [] if is_alone else ["--not-alone"]
                print(algorithm, side, setting, seed, flush=True)
                env = {**os.environ, **one_thread, "PYTHONPATH": str(_SRC)}
                subprocess.run(command, check=True, env=env)


def measure_random(algorithm: str, out: Path) -> None:
    """Measures agents that act uniformly at random in its space of actions, by the same rule."""
    from muxrl.experiments.studies.beside_benchmarl.measure import evaluate

    rng = np.random.default_rng(0)
    is_continuous = CASES[algorithm].has_continuous_actions

    def draw() -> Any:
        return rng.random(5, np.float32) if is_continuous else int(rng.integers(5))

    returns = evaluate(
        lambda _: nullcontext(lambda observations, _: {a: draw() for a in observations}),
        is_continuous,
    )
    out.mkdir(parents=True, exist_ok=True)
    (out / "random.json").write_text(json.dumps({"return_mean": float(returns.mean())}) + "\n")


def report(folder: Path, out: Path) -> str:
    """Draws `learning.png` into `out` and returns Markdown tables: last returns, and differences.

    Raises:
        OSError: a folder cannot be read or written to.
        ValueError: there is no run in it.
    """
    from muxrl.experiments.studies.pictures import Panel, draw_curves

    runs: Runs = defaultdict(lambda: defaultdict(list))
    for path in sorted(folder.glob("*_*_[0-9]*.json")):
        run = json.loads(path.read_text())
        runs[run["setting"]][run["side"]].append(run)
    if not runs:
        raise ValueError(f"{folder} holds no run; was `turns` given another folder?")
    random_return = json.loads((folder / "random.json").read_text())["return_mean"]
    rows = [
        [
            Panel(
                f"{setting} settings",
                label,
                {
                    name: [[(p[key], p["return_mean"]) for p in r["points"]] for r in sides[side]]
                    for side, name in SIDES.items()
                    if side in sides
                },
                {"random": random_return},
                "return per agent",
            )
            for key, label in _axes(sides).items()
        ]
        for setting, sides in sorted(runs.items())
    ]
    draw_curves(rows, "Return of 50 greedy episodes", out / "learning.png")
    return f"{_table(runs)}\n\n{_differences(runs)}\n\nrandom {random_return:.2f}\n"


def _axes(sides: dict[str, list[dict[str, Any]]]) -> dict[str, str]:
    points = [point for runs in sides.values() for run in runs for point in run["points"]]
    return {k: label for k, label in _AXES.items() if all(p[k] is not None for p in points)}


def _table(runs: Runs) -> str:
    """Returns of on-policy algorithms are also of sampled episodes, in a column of their own."""
    finals = [run["points"][-1] for sides in runs.values() for of in sides.values() for run in of]
    is_sampled = any(point.get(_SAMPLED) is not None for point in finals)
    more, rule = (" sampled |", "---|") if is_sampled else ("", "")
    rows = [
        f"| setting | side | last return, by seed | mean |{more} updates | wall s | processor s |",
        f"|---|---|---|---:|{rule}---:|---:|---:|",
    ]
    for setting, sides in sorted(runs.items()):
        for side in filter(sides.__contains__, SIDES):
            last = [run["points"][-1] for run in sides[side]]
            returns = [point["return_mean"] for point in last]
            sampled = f" {_by_seed(last, _SAMPLED, 2)} |" if is_sampled else ""
            rows.append(
                f"| {setting} | {SIDES[side]} | {_by_seed(last, 'return_mean', 2)} "
                f"| {fmean(returns):.2f} |{sampled} "
                f"{fmean(run['num_updates'] for run in sides[side]):,.0f} "
                f"| {_by_seed(last, 'wall_s')} | {_by_seed(last, 'processor_s')} |"
            )
    return "\n".join(rows)


def _differences(runs: Runs) -> str:
    """Ours minus theirs in the last evaluation's greedy episodes, of runs of one seed and budget.

    A seed's standard error is over its paired episodes, the mean's over seeds.
    """
    rows = [
        "| paired difference | by seed (standard error over episodes) | mean (over seeds) |",
        "|---|---|---:|",
    ]
    for setting, sides in sorted(runs.items()):
        for ours in filter(sides.__contains__, OF_OURS):
            for theirs in (side for side in SIDES if side in sides and side not in OF_OURS):
                pairs = _pairs(sides[ours], sides[theirs])
                if pairs:
                    means = np.array([pair.mean() for pair in pairs])
                    over_seeds = f" ({_standard_error(means):.2f})" if len(pairs) > 1 else ""
                    by_seed = ", ".join(
                        f"{pair.mean():+.2f} ({_standard_error(pair):.2f})" for pair in pairs
                    )
                    rows.append(
                        f"| {setting}: {SIDES[ours]} minus {SIDES[theirs]} | {by_seed} "
                        f"| {means.mean():+.2f}{over_seeds} |"
                    )
    return "\n".join(rows)


def _pairs(ours: list[dict[str, Any]], theirs: list[dict[str, Any]]) -> list[np.ndarray]:
    """Differences by episode, for each seed that both ran for as many env steps."""
    partners = {(run["seed"], run["points"][-1]["env_steps"]): run for run in theirs}
    return [
        np.subtract(run["last_returns"], partners[key]["last_returns"])
        for run in ours
        if (key := (run["seed"], run["points"][-1]["env_steps"])) in partners
    ]


def _standard_error(values: np.ndarray) -> float:
    return float(values.std(ddof=1) / np.sqrt(values.size))


def _by_seed(points: list[dict[str, Any]], key: str, digits: int = 0) -> str:
    """By seed; "-" for what was not measured."""
    values = [point.get(key) for point in points]
    return ", ".join("-" if value is None else f"{value:.{digits}f}" for value in values)


def _python(folder: Path) -> str:
    return str(folder / "bin" / "python")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    verbs = parser.add_subparsers(dest="verb", required=True)
    verb = verbs.add_parser("install", help="make an environment with BenchMARL")
    verb.add_argument("folder", type=Path)
    verb = verbs.add_parser("run", help="train one side in this process")
    verb.add_argument("algorithm", choices=CASES)
    verb.add_argument("side", choices=SIDES)
    verb.add_argument("setting", choices=SETTINGS)
    verb.add_argument("seed", type=int)
    verb.add_argument("--env-steps", type=int, default=ENV_STEPS)
    verb.add_argument("--out", type=Path, required=True)
    verb.add_argument("--not-alone", action="store_true", help=_NOT_ALONE)
    verb = verbs.add_parser("turns", help="train both sides by turns, and measure random agents")
    verb.add_argument("--algorithm", choices=CASES, default="qmix")
    verb.add_argument("--beside", type=Path, required=True, help="the folder of `install`")
    verb.add_argument("--settings", nargs="+", choices=SETTINGS, default=list(SETTINGS))
    verb.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    verb.add_argument("--env-steps", type=int, default=ENV_STEPS)
    verb.add_argument("--out", type=Path, required=True)
    verb.add_argument("--not-alone", action="store_true", help=_NOT_ALONE)
    verb = verbs.add_parser("report", help="table and picture of what was measured")
    verb.add_argument("folder", type=Path)
    verb.add_argument("--out", type=Path, help="where the picture goes; default: the same folder")
    args = parser.parse_args()
    if args.verb == "install":
        install(args.folder)
    elif args.verb == "run":
        run(
            args.algorithm, args.side, args.setting, args.seed, args.env_steps, args.out,
            is_alone=not args.not_alone,
        )  # fmt: skip
    elif args.verb == "turns":
        measure_random(args.algorithm, args.out)
        turns(
            args.algorithm, args.beside, args.settings, args.seeds, args.env_steps, args.out,
            is_alone=not args.not_alone,
        )  # fmt: skip
    else:
        print(report(args.folder, args.out or args.folder))


if __name__ == "__main__":
    main()
