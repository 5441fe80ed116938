"""Synchronous advantage actor-critic."""

from muxrl.servers.algorithms.a2c.a2c import A2C, A2CConfig

__all__ = ["A2C", "A2CConfig"]
