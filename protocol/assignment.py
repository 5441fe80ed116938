"""Writes an assignment as one string: `qmix:adversary_0,adversary_1|ppo:agent_0`.

Every assignment has exactly one such string, in whatever order it was written down, and no two
assignments share one. So strings can name results and be compared.

Parts are sorted by their agents' names, so that two assignments of the same teams to different
algorithms line up. In names, ``%``, ``:``, ``|`` and ``,`` are escaped as in URLs: ``%25``,
``%3A``, ``%7C``, ``%2C``. `file_name` makes a short name for files and folders.
"""

from __future__ import annotations

import hashlib
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from urllib.parse import unquote

_ESCAPES = str.maketrans({"%": "%25", ":": "%3A", "|": "%7C", ",": "%2C"})

_MAX_READABLE = 40
"""Length of a file name's readable part: paths of runs stay below what file systems allow."""
_NUM_HEX_DIGITS = 12
"""Length of its hash: among a million assignments, the chance that two share one is 1 in 500."""


def server_labels(algorithms: Mapping[str, str]) -> dict[str, str]:
    """Returns each server's label in an assignment, from its algorithm.

    A label is the algorithm's name in lower case. If several servers run the same algorithm, the
    server's id is appended: ``ppo@left``, ``ppo@right``.

    Args:
        algorithms: by server id: the name of its algorithm.
    """
    count = Counter(name.lower() for name in algorithms.values())
    return {
        server_id: name.lower() if count[name.lower()] == 1 else f"{name.lower()}@{server_id}"
        for server_id, name in algorithms.items()
    }


def canonical(assignment: Mapping[str, Sequence[str]]) -> str:
    """Returns the string of an assignment; `parse` reads it back.

    Args:
        assignment: by server label: the agents that it serves, in any order.

    Raises:
        ValueError: a label without agents, an empty name, or an agent named twice.
    """
    _check(assignment)
    parts = sorted((sorted(agents), label) for label, agents in assignment.items())
    return "|".join(
        f"{label.translate(_ESCAPES)}:{','.join(agent.translate(_ESCAPES) for agent in agents)}"
        for agents, label in parts
    )


def parse(text: str) -> dict[str, tuple[str, ...]]:
    """Returns the assignment of a string that `canonical` made, with sorted agents.

    Raises:
        ValueError: `text` is not such a string.
    """
    assignment: dict[str, tuple[str, ...]] = {}
    for part in text.split("|") if text else ():
        label, colon, agents = part.partition(":")
        if not colon or ":" in agents:
            raise ValueError(f"{part!r} in {text!r} is not of the form 'server:agent,agent'")
        if unquote(label) in assignment:
            raise ValueError(f"{text!r} names the server {unquote(label)!r} twice")
        assignment[unquote(label)] = tuple(sorted(map(unquote, agents.split(","))))
    _check(assignment)
    return assignment


def file_name(text: str) -> str:
    """Returns a short name for files and folders: ``qmix-ppo-a2c-4f1c0a92b7d3``.

    The readable part has the labels in the string's order. The hash is of the whole string, so
    that the same labels with other agents get another name. Names have only lower-case letters,
    digits, ``_`` and ``-``, so they stay distinct on file systems that ignore case.

    Args:
        text: an assignment as `canonical` writes it.

    Raises:
        ValueError: `text` is not canonical.
    """
    assignment = parse(text)
    if canonical(assignment) != text:
        raise ValueError(f"{text!r} is not canonical; that would be {canonical(assignment)!r}")
    labels = (unquote(part.partition(":")[0]) for part in text.split("|"))
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
