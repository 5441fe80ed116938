"""Servers with anybody's trainer: a class with `act`, `learn`, `state` and `load`."""
