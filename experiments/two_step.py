"""The two-step game through a policy server: QMIX finds 8, VDN and IQL settle at 7.

    python -m muxrl.experiments.two_step --seeds 0 1 2 3 4 --out experiments/results/two_step

Budget 20,000 env steps, epsilon 1 throughout, so that all see the same uniform data. The rule:
at every 2,000 env steps one greedy evaluation episode, joint return = sum over the two agents; see
`muxrl.experiments.held_return`. Baseline: random 4.75, oracle 8.
"""

from __future__ import annotations

import argparse
import json
from dataclasses import asdict
from pathlib import Path

from muxrl.experiments.held_return import Outcome, train
from muxrl.experiments.simulations.two_step_game import oracle_return, random_return


def run(algorithm: str, seed: int) -> Outcome:
    """One run at the budget above."""
    return train("two_step", algorithm, seed, env_steps=20_000, interval=2_000)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--algorithms", nargs="+", default=["QMIX", "VDN", "IQL"])
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2, 3, 4])
    parser.add_argument("--out", type=Path, required=True)
    args = parser.parse_args()
    args.out.mkdir(parents=True, exist_ok=True)
    for algorithm in args.algorithms:
        for seed in args.seeds:
            outcome = run(algorithm, seed)
            text = json.dumps({**asdict(outcome), "held": outcome.held})
            (args.out / f"{algorithm.lower()}_{seed}.json").write_text(text + "\n")
            print(f"{algorithm} seed {seed}: holds {outcome.held}; {outcome.returns}", flush=True)
    print(f"random {random_return()}, oracle {oracle_return()}")


if __name__ == "__main__":
    main()
