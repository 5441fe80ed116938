"""Policies that stay as they are: real servers, with nothing to learn.

An opponent of known strength, a partner written by hand, a policy that was trained before. To a
client and to the simulation they are servers like all others.
"""

from muxrl.servers.fixed_policies.entry import FIXED, FixedAlgorithm, find_fixed

__all__ = ["FIXED", "FixedAlgorithm", "find_fixed"]
