"""MAPPO: PPO with a centralised critic, on top of RLlib's PPO.

Yu et al. 2022, "The Surprising Effectiveness of PPO in Cooperative Multi-Agent Games" (arXiv
2103.01955). Sampling and the loop are PPO's; the networks (`rl_module`) and the loss are MAPPO's.
"""

from __future__ import annotations

from typing import Any

import torch
from ray.rllib.algorithms.algorithm import Algorithm
from ray.rllib.algorithms.algorithm_config import AlgorithmConfig
from ray.rllib.algorithms.ppo.ppo import PPO
from ray.rllib.algorithms.ppo.torch.ppo_torch_learner import PPOTorchLearner
from ray.rllib.connectors.connector_v2 import ConnectorV2
from ray.rllib.core.columns import Columns
from ray.rllib.core.rl_module.multi_rl_module import MultiRLModule
from ray.rllib.evaluation.postprocessing import Postprocessing
from torch import Tensor
from torch.nn.functional import huber_loss

from muxrl.servers.agents.keys import ALIVE
from muxrl.servers.algorithms.declared_settings import Limit, configured_by
from muxrl.servers.algorithms.entry import AgentSpaces, AlgorithmEntry
from muxrl.servers.algorithms.mappo.export import ActorGraph
from muxrl.servers.algorithms.mappo.rl_module import MAPPOTorchRLModule
from muxrl.servers.algorithms.mappo.seating import CENTRAL
from muxrl.servers.algorithms.networks import Networks
from muxrl.servers.algorithms.on_policy.config import ClippedRatioConfig
from muxrl.servers.algorithms.on_policy.learner import LeanUpdate, actor_critic_loss
from muxrl.servers.algorithms.settings import TrainingSettings
from muxrl.servers.training.skipped_updates import MAX_GRADIENT

_SMALLEST_STD = 1e-5
"""Of advantages; the paper's code adds as much."""


class MAPPOConfig(ClippedRatioConfig):
    """Defaults are the paper's for small tasks: ten passes over a batch, no minibatches, no KL.

    But values are learned as they are. In the paper's units a critic learns so fast while
    bootstrapped returns still fall that simple_spread's agents left its landmarks.

    Every agent is an RLlib agent of its own, with the Dict observation that `rl_module`
    describes. With a reward that all agents share it is the cooperative MAPPO of the paper, but
    rewards may differ.

    .. code-block:: python

        config = (
            MAPPOConfig()
            .environment("env_with_obs_and_state")
            .multi_agent(policies={"team"}, policy_mapping_fn=lambda *args, **kwargs: "team")
            .training(lr=7e-4)
        )
    """

    lr = 7e-4
    # The paper collects 3,200 (128 environments, 25 steps) for its small tasks.
    train_batch_size = 1_000
    minibatch_size = None
    num_epochs = 10
    lambda_ = 0.95
    clip_param = 0.2
    vf_loss_coeff = 1.0
    entropy_coeff = 0.01

    agent_specific_state: bool = True
    """Whether the critic also reads its agent's id and observation."""
    clip_jointly: bool = False
    """Whether `grad_clip` bounds the gradients of actor and critic as one."""
    grad_clip: float | None = 10.0
    """Largest norm of the gradient, of actor and critic each; None: no clip."""
    huber_delta: Limit = None
    """Error, in the critic's units, from which the value loss is linear; None: never."""
    normalize_values: bool = False
    """Whether the critic learns in units of the returns' running mean and deviation."""
    obs_agent_id: bool = False
    """Whether the actor reads its agent's id, one-hot."""
    vf_clip_param: Limit = None
    """How far a value may gain from moving in one update, in the critic's units; None: no limit."""

    def __init__(self, algo_class: type[Algorithm] | None = None) -> None:
        super().__init__(algo_class=algo_class)
        self.num_env_runners = 0
        self.use_kl_loss = False
        self.kl_coeff = 0.0

    def validate(self) -> None:
        super().validate()
        if self.use_kl_loss:
            self._value_error("MAPPO has no KL term: use_kl_loss must be False, or use PPO")
        if not self.use_critic:
            self._value_error("MAPPO is its critic: use_critic must be True")
        if self.normalize_values and self.num_learners > 1:
            self._value_error(
                f"num_learners={self.num_learners}: with normalize_values MAPPO has one learner, "
                "which alone knows the statistics of the returns; set num_learners to 0 or 1"
            )

    @property
    def _model_config_auto_includes(self) -> dict[str, Any]:
        return super()._model_config_auto_includes | {
            "agent_specific_state": self.agent_specific_state,
            "obs_agent_id": self.obs_agent_id,
            "normalize_values": self.normalize_values,
        }


