"""Names of what is recorded with actions, and log-probabilities."""

from __future__ import annotations

import numpy as np

LOG_PROB = "action_logp"
"""Log-probability of the action that was taken; RLlib's ``Columns.ACTION_LOGP``."""
DISTRIBUTION = "action_dist_inputs"
"""What the action was drawn from, such as logits; RLlib's ``Columns.ACTION_DIST_INPUTS``."""
IS_LOGGED = "is_logged"
"""For trainers: whether the client chose the action; for a team by member."""


def log_probs_of(logits: np.ndarray) -> np.ndarray:
    """Returns the logarithms of the probabilities ``[B, n]`` of actions with these logits."""
    # `reduce` of the ufuncs is faster: methods of arrays go through a Python function.
    shifted = logits - np.maximum.reduce(logits, axis=-1, keepdims=True)
    shifted -= np.log(np.add.reduce(np.exp(shifted), axis=-1, keepdims=True))
    return shifted
