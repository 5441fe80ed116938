"""Each algorithm for agents alone, on the smallest task that shows what it can do.

    python -m muxrl.experiments.each_algorithm --out experiments/results/each_algorithm

Cues (discrete actions, three agents that share one policy), dials (continuous actions, two agents,
one policy each), recall (memory). The rule: after the budget, 50 evaluation episodes with the
likeliest actions, mean return per agent. Each task has exact bounds: `floor` is what is possible
without having learnt, and who lacks what the task needs (memory) has to stay below `low`.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from statistics import fmean
from typing import Any

from muxrl.client.env_loop import EnvLoop
from muxrl.experiments.simulations import cue_game, dials, recall_game
from muxrl.orchestrator.config import load_config
from muxrl.orchestrator.runs.in_process import serve


@dataclass(frozen=True)
class Task:
    """What is to be learnt, and its bounds (mean return per agent)."""

    config: str
    floor: float
    oracle: float
    low: float
    """Above it, it was learnt."""
    overrides: Sequence[str] = ()


CUES = Task("cues", cue_game.random_return(), cue_game.oracle_return(), 14.0)
DIALS = Task(
    "dials",
    dials.still_return(),
    dials.oracle_return(),
    7.5,
    ("simulation.kwargs={num_agents: 2}", "servers.x.policies={a: [agent_0], b: [agent_1]}"),
)
RECALL = Task("recall", recall_game.memoryless_return(), recall_game.oracle_return(), 0.8)


@dataclass(frozen=True)
class Case:
    """One algorithm on one task."""

    algorithm: str
    task: Task
    env_steps: int
    settings: Mapping[str, Any]
    model: Mapping[str, Any] = field(default_factory=dict)
    rl_module: str = ""
    is_learnable: bool = True
    """False: it lacks what the task needs, and has to stay below the task's `low`."""


_PPO = {"train_batch_size_per_learner": 500, "minibatch_size": 125, "num_epochs": 6, "lr": 0.003}
_A2C = {"train_batch_size_per_learner": 100, "lr": 0.002, "standardize_advantages": True}
_LAGGED = {"train_batch_size_per_learner": 200, "lr": 0.003}
_SAC = {
    "actor_lr": 0.002,
    "critic_lr": 0.003,
    "alpha_lr": 0.003,
    "initial_alpha": 0.1,
    "train_batch_size_per_learner": 64,
    "rollout_fragment_length": 4,
    "num_steps_sampled_before_learning_starts": 400,
}
_DQN = {
    "epsilon": [[0, 1.0], [2500, 0.05]],
    "lr": 0.001,
    "num_steps_sampled_before_learning_starts": 400,
    "target_network_update_freq": 200,
}
_PRIORITIZED = {"type": "MultiAgentPrioritizedEpisodeReplayBuffer"}
_LSTM = {"use_lstm": True, "lstm_cell_size": 32, "max_seq_len": 5}
# Long enough batches to hold many answers: one step in five is paid.
_RECALL_PPO = {**_PPO, "gamma": 0.9, "entropy_coeff": 0.01, "use_kl_loss": False}
_RECALL_A2C = {**_A2C, "gamma": 0.9, "train_batch_size_per_learner": 200, "lr": 0.003}

