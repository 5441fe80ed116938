"""Small simulations with known optima, each a PettingZoo ParallelEnv in a file of its own.

What they have in common as such is in `parallel_game`.
"""
