"""Saves state of RLlib's learners that their own checkpoints leave out.

These are PPO's and APPO's KL coefficients, SAC's temperatures, and the env steps at which DQN, SAC
and APPO last updated their targets, each a table by module id. Without them a restored SAC, for
instance, would begin again with its initial temperature. Scheduled values need not be saved, as
they follow from the env steps.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from ray.rllib.core import DEFAULT_MODULE_ID

_NAMES = (
    "curr_kl_coeffs_per_module",
    "curr_log_alpha",
    "last_update_ts_by_mid",
    "_last_update_ts_by_mid",
)
_ENTROPY = "entropy_coeff_schedulers_per_module"


def get_tables(learner: Any) -> dict[str, dict[str, Any]]:
    """Returns a learner's tables, as plain values and arrays."""
    return {
        name: {module_id: _plain(entry) for module_id, entry in getattr(learner, name).items()}
        for name in _NAMES
        if hasattr(learner, name)
    }


def set_tables(learner: Any, tables: Mapping[str, Mapping[str, Any]]) -> None:
    """Writes the tables that `get_tables` returned into a learner."""
    for name, table in tables.items():
        entries = getattr(learner, name)
        for module_id, value in table.items():
            if isinstance(value, int | float):
                entries[module_id] = value
                continue
            tensor = entries[module_id]
            if isinstance(tensor, torch.Tensor):
                tensor.data.copy_(torch.as_tensor(value))  # in place, for the optimizers


def follow_schedules(learner: Any, env_steps: int) -> None:
    """Sets learning rates and the entropy coefficient to their scheduled values.

    RLlib does so after an update, but not after a state was loaded.
    """
    for optimizer, schedule in learner._optimizer_lr_schedules.items():
        if schedule.use_schedule:
            learner._set_optimizer_lr(optimizer, lr=schedule.update(env_steps))
    if hasattr(learner, _ENTROPY):
        getattr(learner, _ENTROPY)[DEFAULT_MODULE_ID].update(env_steps)


def _plain(entry: Any) -> Any:
    return entry.detach().cpu().numpy() if isinstance(entry, torch.Tensor) else entry
