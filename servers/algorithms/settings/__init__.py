"""The settings of muxrl's own algorithms: of ``PPO`` in ``PPOSettings``, and so on.

Nothing here imports torch, so that settings are checked in no time.
"""

from __future__ import annotations

from muxrl.servers.algorithms.settings import actor_critic, off_policy, teams
from muxrl.servers.algorithms.settings.model import AlgorithmSettings


def settings_of(algorithm: str) -> type[AlgorithmSettings]:
    """Returns the class with the settings of an algorithm.

    Args:
        algorithm: name of the algorithm's class.
    """
    name = f"{algorithm}Settings"
    rooms = (vars(module) for module in (actor_critic, off_policy, teams))
    return next(room[name] for room in rooms if name in room)
