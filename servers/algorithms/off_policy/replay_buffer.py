"""The setting `replay_buffer_config` of DQN and SAC: which of RLlib's buffers, and how large."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from muxrl.servers.algorithms.settings import AlgorithmProblem, check_kind, suggestion

UNIFORM = "MultiAgentEpisodeReplayBuffer"
PRIORITIZED = "MultiAgentPrioritizedEpisodeReplayBuffer"

# Schaul et al. 2016, proportional variant; RLlib's defaults, too.
_PRIORITIES = {"alpha": 0.6, "beta": 0.4}


def replay_buffer(capacity: int, *, is_prioritized: bool = False) -> dict[str, Any]:
    """Returns RLlib's buffer config for agents' steps, `capacity` of them."""
    if not is_prioritized:
        return {"type": UNIFORM, "capacity": capacity}
    return {"type": PRIORITIZED, "capacity": capacity, **_PRIORITIES}


def read_replay_buffer(what: str, value: Any, default: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the buffer config that RLlib is given: what was set, and the rest at its default.

    Args:
        what: the setting, in words.
        value: as the user wrote it.
        default: the algorithm's.

    Raises:
        AlgorithmProblem: it is no mapping, names no buffer that can hold a server's episodes, or
            has a key or value that the buffer does not take.
    """
    check_kind(what, value, default)
    kind = value.get("type", default["type"])
    if kind not in (UNIFORM, PRIORITIZED):
        hint = ""
        if isinstance(kind, str) and "Episode" in kind:
            hint = f"; use {PRIORITIZED if 'Prioritized' in kind else UNIFORM}"
        raise AlgorithmProblem(
            f"{what} has the type {kind!r}, which cannot hold a server's episodes of several "
            f"agents{hint or f'; known: {UNIFORM}, {PRIORITIZED}'}"
        )
    buffer = replay_buffer(default["capacity"], is_prioritized=kind == PRIORITIZED)
    for key, entry in value.items():
        if key not in buffer:
            why = f", which {PRIORITIZED} has" if key in _PRIORITIES else ""
            raise AlgorithmProblem(
                f"{what} has no key {key!r} for {kind}{why or suggestion(key, buffer)}"
            )
        if key != "type":
            check_kind(f"{what}, key {key!r},", entry, buffer[key])
            if entry < (1 if key == "capacity" else 0):
                raise AlgorithmProblem(f"{what}, key {key!r}, must not be {entry}")
        buffer[key] = entry
    return buffer
