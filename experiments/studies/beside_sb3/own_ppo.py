"""PPO in one file of PyTorch, with the networks and the loss of the built-in PPO."""

import numpy as np
import torch
from torch import nn

from muxrl.servers.trainers.interface import Acted


def _network(num_inputs, num_outputs):
    return nn.Sequential(
        nn.Linear(num_inputs, 256), nn.Tanh(), nn.Linear(256, 256), nn.Tanh(),
        nn.Linear(256, num_outputs),
    )  # fmt: skip


class PPO:
    """PPO with a clipped ratio and GAE, without a KL penalty."""

    learns_from = "newest"

    def __init__(
        self, policy, batch_env_steps=2000, minibatch_size=250, num_epochs=8, lr=0.0005, clip=0.3,
        gamma=0.99, lambda_=1.0,
    ):  # fmt: skip
        torch.manual_seed(policy.seed)
        self.batch_env_steps, self.minibatch_size = batch_env_steps, minibatch_size
        self.num_epochs, self.clip, self.gamma, self.lambda_ = num_epochs, clip, gamma, lambda_
        self.actor = _network(policy.observation_space.shape[0], policy.action_space.n)
        self.critic = _network(policy.observation_space.shape[0], 1)
        self.parameters = [*self.actor.parameters(), *self.critic.parameters()]
        self.optimizer = torch.optim.Adam(self.parameters, lr, eps=1e-5)
        self.rng = np.random.default_rng(policy.seed)

    def act(self, rows):
        with torch.no_grad():
            log_probs = self.actor(torch.from_numpy(rows.observations)).log_softmax(1).numpy()
        if not rows.should_explore:
            return log_probs.argmax(axis=1)
        chosen = (log_probs + rows.rng.gumbel(size=log_probs.shape)).argmax(axis=1)
        return Acted(chosen, {"log_prob": log_probs[np.arange(len(chosen)), chosen]})

    def learn(self, trajectories):
        parts = [self.advantages(one) for one in trajectories]
        observations = torch.from_numpy(np.concatenate([t.observations[:-1] for t in trajectories]))
        actions = torch.from_numpy(np.concatenate([t.actions for t in trajectories]))
        before = torch.from_numpy(np.concatenate([t.outputs["log_prob"] for t in trajectories]))
        advantages = torch.from_numpy(np.concatenate([a for a, _ in parts]))
        targets = torch.from_numpy(np.concatenate([target for _, target in parts]))
        advantages = (advantages - advantages.mean()) / advantages.std().clamp(min=1e-4)
        for _ in range(self.num_epochs):
            order = torch.from_numpy(self.rng.permutation(len(actions)))
            for rows in order.split(self.minibatch_size):
                log_probs = self.actor(observations[rows]).log_softmax(1)
                chosen = log_probs.gather(1, actions[rows, None])[:, 0]
                ratio = (chosen - before[rows]).exp()
                clipped = ratio.clamp(1 - self.clip, 1 + self.clip)
                gain = torch.min(ratio * advantages[rows], clipped * advantages[rows]).mean()
                value_loss = (self.critic(observations[rows])[:, 0] - targets[rows]).square().mean()
                loss = value_loss - gain
                self.optimizer.zero_grad()
                loss.backward()
                self.optimizer.step()
        return {"loss": loss.item()}

    def advantages(self, one):
        with torch.no_grad():
            values = self.critic(torch.from_numpy(one.observations))[:, 0].numpy()
        if one.is_terminated:
            values[-1] = 0.0
        deltas = one.rewards + self.gamma * values[1:] - values[:-1]
        advantages, following = np.empty(len(one), np.float32), 0.0
        for i in reversed(range(len(one))):
            advantages[i] = following = deltas[i] + self.gamma * self.lambda_ * following
        return advantages, advantages + values[:-1]

    def state(self):
        return {
            "actor": self.actor.state_dict(),
            "critic": self.critic.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "rng": self.rng.bit_generator.state,
        }

    def load(self, state):
        self.actor.load_state_dict(state["actor"])
        self.critic.load_state_dict(state["critic"])
        self.optimizer.load_state_dict(state["optimizer"])
        self.rng.bit_generator.state = state["rng"]
