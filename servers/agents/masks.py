"""Observations that come with an action mask apart: above 0 for each action that is available."""

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
    """Returns the refusal of a step in which an agent is to act that has no action."""
    return ValueMismatch(
        NONE_AVAILABLE.format(agent_id),
        agent_id=agent_id,
        expected="a mask with at least one action available",
        got="none available",
    )


def observed_parts(observation_space: Space) -> dict[str, Any]:
    """Returns the parts of what a seat observes by key; what has none is `OBS`."""
    if isinstance(observation_space, DictSpace):
        return dict(observation_space.spaces)
    return {OBS: observation_space}


def has_action_mask(observation_space: Any) -> bool:
    """Returns whether observations come with an action mask, by their space, Gymnasium's too."""
    return ACTION_MASK in getattr(observation_space, "spaces", ())
