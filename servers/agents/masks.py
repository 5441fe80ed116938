"""Observations with a separate action mask, which is above 0 for each available action."""

from __future__ import annotations

from typing import Any

from muxrl.protocol.errors import ValueMismatch
from muxrl.protocol.spaces import DictSpace, Space
from muxrl.servers.agents.keys import ACTION_MASK, OBS

NONE_AVAILABLE = (
    "the action mask of agent {!r} forbids every action; leave an agent that cannot act out of "
    "the observations, or give it an action that does nothing"
)


def none_available(agent_id: str) -> ValueMismatch:
    """Returns the refusal of a step in which an agent that must act has no available action."""
    return ValueMismatch(
        NONE_AVAILABLE.format(agent_id),
        agent_id=agent_id,
        expected="a mask with at least one action available",
        got="none available",
    )


def observed_parts(observation_space: Space) -> dict[str, Any]:
    """Returns the parts of a seat's observations by key; a single part is `OBS`."""
    if isinstance(observation_space, DictSpace):
        return dict(observation_space.spaces)
    return {OBS: observation_space}


def has_action_mask(observation_space: Any) -> bool:
    """Returns whether observations of a space, also one of Gymnasium's, have an action mask."""
    return ACTION_MASK in getattr(observation_space, "spaces", ())
