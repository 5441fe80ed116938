"""Names of the columns of batches, as RLlib's ``Columns`` has them; parts of observations have
those of `muxrl.servers.agents.keys`."""

from __future__ import annotations

NEXT_OBS = "new_obs"
ACTIONS = "actions"
REWARDS = "rewards"
TERMINATEDS = "terminateds"
LOSS_MASK = "loss_mask"
ADVANTAGES = "advantages"
TARGETS = "value_targets"
