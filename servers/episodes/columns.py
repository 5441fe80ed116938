"""Packs trajectories into a few long arrays, which a checkpoint can hold, and unpacks them.

The steps of all trajectories of a policy are concatenated. Unpacked trajectories are equal to the
packed ones to the last bit, dtypes included.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from muxrl.protocol.rows import pick
from muxrl.servers.episodes.trajectories import Chunk, Trajectory, concatenated

_NAMES = {"id": "ids", "seat_id": "agent_ids", "episode_id": "multi_agent_episode_ids"}
_NUMBERS = {"t": "t_started", "is_terminated": "is_terminated", "is_truncated": "is_truncated"}
"""Fields of a trajectory, with their names in a checkpoint."""


def _pack_trajectories(trajectories: Sequence[Trajectory]) -> dict[str, Any]:
    groups: dict[tuple[Any, ...], list[int]] = {}
    for i, one in enumerate(trajectories):
        groups.setdefault((one.policy_id, *one.outputs), []).append(i)
    return {
        "num": len(trajectories),
        "groups": [
            _pack_group(np.array(places), [trajectories[i] for i in places])
            for places in groups.values()
        ],
    }


def _pack_group(places: np.ndarray, group: list[Trajectory]) -> dict[str, Any]:
    named = {key: [getattr(one, name) for one in group] for name, key in _NAMES.items()}
    numbers = {key: np.array([getattr(one, n) for one in group]) for n, key in _NUMBERS.items()}
    return {
        "places": places,
        "module_id": group[0].policy_id,
        **named,
        **numbers,
        "num_steps": np.array([len(one.rewards) for one in group]),
        "observations": concatenated([one.observations for one in group]),
        "actions": concatenated([one.actions for one in group]),
        "rewards": concatenated([one.rewards for one in group]),
        "extra_outputs": concatenated([one.outputs for one in group]),
    }


def _unpack_trajectories(state: Mapping[str, Any]) -> list[Trajectory]:
    trajectories: list[Any] = [None] * state["num"]
    for group in state["groups"]:
        ends = np.cumsum(group["num_steps"])
        for i, place in enumerate(group["places"]):
            steps = slice(int(ends[i] - group["num_steps"][i]), int(ends[i]))
            # A trajectory has one more observation than steps.
            observed = slice(steps.start + i, steps.stop + i + 1)
            trajectories[place] = Trajectory(
                policy_id=group["module_id"],
                observations=pick(group["observations"], observed),
                actions=pick(group["actions"], steps),
                rewards=group["rewards"][steps],
                outputs=pick(group["extra_outputs"], steps),
                **{name: group[key][i] for name, key in _NAMES.items()},
                **{name: group[key][i].item() for name, key in _NUMBERS.items()},
            )
    return trajectories


def pack_chunks(chunks: Sequence[Chunk]) -> dict[str, Any]:
    """Returns chunks of episodes as plain values and arrays."""
    return {
        "chunks": [
            {
                "id": chunk.episode_id,
                "t_started": chunk.t_started,
                "t": chunk.t_started + chunk.num_env_steps,
                "is_terminated": chunk.is_terminated,
                "is_truncated": chunk.is_truncated,
                "weights_seq_nos": list(chunk.weights_seq_nos),
                "num_agents": len(chunk.trajectories),
            }
            for chunk in chunks
        ],
        "agents": _pack_trajectories([one for chunk in chunks for one in chunk.trajectories]),
    }


def unpack_chunks(state: Mapping[str, Any]) -> list[Chunk]:
    """Returns the chunks that `pack_chunks` packed."""
    trajectories = iter(_unpack_trajectories(state["agents"]))
    return [
        Chunk(
            one["id"],
            one["t_started"],
            [next(trajectories) for _ in range(one["num_agents"])],
            one["weights_seq_nos"],
            one["is_terminated"],
            one["is_truncated"],
        )
        for one in state["chunks"]
    ]
