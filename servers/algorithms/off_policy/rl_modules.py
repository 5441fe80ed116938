"""DQN's and SAC's networks, RLlib's default ones, with action masks; and as plain arrays.

A forbidden action is not taken, has no part in a target, and none in SAC's losses. The mask of a
target is that of the observation after the step, which a replay keeps with it.

Arrays are for clients that act in a server's place: of RLlib's default modules and of these, on the
CPU. Of any other class the forward pass is not known.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from ray.rllib.algorithms.dqn.default_dqn_rl_module import QF_PREDS
from ray.rllib.algorithms.dqn.dqn_catalog import DQNCatalog
from ray.rllib.algorithms.dqn.torch.default_dqn_torch_rl_module import DefaultDQNTorchRLModule
from ray.rllib.algorithms.sac import sac_learner as sac
from ray.rllib.algorithms.sac.sac_catalog import SACCatalog
from ray.rllib.algorithms.sac.torch.default_sac_torch_rl_module import DefaultSACTorchRLModule
from ray.rllib.core.columns import Columns
from torch import Tensor

from muxrl.protocol.messages import DenseLayer, PolicyNetwork
from muxrl.servers.agents.keys import ACTION_MASK
from muxrl.servers.rllib.action_masks import FollowsMask, ReadsNoMask, masked, unmasked
from muxrl.servers.rllib.numpy_mlp import mlp_layers
from muxrl.servers.rllib.numpy_values import value_layers


class MaskableDQNCatalog(ReadsNoMask, DQNCatalog):
    """RLlib's catalog; see `ReadsNoMask`."""


class MaskableDQNTorchRLModule(FollowsMask, DefaultDQNTorchRLModule):
    """RLlib's default module of DQN; see `FollowsMask`.

    The value of an unavailable action is minus infinity, for the network and for its target. By
    that RLlib's loss knows one: no argmax is it.
    """

    maskable_catalog = MaskableDQNCatalog
    acts_by_values = True
    """See `value_layers`."""

    def _forward_exploration(self, batch: dict[str, Any], t: int) -> dict[str, Any]:
        """RLlib's epsilon-greedy, but every available action is drawn alike.

        RLlib takes those of value 0 for unavailable: it never draws one of them, and raises if all
        are 0.
        """
        values = self.compute_q_values(batch)[QF_PREDS]
        self.epsilon_schedule.update(t)
        epsilon = self.epsilon_schedule.get_current_value()
        greedy = self.get_exploration_action_dist_cls().from_logits(values).to_deterministic()
        any_action = torch.multinomial((values != -torch.inf).float(), 1).squeeze(-1)
        is_random = torch.rand(len(values), device=values.device) < epsilon
        return {Columns.ACTIONS: torch.where(is_random, any_action, greedy.sample())}

    def _qf_forward_helper(self, batch: dict[str, Any], *networks: Any) -> dict[str, Any]:
        outputs = super()._qf_forward_helper(unmasked(batch), *networks)
        outputs[QF_PREDS] = masked(outputs[QF_PREDS], batch, lowest=-torch.inf)
        return outputs


class MaskableSACCatalog(ReadsNoMask, SACCatalog):
    """RLlib's catalog; see `ReadsNoMask`."""


