"""What the policies of a checkpoint observe and how they act, read from its note ``muxrl.json``.

RLlib's own files say so, too, but they are pickles: reading one runs the code in it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import gymnasium
import msgspec

from muxrl.protocol.spaces import Space
from muxrl.servers.algorithms.registry import get_algorithm
from muxrl.servers.algorithms.settings import AlgorithmProblem
from muxrl.servers.checkpoint import ABOUT_FILE, Checkpoint
from muxrl.servers.config import AgentPlan, LimitsConfig, ResourcesConfig, ServerPlan

Spaces = tuple[gymnasium.Space, gymnasium.Space]
"""Observation and action space, as an RLModule has them."""


def saved_spaces(checkpoint: Checkpoint) -> dict[str, Spaces]:
    """Returns the spaces of each policy by its name, {} if the checkpoint has no note.

    Raises:
        AlgorithmProblem: the note cannot be understood.
    """
    if not checkpoint.about:
        return {}
    try:
        algorithm = get_algorithm(checkpoint.about["algorithm"])
        seats = algorithm.seating.make_seats(_plan_of(checkpoint.about))
    except (KeyError, TypeError, ValueError, AttributeError) as error:  # it may have been edited
        raise AlgorithmProblem(
            f"the {ABOUT_FILE} of checkpoint {str(checkpoint.path)!r} cannot be understood: "
            f"{type(error).__name__}: {error}; was it edited?"
        ) from error
    return {seat.policy_id: (seat.observation_space, seat.action_space) for seat in seats.values()}


def _plan_of(about: Mapping[str, Any]) -> ServerPlan:
    """Returns the plan of the server that was saved, as far as its seats depend on it.

    What the note leaves out makes a difference to the global state at most, which no policy acts
    on.
    """
    return ServerPlan(
        server_id=about["server_id"],
        algorithm=about["algorithm"],
        agents={
            agent_id: AgentPlan(
                agent["policy"],
                msgspec.convert(agent["observation_space"], Space),
                msgspec.convert(agent["action_space"], Space),
                agent["group"],
            )
            for agent_id, agent in about["agents"].items()
        },
        groups={group: tuple(members) for group, members in about["groups"].items()},
        state_size=about["state_size"],
        team_reward="sum",
        settings={},
        model={},
        while_learning="serve",
        max_policy_lag=1,
        host="",
        port=0,
        token="",
        seed=0,
        resources=ResourcesConfig(),
        limits=LimitsConfig(),
    )
