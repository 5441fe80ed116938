"""QMIX, PPO, A2C, DQN, SAC and a script, alone and in pairs, in each position. See README.md."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from muxrl.client.env_loop import EpisodeResult
from muxrl.experiments.simulations.cue_game import oracle_return, random_return
from muxrl.experiments.studies.case_table import Case, CaseTable, main
from muxrl.experiments.studies.outcomes import Figures, Outcome
from muxrl.orchestrator.launch.in_process import Served

_POSITIONS = (["agent_0"], ["agent_1", "agent_2"])
_SAMPLED = ("ppo", "a2c", "sac")  # in evaluation; value-based ones are greedy
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
    "SCRIPTED": (
        "{policy: 'muxrl.experiments.studies.combinations.cases:answer_cues', "
        "kwargs: {num_cues: 4}}"
    ),
}
ALGORITHMS = tuple(_SETTINGS)


def answer_cues(
    agent_id: str, observation_space: Any, action_space: Any, seed: int, num_cues: int
) -> Callable[[Any], int]:
    """Returns the scripted policy, which knows the game and answers every cue right."""
    return lambda observation: int(observation[:num_cues].argmax())


def measure(served: Served) -> Figures:
    """Plays 50 episodes as learned, and 50 with each server's agents random in turn."""
    explore = {s: s.startswith(_SAMPLED) for s in served.servers}
    figures = {"return": _mean(served.evaluate(50, should_explore=explore))}
    for server_id in served.servers:
        results = served.evaluate(50, replaced=server_id, should_explore=explore)
        figures[f"{server_id} random"] = _mean(results)
    return figures


def _mean(results: list[EpisodeResult]) -> float:
    return fmean(fmean(result.returns.values()) for result in results)


def _case(algorithms: tuple[str, ...]) -> Case:
    positions = _POSITIONS if len(algorithms) == 2 else ([*_POSITIONS[0], *_POSITIONS[1]],)
    overrides = ["simulation.num_envs_per_process=4"]
    for i, (algorithm, agents) in enumerate(zip(algorithms, positions, strict=True)):
        key, named = f"servers.{algorithm.lower()}_{i}", ",".join(agents)
        overrides += [
            f"{key}.algorithm={algorithm}",
            f"{key}.agents=[{named}]",
            f"{key}.settings={_SETTINGS[algorithm]}",
        ]
        if algorithm == "QMIX":
            overrides += [f"{key}.groups={{team_{i}: [{named}]}}", f"{key}.team_reward=mean"]
    levels = {"random": random_return(), "optimum": oracle_return()}
    return Case("cues", tuple(overrides), env_steps=4_000, measure=measure, levels=levels)


def draw_pairs(outcomes: Sequence[Outcome], folder: Path) -> None:
    """Draws the return of each pair, and how much lower it is with random agents."""
    learned, least = (np.full((len(ALGORITHMS), len(ALGORITHMS)), np.nan) for _ in range(2))
    for outcome in outcomes:
        names = outcome.case.split("+")
        if len(names) == 2:
            at = ALGORITHMS.index(names[0]), ALGORITHMS.index(names[1])
            learned[at] = outcome.final["return"]
            replaced = [v for key, v in outcome.final.items() if key.endswith(" random")]
            least[at] = learned[at] - max(replaced)
    figure = Figure(figsize=(10, 4.4), layout="constrained")
    titles = (
        f"mean return of the three; random {random_return():.2f}, optimum {oracle_return():g}",
        "less with the server's agents random: the server that matters less",
    )
    for axes, values, title in zip(figure.subplots(1, 2), (learned, least), titles, strict=True):
        axes.imshow(values, cmap="Blues", vmin=0, vmax=oracle_return())
        axes.set_title(title, fontsize=9)
        axes.set_xticks(range(len(ALGORITHMS)), ALGORITHMS, fontsize=8)
        axes.set_yticks(range(len(ALGORITHMS)), ALGORITHMS, fontsize=8)
        axes.set_xlabel("agent_1 and agent_2")
        axes.set_ylabel("agent_0")
        for (row, column), value in np.ndenumerate(values):
            if np.isfinite(value):
                axes.text(column, row, f"{value:.1f}", ha="center", va="center", fontsize=8,
                          color="white" if value > 12 else "black")  # fmt: skip
    figure.savefig(folder / "pairs.png", dpi=110)


# Each algorithm alone, and every ordered pair in which one learns.
_EVERYTHING = [*((a,) for a in ALGORITHMS), *itertools.product(ALGORITHMS, repeat=2)]
TABLE = CaseTable(
    {"+".join(names): _case(names) for names in _EVERYTHING if set(names) != {"SCRIPTED"}},
    draw_own=draw_pairs,
)

if __name__ == "__main__":
    main(TABLE, __doc__)
