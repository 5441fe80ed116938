"""A bandit in numpy: for each cue, the mean reward of each action."""

import numpy as np


class Bandit:
    """Epsilon-greedy on the mean reward of each action, for the largest of the observed numbers."""

    learns_from = "recent"
    batch_env_steps = 10

    def __init__(self, policy, epsilon: float = 0.1):
        shape = policy.observation_space.shape[0], policy.action_space.n
        self.counts, self.sums = np.zeros(shape), np.zeros(shape)
        self.epsilon = epsilon

    def act(self, rows):
        tried = np.maximum(self.counts, 1)
        best = (self.sums / tried).argmax(axis=1)[rows.observations.argmax(axis=1)]
        if not rows.should_explore:
            return best
        at_random = rows.rng.random(len(rows)) < self.epsilon
        return np.where(at_random, rows.rng.integers(self.sums.shape[1], size=len(rows)), best)

    def learn(self, trajectories):
        for one in trajectories:
            cues = one.observations[:-1].argmax(axis=1)
            np.add.at(self.counts, (cues, one.actions), 1)
            np.add.at(self.sums, (cues, one.actions), one.rewards)
        return {"mean_reward": float(self.sums.sum() / self.counts.sum())}

    def state(self):
        return {"counts": self.counts, "sums": self.sums}

    def load(self, state):
        self.counts, self.sums = state["counts"], state["sums"]