CASES: dict[str, Case] = {
    "DQN": Case("DQN", CUES, 4_000, {**_DQN, "gamma": 0.9}),
    "DQN, prioritized, 3 steps": Case(
        "DQN",
        CUES,
        4_000,
        {**_DQN, "gamma": 0.9, "n_step": 3, "replay_buffer_config": _PRIORITIZED},
    ),
    "SAC, discrete": Case(
        "SAC", CUES, 2_500, {**_SAC, "gamma": 0.9, "target_entropy": 0.3, "tau": 0.02}
    ),
    "IMPALA": Case("IMPALA", CUES, 8_000, {**_LAGGED, "gamma": 0.9}),
    "APPO": Case("APPO", CUES, 8_000, {**_LAGGED, "gamma": 0.9}),
    "PPO, own module": Case(
        "PPO",
        CUES,
        8_000,
        {**_PPO, "gamma": 0.9},
        {"width": 48},
        "muxrl.experiments.examples.own_module:SharedTrunk",
    ),
    "PPO, continuous": Case("PPO", DIALS, 8_000, {**_PPO, "gamma": 0.0}),
    "A2C, continuous": Case("A2C", DIALS, 8_000, {**_A2C, "gamma": 0.0}),
    "SAC, continuous": Case("SAC", DIALS, 2_500, {**_SAC, "gamma": 0.0}),
    "IMPALA, continuous": Case("IMPALA", DIALS, 12_000, {**_LAGGED, "gamma": 0.0}),
    "APPO, continuous": Case("APPO", DIALS, 16_000, {**_LAGGED, "lr": 0.001, "gamma": 0.0}),
    "PPO, LSTM": Case("PPO", RECALL, 24_000, _RECALL_PPO, _LSTM),
    "PPO, MLP": Case("PPO", RECALL, 12_000, _RECALL_PPO, is_learnable=False),
    "A2C, LSTM": Case("A2C", RECALL, 48_000, _RECALL_A2C, _LSTM),
    "IMPALA, LSTM": Case("IMPALA", RECALL, 30_000, {**_LAGGED, "gamma": 0.9}, _LSTM),
    "APPO, LSTM": Case("APPO", RECALL, 24_000, {**_LAGGED, "gamma": 0.9}, _LSTM),
    "A2C, MLP": Case("A2C", RECALL, 20_000, _RECALL_A2C, is_learnable=False),
}


@dataclass(frozen=True)
class Outcome:
    """What one case reached."""

    case: str
    seed: int
    env_steps: int
    learned: float
    floor: float
    oracle: float
    policy_lag_max: int

    @property
    def is_as_expected(self) -> bool:
        """Whether it learnt, or did not, as it should."""
        case = CASES[self.case]
        return (self.learned > case.task.low) == case.is_learnable


def run(name: str, seed: int = 0) -> Outcome:
    """Trains one case and evaluates it."""
    case = CASES[name]
    overrides = [
        f"seed={seed}",
        f"servers.x.algorithm={case.algorithm}",
        "servers.x.agents=[agent_*]",
        f"servers.x.settings={json.dumps(case.settings)}",
        f"servers.x.model={json.dumps(case.model)}",
        f"servers.x.rl_module='{case.rl_module}'",
        *case.task.overrides,
    ]
    with serve(load_config(case.task.config, overrides)) as served, served.client() as client:
        (server,) = served.servers.values()
        loop = EnvLoop([served.simulation() for _ in range(4)], client)
        loop.run(should_stop=lambda: loop.num_env_steps >= case.env_steps)
        served.check()
        server.finish_training()
        lags = [record["policy_lag_max"] for record in server.drain_records()]
        learned = fmean(fmean(result.returns.values()) for result in served.evaluate(50))
    task = case.task
    return Outcome(name, seed, loop.num_env_steps, learned, task.floor, task.oracle, max(lags))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--cases", nargs="+", choices=CASES, default=list(CASES))
    parser.add_argument("--seeds", type=int, nargs="+", default=[0])
    parser.add_argument("--out", type=Path, required=True)
    args = parser.parse_args()
    args.out.mkdir(parents=True, exist_ok=True)
    rows = []
    for seed in args.seeds:
        for name in args.cases:
            outcome = run(name, seed)
            rows.append(asdict(outcome))
            verdict = "as expected" if outcome.is_as_expected else "NOT as expected"
            print(f"{name}: {outcome.learned:.2f} of {outcome.oracle:g}, {verdict}", flush=True)
            (args.out / "outcomes.json").write_text(json.dumps(rows, indent=1) + "\n")


if __name__ == "__main__":
    main()
