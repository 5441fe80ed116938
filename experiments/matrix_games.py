"""Climbing and penalty through a policy server: games whose optimum no mixer can fit.

    python -m muxrl.experiments.matrix_games --seeds 0 1 2 --out experiments/results/matrix_games

Under uniform exploration VDN fits the payoffs by a sum of what each agent adds, QMIX by a monotonic
function of it, and IQL by each agent's mean over the other's actions. None can say that an action
is good only beside its partner: the best fits choose 5 in climbing (optimum 11), and in penalty,
for k from -25 to -100, the safe 2 (optimum 10); `experiments.best_fits` works that out. A team of
VDN or IQL that holds anything else would be a bug, not a success. QMIX's fit has other minima than
the best, and gradient descent may end there; what it can never do is fit better than a monotonic
table with those actions on top (`tests/servers/algorithms/test_qmix_fits.py`).

Budget 10,000 env steps (episodes of one step), epsilon 1 throughout. The rule: at every 1,000
env steps one greedy evaluation episode, joint return = sum over the two agents; see
`experiments.held_return`. Random is the mean of the payoff table. A result that is there already is
not made again.
"""

from __future__ import annotations

import argparse
import json
from dataclasses import asdict, dataclass
from pathlib import Path

from muxrl.experiments.held_return import Outcome, train
from muxrl.experiments.simulations.matrix_game import Game, oracle_return, random_return

ALGORITHMS = ("QMIX", "VDN", "IQL")


@dataclass(frozen=True)
class Task:
    """One payoff table."""

    name: str
    game: Game
    k: float
    predicted: float
    """What the best fit of each of the three earns."""


TASKS = (
    Task("climbing", "climbing", 0.0, 5.0),
    Task("penalty_100", "penalty", -100.0, 2.0),
    Task("penalty_25", "penalty", -25.0, 2.0),
)


def run(task: Task, algorithm: str, seed: int) -> Outcome:
    """One run at the budget above."""
    overrides = [f"simulation.kwargs={{game: {task.game}, k: {task.k}}}"]
    return train("matrix", algorithm, seed, env_steps=10_000, interval=1_000, overrides=overrides)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--algorithms", nargs="+", default=list(ALGORITHMS))
    parser.add_argument("--tasks", nargs="+", default=[task.name for task in TASKS])
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--out", type=Path, required=True)
    args = parser.parse_args()
    args.out.mkdir(parents=True, exist_ok=True)
    for task in TASKS:
        if task.name not in args.tasks:
            continue
        for algorithm in args.algorithms:
            for seed in args.seeds:
                path = args.out / f"{task.name}_{algorithm.lower()}_{seed}.json"
                if path.exists():
                    print(f"{path} is there already")
                    continue
                outcome = run(task, algorithm, seed)
                text = json.dumps({**asdict(task), **asdict(outcome), "held": outcome.held})
                path.write_text(text + "\n")
                print(
                    f"{task.name} {algorithm} seed {seed}: holds {outcome.held}, predicted "
                    f"{task.predicted}; {outcome.returns}",
                    flush=True,
                )
        print(
            f"{task.name}: random {random_return(task.game, task.k):.2f}, "
            f"oracle {oracle_return(task.game, task.k)}"
        )


if __name__ == "__main__":
    main()
