"""The simulation's side of muxrl: light, without ray and without torch.

``MultiplexingClient`` speaks to many policy servers, ``PolicyClient`` to one, and
``muxrl.client.env_loop`` drives whole simulations with either.
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
