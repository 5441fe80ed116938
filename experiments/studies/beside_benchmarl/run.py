"""Algorithms through a policy server beside BenchMARL's, on mpe2's simple_spread. See README.md.

    python -m muxrl.experiments.studies.beside_benchmarl.run install ENV
    python -m muxrl.experiments.studies.beside_benchmarl.run turns --beside ENV --out DIR
    python -m muxrl.experiments.studies.beside_benchmarl.run report DIR

`turns` takes `--algorithm`, one of those in `settings.py`; by default QMIX. BenchMARL is no
dependency of this project: `install` makes a separate Python environment for it. `turns` runs each
side, setting and seed in a separate process, one after another, and alternates between ours and
theirs, so that drifts of the machine's speed are fair to both.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import subprocess
import sys
import venv
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import asdict
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING, Any

import numpy as np

from muxrl.experiments.studies.beside_benchmarl.settings import (
    CASES,
    ENV_STEPS,
    OF_OURS,
    SETTINGS,
    SIDES,
)

if TYPE_CHECKING:
    from muxrl.experiments.studies.outcomes import Outcome

_SRC = Path(__file__).resolve().parents[3] / "src"
"""Where BenchMARL's environment finds muxrl, which is not installed there."""
_MODULE = "muxrl.experiments.studies.beside_benchmarl.run"
TITLE = "Return per agent of 50 greedy episodes every 6,000 env steps"
# All in one command with an exact pin of torch, else pip may choose a CUDA build.
PACKAGES = (
    "torch==2.13.0",
    "benchmarl==1.5.2",
    "torchrl==0.11.1",
    "tensordict==0.11.0",
    "pettingzoo==1.27.0",  # torchrl warns that it is tested with 1.24.3, for which mpe2 is too new
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
) -> None:
    """Trains one side in this process and writes the result as JSON."""
    if side in OF_OURS:
        from muxrl.experiments.studies.beside_benchmarl.muxrl_side import train

        result = train(algorithm, side, setting, seed, env_steps)
    else:
        from muxrl.experiments.studies.beside_benchmarl import benchmarl_side

        result = benchmarl_side.train(algorithm, side, setting, seed, env_steps)
    out.mkdir(parents=True, exist_ok=True)
    path = out / f"{algorithm}_{side}_{setting}_{seed}.json"
    path.write_text(json.dumps(asdict(result), indent=1) + "\n")


def turns(
    algorithm: str,
    beside: Path,
    settings: list[str],
    seeds: list[int],
    env_steps: int,
    out: Path,
) -> None:
    """Runs all sides, settings and seeds, one process at a time."""
    one_thread = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1")
    for seed in seeds:
        for setting in settings:
            for side in CASES[algorithm].settings[setting].sides:
                command = [sys.executable if side in OF_OURS else _python(beside), "-m", _MODULE]
                command += ["run", algorithm, side, setting, str(seed)]
                command += ["--env-steps", str(env_steps), "--out", str(out)]
                print(algorithm, side, setting, seed, flush=True)
                env = {**os.environ, **one_thread, "PYTHONPATH": str(_SRC)}
                subprocess.run(command, check=True, env=env)


def measure_random(algorithm: str, out: Path) -> None:
    """Measures agents that act uniformly at random, by the same rule."""
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
    (out / f"{algorithm}_random.json").write_text(
        json.dumps({"return_mean": float(returns.mean())}) + "\n"
    )


def report(folder: Path, out: Path) -> str:
    """Writes `outcomes.json` and the picture into `out`; returns table and versions in Markdown.

    Raises:
        OSError: a folder cannot be read or written to.
        ValueError: there is no run in the folder.
    """
    from muxrl.experiments.studies.outcomes import draw_outcomes, made_with, write_outcomes

    outcomes = outcomes_of(folder)
    if not outcomes:
        raise ValueError(f"{folder} holds no run; was `turns` given another folder?")
    out.mkdir(parents=True, exist_ok=True)
    write_outcomes(out, outcomes)
    draw_outcomes(outcomes, TITLE, out)
    ours = (outcome for outcome in outcomes if "ray" in outcome.versions)
    return f"{table(outcomes)}\n\n{made_with(ours)}"


def outcomes_of(folder: Path) -> list[Outcome]:
    """Returns the outcomes of the runs in a folder, in the order of `CASES`."""
    from muxrl.experiments.studies.outcomes import Outcome

    outcomes = []
    for algorithm, setting, side in itertools.product(CASES, SETTINGS, SIDES):
        for path in sorted(folder.glob(f"{algorithm}_{side}_{setting}_[0-9]*.json")):
            run = json.loads(path.read_text())
            random_return = json.loads((folder / f"{algorithm}_random.json").read_text())
            measured = {
                point["env_steps"]: {"return": round(point["return_mean"], 3)}
                for point in run["points"]
            }
            last = run["points"][-1]
            measured[last["env_steps"]] |= {
                "num_updates": run["num_updates"],
                "processor_s": round(last["processor_s"], 1),
            }
            if "updating_s" in run:
                measured[last["env_steps"]]["ms_per_update"] = round(
                    1e3 * run["updating_s"] / run["num_updates"], 2
                )
            if last.get("sampled_return_mean") is not None:
                measured[last["env_steps"]]["sampled"] = round(last["sampled_return_mean"], 3)
            case = f"{CASES[algorithm].name}, {setting}: {SIDES[side]}"
            levels = {"random": round(random_return["return_mean"], 3)}
            outcomes.append(Outcome(case, run["seed"], levels, measured, run["versions"]))
    return outcomes


def table(outcomes: Sequence[Outcome]) -> str:
    """Returns the last returns in Markdown, a row for each case."""
    rows = [
        "| settings: side | env steps | return, by seed | updates | processor s | ms an update |",
        "|---|---:|---|---:|---:|---:|",
    ]
    for case, of_case in itertools.groupby(outcomes, lambda outcome: outcome.case):
        runs = list(of_case)
        finals = [run.final for run in runs]
        returns = ", ".join(f"{final['return']:.2f}" for final in finals)
        took = [final["ms_per_update"] for final in finals if "ms_per_update" in final]
        rows.append(
            f"| {case} | {max(runs[0].measured):,} | {returns} "
            f"| {fmean(final['num_updates'] for final in finals):,.0f} "
            f"| {fmean(final['processor_s'] for final in finals):.0f} "
            f"| {f'{fmean(took):.1f}' if took else ''} |"
        )
    return "\n".join(rows)


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
    verb = verbs.add_parser("turns", help="train the two sides in turn, and measure random agents")
    verb.add_argument("--algorithm", choices=CASES, default="qmix")
    verb.add_argument("--beside", type=Path, required=True, help="the folder of `install`")
    verb.add_argument("--settings", nargs="+", choices=SETTINGS, default=list(SETTINGS))
    verb.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    verb.add_argument("--env-steps", type=int, default=ENV_STEPS)
    verb.add_argument("--out", type=Path, required=True)
    verb = verbs.add_parser("report", help="write table, outcomes and picture of the measurements")
    verb.add_argument("folder", type=Path)
    verb.add_argument("--out", type=Path, help="default: the same folder")
    args = parser.parse_args()
    if args.verb == "install":
        install(args.folder)
    elif args.verb == "run":
        run(args.algorithm, args.side, args.setting, args.seed, args.env_steps, args.out)
    elif args.verb == "turns":
        measure_random(args.algorithm, args.out)
        turns(args.algorithm, args.beside, args.settings, args.seeds, args.env_steps, args.out)
    else:
        print(report(args.folder, args.out or args.folder))


if __name__ == "__main__":
    main()
