"""Reads experiments, starts servers and simulations, watches them and reports.

For scripts and notebooks, everything that the command ``muxrl`` does is a function of `muxrl`.
"""
