"""Each agent sees one of three cues, and is paid 1 for the action of that number.

Scouts are paid as a team, for each of them that is right. Ten steps: the best return of an agent is
10, that of random actions 3.33.
"""

import numpy as np
from gymnasium import spaces
from pettingzoo import ParallelEnv

NUM_CUES, NUM_STEPS = 3, 10


class Cues(ParallelEnv):
    metadata = {"name": "cues"}
    possible_agents = ["scout_0", "scout_1", "buyer", "seller", "broker", "adviser"]

    def observation_space(self, agent):
        return spaces.Box(0.0, 1.0, (NUM_CUES,), np.float32)

    def action_space(self, agent):
        return spaces.Discrete(NUM_CUES)

    def reset(self, seed=None, options=None):
        if seed is not None or not hasattr(self, "rng"):
            self.rng = np.random.default_rng(seed)
        self.agents, self.t = list(self.possible_agents), 0
        return self.show(), {agent: {} for agent in self.agents}

    def step(self, actions):
        rewards = {a: float(actions[a] == self.cues[a]) for a in self.agents}
        self.t += 1
        agents, is_last = self.agents, self.t == NUM_STEPS
        observations = self.show()
        if is_last:
            self.agents = []
        ends = dict.fromkeys(agents, False), dict.fromkeys(agents, is_last)
        return observations, rewards, *ends, {a: {} for a in agents}

    def show(self):
        self.cues = {agent: int(self.rng.integers(NUM_CUES)) for agent in self.agents}
        return {agent: np.eye(NUM_CUES, dtype=np.float32)[c] for agent, c in self.cues.items()}
