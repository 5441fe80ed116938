"""Small games, most of them with exact bounds; each is a PettingZoo ParallelEnv in its own file."""
