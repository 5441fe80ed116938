"""DQN and SAC, RLlib's, on replay buffers that draw every stored step."""

from muxrl.servers.algorithms.dqn.dqn import DQN, SAC, DQNConfig, SACConfig

__all__ = ["DQN", "SAC", "DQNConfig", "SACConfig"]
