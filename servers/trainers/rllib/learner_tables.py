"""What RLlib's learners keep besides weights and optimizers, and leave out of their checkpoints.

PPO's and APPO's KL coefficients, SAC's temperatures, the values of entropy schedules, and the env
steps at which DQN, SAC and APPO last updated their targets. All are tables by module id. Without
them a restored SAC, say, would begin again with its first temperature.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from ray.rllib.utils.schedules.scheduler import Scheduler

_NAMES = (
    "curr_kl_coeffs_per_module",
    "curr_log_alpha",
    "entropy_coeff_schedulers_per_module",
    "last_update_ts_by_mid",
    "_last_update_ts_by_mid",
)


def get_tables(learner: Any) -> dict[str, dict[str, Any]]:
    """Returns a learner's tables as plain values and arrays."""
    return {
        name: {module_id: _plain(entry) for module_id, entry in getattr(learner, name).items()}
        for name in _NAMES
        if hasattr(learner, name)
    }


def set_tables(learner: Any, tables: Mapping[str, Mapping[str, Any]]) -> None:
    """Puts back what `get_tables` returned; an entropy coefficient without schedule stays."""
    for name, table in tables.items():
        entries = getattr(learner, name)
        for module_id, value in table.items():
            if isinstance(value, int | float):
                entries[module_id] = value
                continue
            entry = entries[module_id]
            tensor = entry.get_current_value() if isinstance(entry, Scheduler) else entry
            if value is not None and isinstance(tensor, torch.Tensor):
                tensor.data.copy_(torch.as_tensor(value))  # in place, since optimizers hold it


def _plain(entry: Any) -> Any:
    if isinstance(entry, Scheduler):
        entry = entry.get_current_value()
        if not isinstance(entry, torch.Tensor):
            return None
    return entry.detach().cpu().numpy() if isinstance(entry, torch.Tensor) else entry
