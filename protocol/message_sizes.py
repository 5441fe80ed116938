"""Computes how long messages can be, from the spaces that a server declares.

A frame longer than the longest values of all agents in all open episodes has something else in it,
and reading it would hold up all other clients.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from typing import Protocol

from muxrl.protocol.messages import MAX_REASON_CHARS, ServerSpec
from muxrl.protocol.spaces import Space, leaf_type, parts_of

_VALUE_BYTES = 26
"""The longest number in JSON, -2.2250738585072014e-308, with its separators."""
_ITEM_BYTES = 2048
"""The fixed part of an item: its type, names of its fields, `t`, an id of 256 characters."""
_AGENT_FIELDS = 8
"""Fields of a step in which an agent can be named."""
_ITEMS_OF_EPISODE = 3
"""Items for one open episode in a frame: its end, the start and first step of the next one."""
_LEAST_ITEMS = 64
_LEAST_BYTES = 1 << 20
MOST_BYTES = 64 << 20
"""Largest default limit: more has to be configured, unless a single item needs it."""
_REPLY_BYTES = 3 * MAX_REASON_CHARS + _ITEM_BYTES
"""The longest reply without actions, a refusal."""


class AgentSpaces(Protocol):
    """An agent's spaces and group: in `AgentInfo`, or in a server's own plan of an agent."""

    @property
    def observation_space(self) -> Space: ...

    @property
    def action_space(self) -> Space: ...

    @property
    def group(self) -> str | None: ...


def needed_bytes(
    agents: Mapping[str, AgentSpaces], state_size: int | None, max_episodes: int
) -> int:
    """Returns the length of the longest frame that a client needs.

    In this frame each open episode ends, the next one starts, and all agents observe. It is in
    JSON, which is longer than msgpack.

    Args:
        agents: spaces by agent id.
        state_size: length of the global state, None if it is not sent.
        max_episodes: most episodes that are open at the same time.

    Returns:
        Bytes: at least 1 MiB; at most 64 MiB, unless a single item is longer.
    """
    item = _ITEM_BYTES + _VALUE_BYTES * (state_size or 0)
    for agent_id, agent in agents.items():
        item += _AGENT_FIELDS * (_name_bytes(agent_id) + _VALUE_BYTES)
        item += 2 * _space_bytes(agent.observation_space) + _space_bytes(agent.action_space)
    whole = _ITEMS_OF_EPISODE * item * max_episodes
    return max(item, min(max(whole, _LEAST_BYTES), MOST_BYTES))


def needed_items(max_episodes: int) -> int:
    """Returns the most items that a client needs in a frame."""
    return max(_LEAST_ITEMS, _ITEMS_OF_EPISODE * max_episodes)


def answer_bytes(spec: ServerSpec) -> int:
    """Returns the most bytes of a server's answer to a frame."""
    longest = needed_bytes(spec.agents, spec.state_size, spec.max_episodes)
    refusals = needed_items(spec.max_episodes) * _REPLY_BYTES
    return max(longest, spec.max_message_bytes) + refusals


def _space_bytes(space: Space) -> int:
    """Returns the length of a value of `space` as JSON, nested lists included."""
    parts = parts_of(space)
    if parts is not None:
        names = sum(_name_bytes(key) for key, _ in parts if isinstance(key, str))
        return 3 + names + sum(_space_bytes(sub) for _, sub in parts)
    _, shape = leaf_type(space)
    lists = sum(math.prod(shape[:i]) for i in range(len(shape)))
    return _VALUE_BYTES * math.prod(shape) + 3 * lists


def _name_bytes(name: str) -> int:
    return len(json.dumps(name)) + 2
