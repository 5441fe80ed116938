"""Three drivers choose between a bridge and a ring road; a keeper sets the bridge's toll."""

import numpy as np
from gymnasium import spaces
from pettingzoo import ParallelEnv

TOLLS = (0.0, 0.5, 1.0)
RING_ROAD_TIME = 2.5


class TollBridge(ParallelEnv):
    """Ten mornings. Each driver sees how much of a hurry it is in; that is new every morning.

    A driver pays its hurry times its travel time, and the toll if it took the bridge. The bridge
    takes one unit of time for each driver on it, the ring road always 2.5. The keeper earns the
    tolls. What it chooses today is tomorrow's toll.
    """

    metadata = {"name": "toll_bridge"}

    def __init__(self, num_drivers=3, num_mornings=10):
        self.drivers = [f"driver_{i}" for i in range(num_drivers)]
        self.possible_agents = [*self.drivers, "keeper"]
        self.agents = []
        self.num_mornings = num_mornings
        self.rng = np.random.default_rng()

    def observation_space(self, agent):
        # A driver sees its hurry, the toll, yesterday's load; the keeper the last two.
        return spaces.Box(0.0, 1.0, (2 if agent == "keeper" else 3,), np.float32)

    def action_space(self, agent):
        return spaces.Discrete(len(TOLLS) if agent == "keeper" else 2)  # a driver: 0 is the bridge

    def reset(self, seed=None, options=None):
        if seed is not None:
            self.rng = np.random.default_rng(seed)
        self.agents = list(self.possible_agents)
        self.morning, self.toll, self.load = 0, 0.0, 0.0
        return self.observe(), {agent: {} for agent in self.agents}

    def step(self, actions):
        on_bridge = [driver for driver in self.drivers if actions[driver] == 0]
        rewards = {"keeper": self.toll * len(on_bridge)}
        for driver in self.drivers:
            if driver in on_bridge:
                rewards[driver] = -self.hurry[driver] * len(on_bridge) - self.toll
            else:
                rewards[driver] = -self.hurry[driver] * RING_ROAD_TIME
        self.load = len(on_bridge) / len(self.drivers)
        self.toll = TOLLS[actions["keeper"]]
        self.morning += 1
        is_last = self.morning == self.num_mornings
        agents, observations = self.agents, self.observe()
        if is_last:
            self.agents = []
        return (
            observations,
            rewards,
            dict.fromkeys(agents, False),  # terminated: nobody
            dict.fromkeys(agents, is_last),  # truncated: life goes on after the last morning
            {agent: {} for agent in agents},
        )

    def observe(self):
        self.hurry = {driver: self.rng.random() for driver in self.drivers}
        seen = {d: [self.hurry[d], self.toll, self.load] for d in self.drivers}
        seen["keeper"] = [self.toll, self.load]
        return {agent: np.array(value, np.float32) for agent, value in seen.items()}
