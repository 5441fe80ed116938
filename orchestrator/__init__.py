"""Reads experiments, starts servers and simulations, watches them and reports.

Scripts and notebooks find everything that the command ``muxrl`` does as functions of `muxrl`.
"""