class CriticTargets(ConnectorV2):
    """Standardises a batch's advantages, and puts targets and old values into the critic's units.

    It comes after GAE and runs once for all epochs over a batch, of rows ``[B]`` or of padded
    sequences ``[B, T]``. Advantages are standardised over the steps at which agents acted, which
    alone train the actor.
    """

    def __call__(
        self, *, rl_module: MultiRLModule, batch: dict[str, Any], **kwargs: Any
    ) -> dict[str, Any]:
        for module_id, columns in batch.items():
            module = rl_module[module_id].unwrapped()
            if not isinstance(module, MAPPOTorchRLModule):
                continue
            recorded, acted = masks_of(columns)
            advantages, targets = (
                columns[Postprocessing.ADVANTAGES],
                columns[Postprocessing.VALUE_TARGETS],
            )
            if acted.any():
                std = advantages[acted].std(correction=0)
                columns[Postprocessing.ADVANTAGES] = (advantages - advantages[acted].mean()) / (
                    std + _SMALLEST_STD
                )
            if targets[recorded].abs().max() <= MAX_GRADIENT:
                module.critic.learn_units(targets[recorded])
                columns[Postprocessing.VALUE_TARGETS] = module.critic.normalize(targets)
            else:  # units of such numbers would last, and a Huber loss does not show them
                columns[Postprocessing.VALUE_TARGETS] = torch.full_like(targets, torch.nan)
            with torch.no_grad():
                columns[Columns.VF_PREDS] = module.normalized_values(columns)
        return batch


class MAPPOTorchLearner(LeanUpdate, PPOTorchLearner):
    """The objectives of Yu et al. 2022, in their appendix: clipped ratio, clipped value, no KL.

    ::

        actor   - mean over acting steps of  min(r A, clip(r, 1 - e, 1 + e) A) + c_e H(pi)
        critic  c_v * mean over all steps of max(huber(V - R), huber(V_old + clip(V - V_old) - R))

    A step at which the agent did not act (``ALIVE`` 0), or not by its policy, trains the critic,
    which has to know what a team still earns without the agent, but not the actor.
    """

    should_standardize_advantages = False  # `CriticTargets` does it

    def build(self) -> None:
        super().build()
        pipeline = self._learner_connector
        if pipeline is not None and self.config.add_default_connectors_to_learner_pipeline:
            pipeline.append(CriticTargets())

    def postprocess_gradients_for_module(
        self, *, module_id: str, config: Any, module_gradients_dict: dict[Any, Tensor]
    ) -> dict[Any, Tensor]:
        """Clips the actor's gradients and the critic's, each by their own norm; see the config."""
        if config.grad_clip is None or config.clip_jointly or not module_gradients_dict:
            return super().postprocess_gradients_for_module(
                module_id=module_id, config=config, module_gradients_dict=module_gradients_dict
            )
        critic = self.module[module_id].unwrapped().critic
        of_critic = {self.get_param_ref(parameter) for parameter in critic.parameters()}
        clipped = {}
        for name, is_critic in (("actor", False), ("critic", True)):
            gradients = {
                ref: gradient
                for ref, gradient in module_gradients_dict.items()
                if (ref in of_critic) == is_critic
            }
            norm = self._get_clip_function()(
                gradients, grad_clip=config.grad_clip, grad_clip_by=config.grad_clip_by
            )
            if norm is not None:
                key = (module_id, f"gradients_{name}_global_norm")
                self.metrics.log_value(key=key, value=norm, window=1)
            clipped.update(gradients)
        return clipped

    def compute_loss_for_module(
        self,
        *,
        module_id: str,
        config: AlgorithmConfig,
        batch: dict[str, Any],
        fwd_out: dict[str, Any],
    ) -> Tensor:
        """The loss above. ``entropy_coeff`` may be a schedule."""
        module = self.module[module_id].unwrapped()
        recorded, acted = masks_of(batch)
        advantages = batch[Postprocessing.ADVANTAGES]
        distribution = module.get_train_action_dist_cls().from_logits(
            fwd_out[Columns.ACTION_DIST_INPUTS]
        )
        ratio = ratio_of(distribution, batch, acted)
        clipped = ratio.clamp(1.0 - config.clip_param, 1.0 + config.clip_param)
        policy_loss = -_mean(torch.min(ratio * advantages, clipped * advantages), acted)

        values = module.normalized_values(batch)
        targets = batch[Postprocessing.VALUE_TARGETS]
        value_loss = _huber(values, targets, config.huber_delta)
        if config.vf_clip_param is not None:
            old_values, limit = batch[Columns.VF_PREDS], config.vf_clip_param
            near = old_values + (values - old_values).clamp(-limit, limit)
            value_loss = torch.max(value_loss, _huber(near, targets, config.huber_delta))
        return actor_critic_loss(
            self,
            module_id,
            config,
            policy_loss=policy_loss,
            vf_loss=_mean(value_loss, recorded),
            entropy=_mean(distribution.entropy(), acted),
            values=values[recorded],
            targets=targets[recorded],
        )


