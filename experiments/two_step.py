"""The two-step game through a policy server: QMIX finds 8, VDN settles at 7.

    python -m experiments.two_step --seeds 0 1 2 3 4 --out experiments/results/two_step

Budget 20,000 env steps, epsilon 1 throughout, so that both see the same uniform data. The rule:
at every 2,000 env steps one greedy evaluation episode (the game and the policy are both
deterministic then), joint return = sum over the two agents. Baseline: random 4.75, oracle 8. An
untrained network may play 8 by chance, so what counts is what is *held* over the second half.
"""

from __future__ import annotations

import argparse
import json
from dataclasses import asdict, dataclass
from pathlib import Path

from client.env_loop import EnvLoop
from experiments.simulations.two_step_game import oracle_return, random_return
from orchestrator.config import load_config
from orchestrator.in_process import Served, serve


@dataclass(frozen=True)
class Outcome:
    """Greedy joint returns of one run, by env steps."""

    algorithm: str
    seed: int
    returns: dict[int, float]

    @property
    def held(self) -> float | None:
        """The return of every evaluation in the second half, None if they differ."""
        late = list(self.returns.values())[len(self.returns) // 2 :]
        return late[0] if len(set(late)) == 1 else None


def run(algorithm: str, seed: int, env_steps: int = 20_000, interval: int = 2_000) -> Outcome:
    """Trains one team through a server and evaluates it on the way."""
    config = load_config("two_step", [f"servers.team.algorithm={algorithm}", f"seed={seed}"])
    returns: dict[int, float] = {}
    with serve(config) as served, served.client() as client:
        num = config.simulation.num_envs_per_process
        loop = EnvLoop([served.simulation() for _ in range(num)], client)
        while loop.num_env_steps < env_steps:
            goal = loop.num_env_steps + interval
            loop.run(should_stop=lambda goal=goal: loop.num_env_steps >= goal)  # type: ignore[misc]
            served.check()
            returns[loop.num_env_steps] = _greedy_return(served)
    return Outcome(algorithm, seed, returns)


def _greedy_return(served: Served) -> float:
    return sum(served.evaluate(1)[0].returns.values())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--algorithms", nargs="+", default=["QMIX", "VDN"])
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
