"""DQN and SAC: RLlib's, with a replay that draws every step, and with action masks."""
