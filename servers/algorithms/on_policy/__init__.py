"""What PPO, A2C, MAPPO and HAPPO share: from episodes to a batch, and a lean update on it."""
