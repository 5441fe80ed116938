"""RLlib's DQN and SAC, as they are."""
