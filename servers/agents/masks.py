"""Observations that come with an action mask apart: 1 for each action that is available."""

from __future__ import annotations

from typing import Any

from muxrl.protocol.errors import ValueMismatch
from muxrl.protocol.spaces import Box, DictSpace, Discrete, MultiDiscrete, Space
from muxrl.servers.agents.keys import ACTION_MASK, OBS
from muxrl.servers.agents.spaces import flat_size

NONE_AVAILABLE = (
    "the action mask of agent {!r} forbids every action; leave an agent that cannot act out of "
    "the observations, or give it an action that does nothing"
)


def masked_space(observation_space: Space, action_space: Space) -> DictSpace:
    """Returns the observation space of a module that has masks.

    Raises:
        TypeError: the actions are not Discrete or MultiDiscrete.
    """
    if not isinstance(action_space, Discrete | MultiDiscrete):
        raise TypeError(f"an action mask is for choices among actions, not for {action_space}")
    # RLlib's logits are those of the choices, one after another, as a mask's numbers are.
    mask = Box((flat_size(action_space),), "float32", 0.0, 1.0)
    return DictSpace({OBS: observation_space, ACTION_MASK: mask})


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