@configured_by(MAPPOConfig, MAPPOTorchLearner, MAPPOTorchRLModule)
class MAPPO(PPO):
    """See `MAPPOConfig`. The loop is PPO's: sample a batch, update, hand the weights back."""


def ratio_of(distribution: Any, batch: dict[str, Any], acted: Tensor) -> Tensor:
    """Returns how much likelier each action is than when it was chosen, ``[B]`` or ``[B, T]``.

    It is 1 where the policy chose none.
    """
    log_ratio = distribution.logp(batch[Columns.ACTIONS]) - batch[Columns.ACTION_LOGP]
    # Elsewhere it may be anything, and an overflow there would make all gradients NaN.
    ratio: Tensor = log_ratio.masked_fill(~acted, 0.0).exp()
    return ratio


def masks_of(batch: dict[str, Any]) -> tuple[Tensor, Tensor]:
    """Returns which rows are recorded steps, and at which the policy chose an action.

    Both are bool ``[B]``, in padded sequences ``[B, T]``: there the padding is no recorded step,
    nor is the one that RLlib adds for the bootstrap value.
    """
    recorded = batch.get(Columns.LOSS_MASK)
    if recorded is None:
        recorded = torch.ones_like(batch[Postprocessing.ADVANTAGES], dtype=torch.bool)
    alive = batch[Columns.OBS].get(ALIVE)
    acted = recorded if alive is None else recorded & (alive[..., 0] > 0)
    logp = batch.get(Columns.ACTION_LOGP)  # infinite for an action that was chosen elsewhere
    return recorded, acted if logp is None else acted & ~logp.isinf()


def _mean(x: Tensor, mask: Tensor) -> Tensor:
    # A minibatch may hold no step at which an agent acted; then the actor's loss is 0.
    return x[mask].sum() / mask.sum().clamp(min=1)


def _huber(values: Tensor, targets: Tensor, delta: float | None) -> Tensor:
    """Elementwise; half the squared error where that is below `delta`, or everywhere."""
    if delta is None:
        return 0.5 * (values - targets).square()
    return huber_loss(values, targets, reduction="none", delta=delta)


MAPPO_ENTRY = AlgorithmEntry(
    name="MAPPO",
    summary="PPO whose critic sees the global state (Yu et al. 2022)",
    learns_from="newest",
    training=TrainingSettings(MAPPOConfig),
    networks=Networks(
        refused={
            "vf_share_layers": "its actor and its critic do not see the same",
        },
        own_module_refused="its critic sees the state, apart from what its actor sees",
    ),
    seating=CENTRAL,
    space_check=AgentSpaces(reads_images=False),
    graph=ActorGraph,
)
