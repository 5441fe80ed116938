"""What PPO, A2C and MAPPO share: from episodes to a batch, and a lean update on it."""