class MaskableSACTorchRLModule(FollowsMask, DefaultSACTorchRLModule):
    """RLlib's default module of SAC; see `FollowsMask`.

    An unavailable action has probability 0, so that its value has no part in ``V = sum over a of
    pi(a) (Q(a) - alpha log pi(a))`` (Christodoulou 2019, arXiv 1910.07207, eq. 10), in the policy's
    loss, or in the entropy by which alpha is adjusted.
    """

    maskable_catalog = MaskableSACCatalog

    def _forward_inference(self, batch: dict[str, Any]) -> dict[str, Any]:
        outputs = super()._forward_inference(unmasked(batch))
        key = Columns.ACTION_DIST_INPUTS
        return {**outputs, key: masked(outputs[key], batch)}

    def _qf_forward_train_helper(
        self, batch: dict[str, Any], *networks: Any, squeeze: bool = True
    ) -> Tensor:
        return super()._qf_forward_train_helper(unmasked(batch), *networks, squeeze=squeeze)

    def _forward_train_discrete(self, batch: dict[str, Any]) -> dict[str, Any]:
        # RLlib's is NaN where a probability underflows: it takes the logarithm afterwards.
        current = {Columns.OBS: batch[Columns.OBS]}
        following = {Columns.OBS: batch[Columns.NEXT_OBS]}
        probs, log_probs = self._policy(current)
        next_probs, next_log_probs = self._policy(following)
        outputs = {
            sac.ACTION_PROBS: probs,
            sac.ACTION_LOG_PROBS: log_probs,
            sac.ACTION_PROBS_NEXT: next_probs,
            sac.ACTION_LOG_PROBS_NEXT: next_log_probs,
            sac.QF_TARGET_NEXT: self.forward_target(following, squeeze=False),
            sac.QF_PREDS: self._qf_forward_train_helper(
                current, self.qf_encoder, self.qf, squeeze=False
            ),
        }
        if self.twin_q:
            outputs[sac.QF_TWIN_PREDS] = self._qf_forward_train_helper(
                current, self.qf_twin_encoder, self.qf_twin, squeeze=False
            )
        return outputs

    def _policy(self, batch: dict[str, Any]) -> tuple[Tensor, Tensor]:
        """Returns probabilities and their logarithms, ``[B, n]`` each, 0 both where unavailable.

        The logarithms of unavailable ones overflow when alpha is above 1, and 0 times infinity is
        NaN.
        """
        logits = self._forward_inference(batch)[Columns.ACTION_DIST_INPUTS]
        log_probs = torch.log_softmax(logits, -1)
        probs = log_probs.exp()
        if self.acting_keys is not None:
            log_probs = torch.where(batch[Columns.OBS][ACTION_MASK] > 0, log_probs, 0.0)
        return probs, log_probs


def actor_network(module: Any) -> PolicyNetwork | None:
    """Returns SAC's policy: logits of Discrete actions. None: its forward pass is not known."""
    if type(module) not in (DefaultSACTorchRLModule, MaskableSACTorchRLModule):
        return None
    layers = mlp_layers(module.pi_encoder, module.pi) if _is_on_cpu(module) else None
    return None if layers is None else PolicyNetwork([*layers])


def value_network(module: Any) -> PolicyNetwork | None:
    """Returns DQN's network of values; None: it is not known, or has atoms.

    A dueling network's two heads become one chain of layers: side by side, and at the end
    ``Q = V + A - mean(A)``, which is linear.
    """
    layers = value_layers(module)
    if layers is None:
        return None
    shared, advantage, state_value = layers
    if state_value is None:
        return PolicyNetwork([*shared, *advantage])
    heads = [
        _side_by_side(a, v, is_first=i == 0)
        for i, (a, v) in enumerate(zip(advantage, state_value, strict=True))
    ]
    num_actions = advantage[-1].weight.shape[1]
    centred = np.eye(num_actions, dtype=np.float32) - np.float32(1 / num_actions)
    combined = np.concatenate([centred, np.ones((1, num_actions), np.float32)])
    last = heads.pop()
    bias = None if last.bias is None else last.bias @ combined
    heads.append(DenseLayer(last.weight @ combined, bias))
    return PolicyNetwork([*shared, *heads])


def _side_by_side(one: DenseLayer, other: DenseLayer, *, is_first: bool) -> DenseLayer:
    """Returns a layer with the outputs of both, which read the same if they are the first."""
    if is_first:
        weight = np.concatenate([one.weight, other.weight], axis=1)
    else:
        zeros = (
            np.zeros((len(one.weight), other.weight.shape[1]), np.float32),
            np.zeros((len(other.weight), one.weight.shape[1]), np.float32),
        )
        weight = np.block([[one.weight, zeros[0]], [zeros[1], other.weight]])
    bias = None if one.bias is None else np.concatenate([one.bias, other.bias])
    return DenseLayer(weight, bias, one.activation)


def _is_on_cpu(module: Any) -> bool:
    return all(parameter.device.type == "cpu" for parameter in module.parameters())
