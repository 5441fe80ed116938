"""REINFORCE with a baseline in one file of PyTorch (Williams 1992)."""

import numpy as np
import torch
from torch import nn


class PolicyGradient:
    """One network for actions and values; gradients of whole batches."""

    learns_from = "newest"

    def __init__(self, policy, lr: float = 0.01, gamma: float = 0.9, batch_env_steps: int = 100):
        torch.manual_seed(policy.seed)
        self.batch_env_steps, self.gamma = batch_env_steps, gamma
        num_inputs, self.num_actions = policy.observation_space.shape[0], policy.action_space.n
        self.net = nn.Sequential(
            nn.Linear(num_inputs, 32), nn.Tanh(), nn.Linear(32, self.num_actions + 1)
        )
        self.optimizer = torch.optim.Adam(self.net.parameters(), lr)

    def act(self, rows):
        with torch.no_grad():
            logits = self.net(torch.from_numpy(rows.observations))[:, :-1].numpy()
        if not rows.should_explore:
            return logits.argmax(axis=1)
        return (logits + rows.rng.gumbel(size=logits.shape)).argmax(axis=1)

    def learn(self, trajectories):
        observations = torch.from_numpy(np.concatenate([t.observations[:-1] for t in trajectories]))
        actions = torch.from_numpy(np.concatenate([t.actions for t in trajectories]))
        returns = torch.from_numpy(np.concatenate([self.returns(t) for t in trajectories]))
        outputs = self.net(observations)
        advantages = returns - outputs[:, -1]
        chosen = outputs[:, :-1].log_softmax(1).gather(1, actions[:, None])[:, 0]
        loss = -(advantages.detach() * chosen).mean() + advantages.square().mean()
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        return {"loss": loss.item()}

    def returns(self, trajectory):
        """Discounted; what has not terminated continues with the value of its last observation."""
        value = 0.0
        if not trajectory.is_terminated:
            with torch.no_grad():
                value = self.net(torch.from_numpy(trajectory.observations[-1]))[-1].item()
        returns = np.empty(len(trajectory), np.float32)
        for i in reversed(range(len(trajectory))):
            returns[i] = value = trajectory.rewards[i] + self.gamma * value
        return returns

    def probabilities(self, rows):
        with torch.no_grad():
            return self.net(torch.from_numpy(rows.observations))[:, :-1].softmax(1)

    def value(self, rows):
        with torch.no_grad():
            return self.net(torch.from_numpy(rows.observations))[:, -1]

    def weights(self):
        return self.net.state_dict()

    def set_weights(self, weights):
        self.net.load_state_dict(weights)

    def state(self):
        return {"net": self.net.state_dict(), "optimizer": self.optimizer.state_dict()}

    def load(self, state):
        self.net.load_state_dict(state["net"])
        self.optimizer.load_state_dict(state["optimizer"])
