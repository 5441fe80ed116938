"""RLlib's PPO with another loss: a penalty on the square of the log-ratio."""

from ray.rllib.algorithms.algorithm_config import NotProvided
from ray.rllib.algorithms.ppo import PPO, PPOConfig
from ray.rllib.algorithms.ppo.torch.ppo_torch_learner import PPOTorchLearner
from ray.rllib.core.columns import Columns


class PenalisedLearner(PPOTorchLearner):
    def compute_loss_for_module(self, *, module_id, config, batch, fwd_out):
        loss = super().compute_loss_for_module(
            module_id=module_id, config=config, batch=batch, fwd_out=fwd_out
        )
        module = self.module[module_id].unwrapped()
        inputs = fwd_out[Columns.ACTION_DIST_INPUTS]
        distribution = module.get_train_action_dist_cls().from_logits(inputs)
        ratio = distribution.logp(batch[Columns.ACTIONS]) - batch[Columns.ACTION_LOGP]
        penalty = ratio[batch[Columns.LOSS_MASK]].square().mean()
        self.metrics.log_value((module_id, "penalty"), penalty.item(), window=1)
        return loss + config.penalty_coeff * penalty


class PenalisedPPOConfig(PPOConfig):
    def __init__(self, algo_class=None):
        super().__init__(algo_class=algo_class or PenalisedPPO)
        self.penalty_coeff = 0.5

    def training(self, *, penalty_coeff=NotProvided, **kwargs):
        super().training(**kwargs)
        if penalty_coeff is not NotProvided:
            self.penalty_coeff = penalty_coeff
        return self

    def get_default_learner_class(self):
        return PenalisedLearner


class PenalisedPPO(PPO):
    @classmethod
    def get_default_config(cls):
        return PenalisedPPOConfig()
