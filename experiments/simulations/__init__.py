"""Small simulations with known optima, each a PettingZoo ParallelEnv in a file of its own."""
