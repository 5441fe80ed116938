"""What policy lag costs in learning: one server, modes of ``while_learning``, the same seeds.

Two agents of the zero-cost game (an agent's return is 20 by random actions, 100 at best) learn for
a budget of env steps, in this process. Four simulations cost nothing, so that they run as far ahead
as the mode lets them.

    python -m benchmarks.lag_costs --env-steps 15000 --seeds 5

Prints an agent's mean return over all episodes (how fast it learned) and over the last fifth, as
the mean over seeds and its standard error, and the mean policy lag.
"""

from __future__ import annotations

import argparse
import statistics
from typing import Any

import numpy as np

from muxrl.client.env_loop import EnvLoop
from muxrl.orchestrator.config import ExperimentConfig, SimulationConfig
from muxrl.orchestrator.launch.in_process import serve
from muxrl.servers.config import ServerConfig

SETTINGS: dict[str, dict[str, Any]] = {
    "PPO": {
        "train_batch_size_per_learner": 500,
        "minibatch_size": 128,
        "num_epochs": 10,
        "lr": 1e-3,
    },
    "A2C": {"train_batch_size_per_learner": 200, "lr": 2e-3},
    "QMIX": {},
}
MODES: dict[str, dict[str, Any]] = {
    "wait": {"while_learning": "wait"},
    "serve": {"while_learning": "serve"},
    "serve, 4": {"while_learning": "serve", "max_policy_lag": 4},
}


def learn(algorithm: str, mode: str, seed: int, env_steps: int) -> tuple[float, float, float]:
    """Returns the two means of an agent's return, and the mean policy lag."""
    agents = ["agent_0", "agent_1"]
    config = ExperimentConfig(
        name="lag_costs",
        seed=seed,
        simulation=SimulationConfig(
            env="muxrl.experiments.simulations.zero_cost:ZeroCost", kwargs={"num_agents": 2}
        ),
        servers={
            "one": ServerConfig(
                algorithm=algorithm,
                agents=agents,
                groups={"team": agents} if algorithm == "QMIX" else {},
                use_global_state=False,
                settings=SETTINGS[algorithm],
                model={} if algorithm == "QMIX" else {"fcnet_hiddens": [64, 64]},
                **MODES[mode],
            )
        },
    )
    returns: list[float] = []
    with serve(config) as served, served.client() as client:
        loop = EnvLoop([served.simulation() for _ in range(4)], client)
        loop.run(
            on_episode=lambda result: returns.append(sum(result.returns.values()) / 2),
            should_stop=lambda: loop.num_env_steps >= env_steps,
        )
        served.check()
        records = served.servers["one"].drain_records()
    lag = statistics.mean(record["policy_lag_mean"] for record in records)
    return statistics.mean(returns), statistics.mean(returns[-len(returns) // 5 :]), lag


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--env-steps", type=int, default=15_000)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--algorithms", nargs="+", choices=SETTINGS, default=list(SETTINGS))
    args = parser.parse_args()
    print(f"{'':20}{'all episodes':>16}{'last fifth':>16}{'lag':>8}")
    for algorithm in args.algorithms:
        found: dict[str, list[tuple[float, float, float]]] = {mode: [] for mode in MODES}
        for seed in range(args.seeds):
            for mode in MODES:
                found[mode].append(learn(algorithm, mode, seed, args.env_steps))
        for mode, rows in found.items():
            mean = np.mean(rows, axis=0)
            error = np.std(rows, axis=0, ddof=1) / len(rows) ** 0.5
            print(
                f"{algorithm + ', ' + mode:20}{mean[0]:8.1f} ± {error[0]:5.1f}"
                f"{mean[1]:8.1f} ± {error[1]:5.1f}{mean[2]:8.2f}",
                flush=True,
            )


if __name__ == "__main__":
    main()
