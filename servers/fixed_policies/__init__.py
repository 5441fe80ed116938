"""Policies that do not learn: random actions, a user's function, a checkpoint's networks.

They serve as opponents of known strength or as partners. To clients, their servers are like any
other server.
"""

from muxrl.servers.fixed_policies.entry import FIXED, FixedAlgorithm, find_fixed

__all__ = ["FIXED", "FixedAlgorithm", "find_fixed"]
