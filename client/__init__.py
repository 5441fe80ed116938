"""The simulation's side of muxrl; needs neither ray nor torch.

``MultiplexingClient`` talks to many policy servers and ``PolicyClient`` to one.
``muxrl.client.env_loop`` plays whole simulations with either.
"""

from muxrl.client.errors import (
    AssignmentError,
    ClientError,
    EpisodeAborted,
    EpisodeLost,
    EpisodeMisuse,
    RefusedByServer,
    RunIsOver,
    ServerLost,
    ServerUnavailable,
)
from muxrl.client.multiplexer import MultiplexingClient, PolicyClient

__all__ = [
    "AssignmentError",
    "ClientError",
    "EpisodeAborted",
    "EpisodeLost",
    "EpisodeMisuse",
    "MultiplexingClient",
    "PolicyClient",
    "RefusedByServer",
    "RunIsOver",
    "ServerLost",
    "ServerUnavailable",
]
