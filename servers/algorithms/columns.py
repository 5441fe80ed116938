"""Names of the columns of batches, as RLlib's ``Columns`` has them; parts of observations have
those of `muxrl.servers.agents.keys`."""

from __future__ import annotations

from muxrl.servers.agents.keys import OBS

NEXT_OBS = "new_obs"
ACTIONS = "actions"
REWARDS = "rewards"
TERMINATEDS = "terminateds"
LOSS_MASK = "loss_mask"
ADVANTAGES = "advantages"
TARGETS = "value_targets"

__all__ = [
    "ACTIONS",
    "ADVANTAGES",
    "LOSS_MASK",
    "NEXT_OBS",
    "OBS",
    "REWARDS",
    "TARGETS",
    "TERMINATEDS",
]
