"""Compares raw bytes of an image with scaled ones as observations. See README.md."""

from __future__ import annotations

import json
from typing import Any

from muxrl.experiments.simulations import bright_corner
from muxrl.experiments.studies.case_table import Case, CaseTable, evaluated, main

_SAC = {
    "actor_lr": 0.001, "critic_lr": 0.001, "alpha_lr": 0.003, "initial_alpha": 0.1, "gamma": 0.0,
    "train_batch_size_per_learner": 64, "rollout_fragment_length": 8,
    "num_steps_sampled_before_learning_starts": 400,
}  # fmt: skip
_A2C = {"train_batch_size_per_learner": 400, "standardize_advantages": True, "gamma": 0.0}
_BUDGETS: dict[int, dict[str, tuple[dict[str, Any], int]]] = {
    10: {
        "PPO": (
            {"train_batch_size_per_learner": 2000, "minibatch_size": 250, "num_epochs": 8,
             "lr": 0.0005},
            16_000,
        ),
        "A2C": ({**_A2C, "lr": 0.002}, 12_000),
        "SAC": (_SAC, 2_000),
    },
    # An image of 84x84 takes some 10 ms of processor time in every pass.
    84: {
        "PPO": (
            {"train_batch_size_per_learner": 1000, "minibatch_size": 64, "num_epochs": 4,
             "lr": 0.0005, "gamma": 0.0},
            4_000,
        ),
        "A2C": ({**_A2C, "lr": 0.0005, "entropy_coeff": 0.05}, 8_000),
        "SAC": (_SAC, 2_000),
    },
}  # fmt: skip
"""By size of an image and algorithm: settings and env steps."""
_LEVELS = {"random": bright_corner.random_return(), "optimum": bright_corner.oracle_return()}


def _case(algorithm: str, size: int, scaling: str) -> Case:
    settings, env_steps = _BUDGETS[size][algorithm]
    overrides = (
        "simulation.env=muxrl.experiments.simulations.bright_corner:BrightCorner",
        f"simulation.kwargs={{size: {size}}}",
        "simulation.num_envs_per_process=8",
        f"servers.it.algorithm={algorithm}",
        "servers.it.agents=['*']",
        f"servers.it.scale_observations={scaling}",
        f"servers.it.settings={json.dumps(settings)}",
    )
    return Case("cues", overrides, env_steps, evaluated(50), levels=_LEVELS)


TABLE = CaseTable(
    {
        f"{algorithm}, {size}x{size}, {name}": _case(algorithm, size, scaling)
        for size, budgets in _BUDGETS.items()
        for algorithm in budgets
        for name, scaling in (("scaled", "images"), ("raw", "none"))
    }
)

if __name__ == "__main__":
    main(TABLE, __doc__)
