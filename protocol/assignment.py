"""Which server serves which agents, as one string: `qmix:adversary_0,adversary_1|ppo:agent_0`.

One assignment has one string, whatever the order in which it was written down, and two
assignments never share one. So it can name results and be compared.

The parts stand in the order of their agents' names, so that two assignments of the same teams
to different algorithms line up. In names, ``%``, ``:``, ``|`` and ``,`` are written as in
URLs: ``%25``, ``%3A``, ``%7C``, ``%2C``.

Where a file or folder is named after an assignment, `file_name` is its short form.
"""

from __future__ import annotations

import hashlib
import re
from collections import Counter
from collections.abc import Mapping, Sequence

# "%" first: the others bring new ones in.
_ESCAPES = {"%": "%25", ":": "%3A", "|": "%7C", ",": "%2C"}

_MAX_READABLE = 40
"""Of a file name's part for people: paths of runs stay below what file systems allow."""
_NUM_HEX_DIGITS = 12
"""Of the hash: among a million assignments, the chance that two share one is 1 in 500."""


def server_labels(algorithms: Mapping[str, str]) -> dict[str, str]:
    """Returns each server's label in an assignment, from its algorithm.

    A label is the algorithm's name in lower case. Where several servers run one algorithm, the
    server's id follows: ``ppo@left``, ``ppo@right``.

    Args:
        algorithms: server id to the name of its algorithm.
    """
    count = Counter(name.lower() for name in algorithms.values())
    return {
        server_id: name.lower() if count[name.lower()] == 1 else f"{name.lower()}@{server_id}"
        for server_id, name in algorithms.items()
    }


def canonical(assignment: Mapping[str, Sequence[str]]) -> str:
    """Returns the one string that stands for an assignment; `parse` reads it back.

    Args:
        assignment: server label to the agents it serves, in any order.

    Raises:
        ValueError: a label without agents, an empty name, an agent that is named twice.
    """
    _check(assignment)
    parts = sorted((sorted(agents), label) for label, agents in assignment.items())
    return "|".join(
        f"{_escape(label)}:{','.join(_escape(agent) for agent in agents)}"
        for agents, label in parts
    )


def parse(text: str) -> dict[str, tuple[str, ...]]:
    """Returns the assignment that a string of `canonical` stands for, agents in sorted order.

    Raises:
        ValueError: not such a string.
    """
    assignment: dict[str, tuple[str, ...]] = {}
    for part in text.split("|") if text else ():
        label, colon, agents = part.partition(":")
        if not colon or ":" in agents:
            raise ValueError(f"{part!r} in {text!r} is not of the form 'server:agent,agent'")
        if _unescape(label) in assignment:
            raise ValueError(f"{text!r} names the server {_unescape(label)!r} twice")
        assignment[_unescape(label)] = tuple(sorted(map(_unescape, agents.split(","))))
    _check(assignment)
    return assignment


def file_name(text: str) -> str:
    """Returns a short name that files and folders can have: ``qmix-ppo-a2c-4f1c0a92b7d3``.

    The labels in the order of the string, for people, and a hash of all of it, so that other
    agents under the same labels get another name. Lower case letters, digits, ``_`` and ``-``
    only: a file system that does not tell ``PPO`` from ``ppo`` keeps them apart, too.

    Args:
        text: an assignment as `canonical` writes it.

    Raises:
        ValueError: not such a string, or one with its parts in another order.
    """
    assignment = parse(text)
    if canonical(assignment) != text:
        raise ValueError(f"{text!r} is not canonical; that would be {canonical(assignment)!r}")
    labels = (_unescape(part.partition(":")[0]) for part in text.split("|"))
    readable = "-".join(re.sub("[^a-z0-9]+", "_", label.lower()).strip("_") for label in labels)
    digest = hashlib.sha256(text.encode()).hexdigest()[:_NUM_HEX_DIGITS]
    return f"{readable[:_MAX_READABLE].strip('-_') or 'assignment'}-{digest}"


def _check(assignment: Mapping[str, Sequence[str]]) -> None:
    owner: dict[str, str] = {}
    for label, agents in assignment.items():
        if not label or not agents or not all(agents):
            raise ValueError(
                f"server {label!r} with the agents {list(agents)} cannot be part of an "
                "assignment: it takes a label and at least one agent, and no empty names"
            )
        for agent in agents:
            if agent in owner:
                raise ValueError(f"agent {agent!r} is assigned to {owner[agent]!r} and {label!r}")
            owner[agent] = label


def _escape(name: str) -> str:
    for char, escaped in _ESCAPES.items():
        name = name.replace(char, escaped)
    return name


def _unescape(name: str) -> str:
    for char, escaped in reversed(_ESCAPES.items()):
        name = name.replace(escaped, char)
    return name
