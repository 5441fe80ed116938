"""How long a message can be, told by the spaces that a server declares.

A frame that is longer than every agent's longest values of every open episode has something else in
it, and reading it would hold up all other clients.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from typing import Protocol

from muxrl.protocol.messages import MAX_REASON_CHARS, ServerSpec
from muxrl.protocol.spaces import Space, leaf_type, parts_of

_VALUE_BYTES = 26
"""Of the longest number, in JSON: -2.2250738585072014e-308 and what separates it from the next."""
_ITEM_BYTES = 2048
"""Of what an item has once: its type, the names of its fields, `t`, an id of 256 characters."""
_AGENT_FIELDS = 8
"""In how many fields of a step an agent can be named."""
_ITEMS_OF_EPISODE = 3
"""Of one episode in one frame: an end, a start of the next one, and that one's first step."""
_LEAST_ITEMS = 64
_LEAST_BYTES = 1 << 20
MOST_BYTES = 64 << 20
"""Of a default: more has to be asked for, unless a single item needs it."""
_REPLY_BYTES = 3 * MAX_REASON_CHARS + _ITEM_BYTES
"""Of a reply without actions: of a refusal."""


class AgentSpaces(Protocol):
    """What is asked of an agent here: `AgentInfo`, or a server's own plan of it."""

    @property
    def observation_space(self) -> Space: ...

    @property
    def action_space(self) -> Space: ...

    @property
    def group(self) -> str | None: ...


def needed_bytes(
    agents: Mapping[str, AgentSpaces], state_size: int | None, max_episodes: int
) -> int:
    """Returns how long a frame of a client needs to be at most.

    That is one in which each open episode ends, the next one starts, and all agents observe, in
    JSON, which is longer than msgpack.

    Args:
        agents: by id, with their spaces.
        state_size: length of the global state, None if it is not sent.
        max_episodes: open at one time.

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
    """Returns how many items a frame of a client needs to have at most."""
    return max(_LEAST_ITEMS, _ITEMS_OF_EPISODE * max_episodes)


def answer_bytes(spec: ServerSpec) -> int:
    """Returns how long a server's answer to a frame can be."""
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
