"""Names of the columns of batches, as in RLlib's ``Columns``.

Parts of observations are named as in `muxrl.servers.agents.keys`.
"""

from __future__ import annotations

NEXT_OBS = "new_obs"
ACTIONS = "actions"
REWARDS = "rewards"
TERMINATEDS = "terminateds"
LOSS_MASK = "loss_mask"
ADVANTAGES = "advantages"
TARGETS = "value_targets"
