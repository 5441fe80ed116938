"""The value of what is observed, ``V(s)``, by the critic of an RLModule."""

from __future__ import annotations

from typing import Any

from gymnasium.spaces import Discrete
from ray.rllib.algorithms.dqn.default_dqn_rl_module import QF_PREDS
from ray.rllib.core.columns import Columns
from ray.rllib.core.rl_module.apis import QNetAPI, ValueFunctionAPI
from torch import Tensor


def state_values(module: Any, batch: dict[str, Any]) -> Tensor | None:
    """Returns values ``[B]``, or ``[B, T]`` of sequences; None: the module has none.

    A critic of values gives them itself. Of values of Discrete actions it is what the policy is
    worth by them: the highest available one of a greedy policy (Watkins and Dayan 1992), and where
    actions are drawn ``sum over a of pi(a) Q(a)``, which is SAC's (Christodoulou 2019, arXiv
    1910.07207, equation 10) without the entropy of the action itself.
    """
    if isinstance(module, ValueFunctionAPI):
        values: Tensor = module.compute_values(batch)
        return values
    if not isinstance(module, QNetAPI) or not isinstance(module.action_space, Discrete):
        return None
    of_actions: Any = module.compute_q_values(batch)
    if isinstance(of_actions, dict):
        return of_actions[QF_PREDS].amax(-1)
    logits = module.forward_inference(batch)[Columns.ACTION_DIST_INPUTS]
    return (logits.softmax(-1) * of_actions).sum(-1)
