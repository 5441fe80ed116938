"""PPO by TorchRL's loss and advantages (``pip install torchrl``), for Discrete actions.

What TorchRL's collectors, buffers and environments would do, the server does.
"""

import numpy as np
import torch
from tensordict import TensorDict
from tensordict.nn import ProbabilisticTensorDictModule, ProbabilisticTensorDictSequential
from tensordict.nn import TensorDictModule as Named
from torch import nn
from torchrl.modules import ValueOperator
from torchrl.objectives import ClipPPOLoss
from torchrl.objectives.utils import ValueEstimators

from muxrl import Acted


class TorchRLPPO:
    """ClipPPOLoss on whole batches, several times over; settings are those of the loss."""

    learns_from = "newest"

    def __init__(self, policy, lr: float = 0.01, gamma: float = 0.9, lmbda: float = 0.95,
                 num_epochs: int = 8, batch_env_steps: int = 100, **settings):  # fmt: skip
        torch.manual_seed(policy.seed)
        self.batch_env_steps, self.gamma, self.num_epochs = batch_env_steps, gamma, num_epochs
        num_inputs = policy.observation_space.shape[0]
        actor = ProbabilisticTensorDictSequential(
            Named(_mlp(num_inputs, int(policy.action_space.n)), ["observation"], ["logits"]),
            ProbabilisticTensorDictModule(
                ["logits"], ["action"], distribution_class=torch.distributions.Categorical
            ),
        )
        critic = ValueOperator(_mlp(num_inputs, 1), in_keys=["observation"])
        self.actor, self.critic = actor, critic
        self.loss = ClipPPOLoss(actor, critic, **settings)
        self.loss.set_keys(sample_log_prob="log_prob")
        self.loss.make_value_estimator(ValueEstimators.GAE, gamma=gamma, lmbda=lmbda)
        self.optimizer = torch.optim.Adam(self.loss.parameters(), lr)

    def act(self, rows):
        with torch.no_grad():
            logits = self.actor[0].module(torch.from_numpy(rows.observations))
            log_probs = logits.log_softmax(1).numpy()
        noise = rows.rng.gumbel(size=log_probs.shape) if rows.should_explore else 0.0
        chosen = (log_probs + noise).argmax(axis=1)
        return Acted(chosen, {"log_prob": log_probs[np.arange(len(chosen)), chosen]})

    def network(self):
        return self.actor[0].module

    def learn(self, trajectories):
        batch = torch.cat([_as_tensordict(one) for one in trajectories])
        with torch.no_grad():
            self.loss.value_estimator(batch)
        for _ in range(self.num_epochs):
            parts = self.loss(batch)
            loss = sum(part for name, part in parts.items() if name.startswith("loss_"))
            self.optimizer.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(self.loss.parameters(), 1.0)
            self.optimizer.step()
        means = {n: part.item() for n, part in parts.detach().items() if part.numel() == 1}
        return {"loss": loss.item(), **means}

    def state(self):
        return {
            "actor": self.actor.state_dict(),
            "critic": self.critic.state_dict(),
            "optimizer": self.optimizer.state_dict(),
        }

    def load(self, state):
        self.actor.load_state_dict(state["actor"])
        self.critic.load_state_dict(state["critic"])
        self.optimizer.load_state_dict(state["optimizer"])


def _mlp(num_inputs, num_outputs):
    return nn.Sequential(nn.Linear(num_inputs, 32), nn.Tanh(), nn.Linear(32, num_outputs))


def _as_tensordict(one):
    """A piece of an episode: `done` cuts it; what has not terminated is bootstrapped there."""
    if one.outputs["is_logged"].any():
        raise ValueError("PPO needs actions of its own policy, and the simulation logged others")
    observations = torch.from_numpy(one.observations)
    done = torch.zeros(len(one), 1, dtype=torch.bool)
    done[-1] = True
    after = {
        "observation": observations[1:],
        "reward": torch.from_numpy(one.rewards.astype(np.float32))[:, None],
        "done": done,
        "terminated": done & one.is_terminated,
    }
    before = {
        "observation": observations[:-1],
        "action": torch.from_numpy(one.actions),
        "log_prob": torch.from_numpy(one.outputs["log_prob"]),
    }
    return TensorDict({**before, "next": after}, batch_size=len(one))
