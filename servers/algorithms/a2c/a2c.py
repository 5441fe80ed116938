"""A2C: synchronous advantage actor-critic, on top of RLlib's PPO.

The synchronous form of A3C, Mnih et al. 2016 (arXiv 1602.01783), algorithm S3. Sampling, the
networks and the loop are PPO's; the loss and the advantages (`learner`) are A2C's.
"""

from __future__ import annotations

from typing import Any, Self

from ray.rllib.algorithms.algorithm import Algorithm
from ray.rllib.algorithms.algorithm_config import AlgorithmConfig, NotProvided
from ray.rllib.algorithms.ppo.ppo import PPO, PPOConfig

from muxrl.servers.algorithms.a2c.learner import A2CTorchLearner
from muxrl.servers.algorithms.given_settings import set_given


class A2CConfig(PPOConfig):
    """One update per batch, on the whole of it: no epochs, no minibatches, no ratio, no KL.

    ``train_batch_size_per_learner`` is the number of env steps between two updates. With
    ``lambda_=1`` (default) advantages are n-step returns up to the end of the batch, as in the
    paper; below 1 they are GAE's.

    .. code-block:: python

        config = A2CConfig().environment("CartPole-v1").training(lr=1e-3, entropy_coeff=0.01)
    """

    def __init__(self, algo_class: type[Algorithm] | None = None) -> None:
        super().__init__(algo_class=algo_class or A2C)
        self.standardize_advantages = False

        self.lr = 1e-3
        self.train_batch_size = 200
        self.lambda_ = 1.0
        self.vf_loss_coeff = 0.5
        self.entropy_coeff = 0.01
        self.grad_clip = 40.0
        self.num_env_runners = 0

        self.num_epochs = 1
        self.minibatch_size = None
        self.shuffle_batch_per_epoch = False
        self.use_kl_loss = False
        self.kl_coeff = 0.0
        # One result per about so many env steps, not one per update.
        self.min_sample_timesteps_per_iteration = 1_000

    def training(self, *, standardize_advantages: bool = NotProvided, **kwargs: Any) -> Self:
        """Sets the training related settings.

        Args:
            standardize_advantages: Whether a batch's advantages are shifted to mean 0 and scaled
                to standard deviation 1, as RLlib's PPO always does. The paper does not.
            **kwargs: PPO's. `validate` refuses epochs, minibatches and the KL term.

        Returns:
            This config.
        """
        set_given(self, locals())
        super().training(**kwargs)
        return self

    def validate(self) -> None:
        super().validate()
        if self.num_epochs != 1 or self.minibatch_size is not None:
            self._value_error(
                f"A2C makes one update per batch, on the whole of it: num_epochs="
                f"{self.num_epochs} must be 1 and minibatch_size={self.minibatch_size} None; "
                "a second pass would be off-policy without PPO's ratio"
            )
        if self.use_kl_loss:
            self._value_error("A2C has no KL term: use_kl_loss must be False, or use PPO")
        if not self.use_critic:
            self._value_error("A2C needs its critic: use_critic must be True")

    def get_default_learner_class(self) -> type:
        return A2CTorchLearner


class A2C(PPO):
    """See `A2CConfig`. The loop is PPO's: sample a batch, update, hand the weights back."""

    @classmethod
    def get_default_config(cls) -> AlgorithmConfig:
        return A2CConfig()
