"""Reads experiments, starts servers and simulations, watches them and reports."""
