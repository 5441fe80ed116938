"""A bandit for teams in numpy: for all cues of a team, the mean reward of each joint action."""

import numpy as np


class JointBandit:
    """Takes the joint action of the highest mean."""

    forms_teams = True  # observations [n, members, ...], actions [n, members]
    learns_from = "recent"
    batch_env_steps = 10

    def __init__(self, policy, epsilon: float = 0.2):
        num_members, num_cues = policy.observation_space.shape
        self.num_actions = policy.action_space.nvec
        self.num_cues = (num_cues,) * num_members
        shape = num_cues**num_members, self.num_actions.prod()
        self.counts, self.sums, self.epsilon = np.zeros(shape), np.zeros(shape), epsilon

    def cues(self, observations):
        return np.ravel_multi_index(tuple(observations.argmax(axis=2).T), self.num_cues)

    def act(self, rows):
        means = (self.sums / np.maximum(self.counts, 1))[self.cues(rows.observations)]
        means[~self.allowed(rows.masks)] = -np.inf
        if rows.should_explore:
            at_random = rows.rng.random(len(rows)) < self.epsilon
            means[at_random] += rows.rng.gumbel(size=means[at_random].shape) * 1e6
        return np.stack(np.unravel_index(means.argmax(axis=1), self.num_actions), axis=1)

    def allowed(self, masks):
        """[n, joint actions]: whether every member may take its part."""
        allowed = np.ones((len(masks), 1))
        for member in range(masks.shape[1]):
            allowed = (allowed[:, :, None] * masks[:, member, None, :]).reshape(len(masks), -1)
        return allowed > 0

    def learn(self, trajectories):
        for one in trajectories:
            joint = np.ravel_multi_index(tuple(one.actions.T), self.num_actions)
            where = self.cues(one.observations[:-1]), joint
            np.add.at(self.counts, where, 1)
            np.add.at(self.sums, where, one.rewards)
        return {"mean_reward": float(self.sums.sum() / self.counts.sum())}

    def state(self):
        return {"counts": self.counts, "sums": self.sums}

    def load(self, state):
        self.counts, self.sums = state["counts"], state["sums"]
