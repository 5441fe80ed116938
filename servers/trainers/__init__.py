"""Anybody's trainer as a server: a class with `act`, `learn`, `state` and `load`."""
