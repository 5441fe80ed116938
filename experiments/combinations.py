"""On- and off-policy, for teams and for each alone: algorithms in pairs, on one simulation.

    python -m muxrl.experiments.combinations --out experiments/results/combinations
    python -m muxrl.experiments.combinations --algorithms QMIX PPO --out OUT

QMIX, PPO, A2C, DQN, SAC and a script, alone and in pairs, each in each position.

Three agents answer cues; the reward is shared (`experiments.simulations.cue_game`). One server
has all three agents, or one has agent_0 and the other the rest. The rule: after the budget, 50
evaluation episodes, value-based greedy and policies sampled, mean return per agent; beside it the
same with each server's agents random. Random 2.66, oracle 20.
"""

from __future__ import annotations

import argparse
import itertools
import json
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import fmean
from typing import Any

from muxrl.client.env_loop import EnvLoop, EpisodeResult
from muxrl.experiments.simulations.cue_game import oracle_return, random_return
from muxrl.orchestrator.config import load_config
from muxrl.orchestrator.runs.in_process import serve

ALGORITHMS = ("QMIX", "PPO", "A2C", "DQN", "SAC", "SCRIPTED")
_POSITIONS = (["agent_0"], ["agent_1", "agent_2"])
_SAMPLES = ("ppo", "a2c", "sac")
_SETTINGS = {
    "QMIX": (
        "{agent: mlp, gamma: 0.9, optimizer_name: adam, lr: 0.002, "
        "epsilon: [[0, 1.0], [4000, 0.05]]}"
    ),
    "PPO": (
        "{train_batch_size_per_learner: 500, minibatch_size: 125, num_epochs: 6, lr: 0.003, "
        "gamma: 0.9, entropy_coeff: 0.01}"
    ),
    "A2C": "{train_batch_size_per_learner: 200, lr: 0.003, gamma: 0.9, lambda_: 0.9}",
    "DQN": (
        "{gamma: 0.9, lr: 0.001, epsilon: [[0, 1.0], [2500, 0.05]], "
        "num_steps_sampled_before_learning_starts: 400, target_network_update_freq: 200}"
    ),
    "SAC": (
        "{gamma: 0.9, actor_lr: 0.003, critic_lr: 0.003, alpha_lr: 0.003, tau: 0.02, "
        "initial_alpha: 0.2, target_entropy: 0.3, train_batch_size_per_learner: 64, "
        "rollout_fragment_length: 4, num_steps_sampled_before_learning_starts: 300}"
    ),
    "SCRIPTED": "{policy: 'muxrl.experiments.combinations:answer_cues', kwargs: {num_cues: 4}}",
}


@dataclass(frozen=True)
class Outcome:
    """What one combination reached."""

    assignment: str
    seed: int
    env_steps: int
    learned: float
    replaced: dict[str, float]
    """Server to the mean return with its agents random instead."""


def answer_cues(
    agent_id: str, observation_space: Any, action_space: Any, seed: int, num_cues: int
) -> Callable[[Any], int]:
    """Makes the script: it knows the game, and answers every cue right."""
    return lambda observation: int(observation[:num_cues].argmax())


def combinations(algorithms: Sequence[str] = ALGORITHMS) -> list[tuple[str, ...]]:
    """Every one alone, and every ordered pair; where somebody learns."""
    everything = [*((a,) for a in algorithms), *itertools.product(algorithms, repeat=2)]
    return [chosen for chosen in everything if set(chosen) != {"SCRIPTED"}]


def run(algorithms: tuple[str, ...], env_steps: int = 8_000, seed: int = 0) -> Outcome:
    """Trains one combination and evaluates it."""
    positions = _POSITIONS if len(algorithms) == 2 else ([*_POSITIONS[0], *_POSITIONS[1]],)
    overrides = [f"seed={seed}"]
    for i, (algorithm, agents) in enumerate(zip(algorithms, positions, strict=True)):
        key = f"servers.{algorithm.lower()}_{i}"
        overrides += [
            f"{key}.algorithm={algorithm}",
            f"{key}.agents=[{','.join(agents)}]",
            f"{key}.settings={_SETTINGS[algorithm]}",
        ]
        if algorithm == "QMIX":
            overrides += [f"{key}.groups={{team_{i}: [{','.join(agents)}]}}",
                          f"{key}.team_reward=mean"]  # fmt: skip
    with serve(load_config("cues", overrides)) as served, served.client() as client:
        loop = EnvLoop([served.simulation() for _ in range(4)], client)
        loop.run(should_stop=lambda: loop.num_env_steps >= env_steps)
        served.check()
        for server in served.servers.values():
            server.finish_training()
        explore = {s: s.startswith(_SAMPLES) for s in served.servers}
        learned = served.evaluate(50, should_explore=explore)
        replaced = {
            s: _mean(served.evaluate(50, replaced=s, should_explore=explore))
            for s in served.servers
        }
        assignment = served.experiment.assignment
    return Outcome(assignment, seed, loop.num_env_steps, _mean(learned), replaced)


def _mean(results: list[EpisodeResult]) -> float:
    return fmean(fmean(result.returns.values()) for result in results)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--algorithms", nargs="+", choices=ALGORITHMS, default=ALGORITHMS)
    parser.add_argument("--env-steps", type=int, default=8_000)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0])
    parser.add_argument("--out", type=Path, required=True)
    args = parser.parse_args()
    args.out.mkdir(parents=True, exist_ok=True)
    rows = []
    for seed in args.seeds:
        for algorithms in combinations(args.algorithms):
            outcome = run(algorithms, args.env_steps, seed)
            rows.append(asdict(outcome))
            replaced = ", ".join(f"{s} random {v:.2f}" for s, v in outcome.replaced.items())
            print(f"{outcome.assignment}: learned {outcome.learned:.2f}; {replaced}", flush=True)
            (args.out / "outcomes.json").write_text(json.dumps(rows, indent=1) + "\n")
    print(f"random {random_return():.2f}, oracle {oracle_return():.2f}")


if __name__ == "__main__":
    main()
