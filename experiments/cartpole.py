"""CartPole through a policy server, beside RLlib's own PPO in one process.

    python -m muxrl.experiments.cartpole --seeds 0 1 2 --out experiments/results/cartpole

Contestants: PPO and A2C behind a muxrl server, eight environments in one simulation loop; and
RLlib's PPO with its own env runner, the same settings, eight environments. The rule: env steps
until the mean return of the last 100 training episodes (sampled actions) reaches the threshold
(PPO 450, A2C 400), then 50 greedy evaluation episodes through the server. Budget 300,000 env
steps. A random policy returns about 22, the oracle 500.
"""

from __future__ import annotations

import argparse
import json
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import fmean
from typing import Any

from muxrl.client.env_loop import EnvLoop
from muxrl.orchestrator.config import load_config
from muxrl.orchestrator.runs.in_process import serve
from muxrl.orchestrator.runs.processes import first_seeds

BUDGET = 300_000
THRESHOLDS = {"PPO": 450.0, "A2C": 400.0}
_MIN_EPISODES = 100


@dataclass(frozen=True)
class Outcome:
    """How far one run came; `env_steps` None: the threshold was not reached."""

    contestant: str
    seed: int
    threshold: float
    env_steps: int | None
    time_s: float
    train_return: float
    greedy_return: float | None


def through_a_server(algorithm: str, seed: int, budget: int = BUDGET) -> Outcome:
    """Trains behind a policy server."""
    config = load_config(f"cartpole_{algorithm.lower()}", [f"seed={seed}"])
    threshold = THRESHOLDS[algorithm]
    with serve(config) as served, served.client() as client:
        (server,) = served.servers.values()
        num = config.simulation.num_envs_per_process
        loop = EnvLoop(
            [served.simulation() for _ in range(num)],
            client,
            seeds=first_seeds(1000 * seed, num),
        )
        started = time.monotonic()

        def is_enough() -> bool:
            if loop.num_env_steps % 500 >= num:
                return False
            status = server.status()
            is_there = (status.episode_return_mean or 0.0) >= threshold
            return (is_there and status.num_episodes >= _MIN_EPISODES) or (
                loop.num_env_steps >= budget
            )

        loop.run(should_stop=is_enough)
        elapsed = time.monotonic() - started
        served.check()
        train_return = server.status().episode_return_mean or 0.0
        server.finish_training()
        greedy = fmean(sum(r.returns.values()) for r in served.evaluate(50))
    has_reached = train_return >= threshold
    return Outcome(
        f"{algorithm} through a server",
        seed,
        threshold,
        loop.num_env_steps if has_reached else None,
        elapsed,
        train_return,
        greedy,
    )


def in_one_process(seed: int, budget: int = BUDGET) -> Outcome:
    """Trains RLlib's PPO with its own env runner and the settings of cartpole_ppo.yaml."""
    from ray.rllib.utils.metrics import ENV_RUNNER_RESULTS, NUM_ENV_STEPS_SAMPLED_LIFETIME

    from muxrl.servers.algorithms.registry import get_algorithm

    settings = load_config("cartpole_ppo", []).servers["ppo"].settings
    config = get_algorithm("PPO").make_config(settings, {})
    config.environment("CartPole-v1")
    config.env_runners(num_env_runners=0, num_envs_per_env_runner=8)
    config.debugging(seed=seed)
    returns: list[float] = []

    # RLlib's own running mean is not of the last 100 episodes, whatever its window says.
    def note(*, episode: Any, prev_episode_chunks: Any = (), **_: Any) -> None:
        chunks = [*prev_episode_chunks, episode]  # an episode is cut where a batch is full
        returns.append(float(sum(chunk.get_return() for chunk in chunks)))

    config.callbacks(on_episode_end=note)
    algorithm = config.build_algo()
    started = time.monotonic()
    train_return, steps = 0.0, 0
    while train_return < THRESHOLDS["PPO"] and steps < budget:
        results = algorithm.train()[ENV_RUNNER_RESULTS]
        steps = int(results[NUM_ENV_STEPS_SAMPLED_LIFETIME])
        if len(returns) >= _MIN_EPISODES:
            train_return = fmean(returns[-_MIN_EPISODES:])
    elapsed = time.monotonic() - started
    algorithm.stop()
    has_reached = train_return >= THRESHOLDS["PPO"]
    return Outcome(
        "PPO in RLlib's own process",
        seed,
        THRESHOLDS["PPO"],
        steps if has_reached else None,
        elapsed,
        train_return,
        None,
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--out", type=Path, required=True)
    args = parser.parse_args()
    args.out.mkdir(parents=True, exist_ok=True)
    rows = []
    for seed in args.seeds:
        # In turn, so that a machine whose speed drifts is fair to all.
        for train in (
            lambda seed=seed: through_a_server("PPO", seed),
            lambda seed=seed: in_one_process(seed),
            lambda seed=seed: through_a_server("A2C", seed),
        ):
            outcome = train()
            rows.append(asdict(outcome))
            print(outcome, flush=True)
            (args.out / "outcomes.json").write_text(json.dumps(rows, indent=1) + "\n")


if __name__ == "__main__":
    main()
