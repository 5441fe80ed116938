"""A pool beside one opponent: env steps per second against POOL, as a multiple of FROZEN's.

Three agents learn by PPO. The other three play by checkpoints that are made here: by a POOL of ten
members, or by one of them as FROZEN. Both opponents are served by processes as `muxrl launch`
starts them, and play in turn.

    python -m benchmarks.pools --rounds 12 --seconds 1

Prints POOL's env steps/s, and its processor time of an env step (client and servers), as multiples
of FROZEN's: the median of the rounds, and the range of the middle half.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.step_path import Contestant, Outcome, Serving, play, serving

from muxrl.orchestrator.config import ExperimentConfig, SimulationConfig
from muxrl.orchestrator.launch.in_process import serve
from muxrl.servers.config import ServerConfig

SETTINGS = {"train_batch_size_per_learner": 1000, "minibatch_size": 500, "num_epochs": 4}
NUM_MEMBERS = 10
AGENTS = [f"agent_{i}" for i in range(6)]


def config_of(seed: int = 0, **opponent: Any) -> ExperimentConfig:
    """Returns a config with a learner for half of the agents, and an opponent for the others."""
    return ExperimentConfig(
        name="pools",
        seed=seed,
        simulation=SimulationConfig("muxrl.experiments.simulations.zero_cost:ZeroCost"),
        servers={
            "learner": ServerConfig("PPO", agents=AGENTS[:3], settings=SETTINGS),
            "opponent": ServerConfig(agents=AGENTS[3:], **opponent),
        },
    )


def save(folder: Path, seed: int) -> str:
    """Saves a new opponent's policy; returns the checkpoint."""
    with serve(config_of(seed, algorithm="PPO", settings=SETTINGS)) as served:
        return str(served.servers["opponent"].policies.save(folder / f"{seed}"))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=12)
    parser.add_argument("--seconds", type=float, default=1.0)
    parser.add_argument("--simulations", type=int, nargs="+", default=[1, 16, 32])
    args = parser.parse_args()
    if args.rounds < 2:
        parser.error("--rounds must be at least 2, since their spread is shown")
    with tempfile.TemporaryDirectory() as folder:
        own = [
            {"checkpoint": save(Path(folder), i), "should_explore": True}
            for i in range(NUM_MEMBERS)
        ]
        members = {f"m{i}": {"algorithm": "FROZEN", **one} for i, one in enumerate(own)}
        with (
            serving(config_of(algorithm="FROZEN", settings=own[0])) as frozen,
            serving(config_of(algorithm="POOL", settings={"members": members})) as pool,
        ):
            measure(args, [frozen, pool])


def measure(args: argparse.Namespace, opponents: Sequence[Sequence[Serving]]) -> None:
    """Plays in turn, and prints a row for each number of simulations."""
    print(f"{'':28}{'env steps/s':20}{'processor time':20}")
    for num in args.simulations:
        for is_learning in (False, True):
            what = Contestant(num, is_learning)
            for servers in opponents:
                played(what, servers, 2.0)
            pairs = []
            for i in range(args.rounds):  # each is first in every other round
                print(f"round {i + 1}: {what}", file=sys.stderr, flush=True)
                outcomes = {
                    at: played(what, opponents[at], args.seconds) for at in (i % 2, 1 - i % 2)
                }
                pairs.append((outcomes[0], outcomes[1]))
            paces = [pool.steps_per_s / frozen.steps_per_s for frozen, pool in pairs]
            costs = [pool.cpu_ms_per_step / frozen.cpu_ms_per_step for frozen, pool in pairs]
            print(f"{what!s:28}{shown(paces):20}{shown(costs):20}", flush=True)


def played(what: Contestant, servers: Sequence[Serving], seconds: float) -> Outcome:
    """Plays one round."""
    return play(what, [s.address for s in servers], [s.pid for s in servers], seconds)


def shown(ratios: Sequence[float]) -> str:
    """Returns the median of ratios and the range of their middle half, as text."""
    low, middle, high = statistics.quantiles(ratios, n=4)
    return f"{middle:.2f} ({low:.2f}..{high:.2f})"


if __name__ == "__main__":
    main()
