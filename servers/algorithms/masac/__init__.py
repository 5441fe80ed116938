"""Multi-agent soft actor-critic: decentralised actors, centralised critics, continuous actions."""

from muxrl.servers.algorithms.masac.masac import MASAC, MASACConfig

__all__ = ["MASAC", "MASACConfig"]
