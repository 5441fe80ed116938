"""Trajectories as a few long arrays, which a checkpoint can hold, and back.

Steps of all trajectories of a policy are put one behind the other. What comes back is equal to the
last bit, dtypes included.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from muxrl.protocol.rows import pick
from muxrl.servers.episodes.trajectories import Chunk, Trajectory, concatenated


def pack_trajectories(trajectories: Sequence[Trajectory]) -> dict[str, Any]:
    """Returns trajectories as plain values and arrays.

    Args:
        trajectories: of any seats; those of one policy have observations, actions and outputs of
            the same structure.
    """
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
    return {
        "places": places,
        "module_id": group[0].policy_id,
        "ids": [one.id for one in group],
        "agent_ids": [one.seat_id for one in group],
        "multi_agent_episode_ids": [one.episode_id for one in group],
        "t_started": np.array([one.t for one in group]),
        "is_terminated": np.array([one.is_terminated for one in group]),
        "is_truncated": np.array([one.is_truncated for one in group]),
        "num_steps": np.array([len(one.rewards) for one in group]),
        "observations": concatenated([one.observations for one in group]),
        "actions": concatenated([one.actions for one in group]),
        "rewards": concatenated([one.rewards for one in group]),
        "extra_outputs": {
            name: concatenated([one.outputs[name] for one in group]) for name in group[0].outputs
        },
    }


def unpack_trajectories(state: Mapping[str, Any]) -> list[Trajectory]:
    """Returns trajectories of rows, in the order in which they were packed.

    Args:
        state: from `pack_trajectories`.
    """
    trajectories: list[Any] = [None] * state["num"]
    for group in state["groups"]:
        ends = np.cumsum(group["num_steps"])
        for i, place in enumerate(group["places"]):
            steps = slice(int(ends[i] - group["num_steps"][i]), int(ends[i]))
            # Each trajectory has one observation more than it has steps.
            observed = slice(steps.start + i, steps.stop + i + 1)
            trajectories[place] = Trajectory(
                id=group["ids"][i],
                episode_id=group["multi_agent_episode_ids"][i],
                seat_id=group["agent_ids"][i],
                policy_id=group["module_id"],
                observations=pick(group["observations"], observed),
                actions=pick(group["actions"], steps),
                rewards=group["rewards"][steps],
                outputs={n: pick(column, steps) for n, column in group["extra_outputs"].items()},
                t=int(group["t_started"][i]),
                is_terminated=bool(group["is_terminated"][i]),
                is_truncated=bool(group["is_truncated"][i]),
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
        "agents": pack_trajectories([one for chunk in chunks for one in chunk.trajectories]),
    }


def unpack_chunks(state: Mapping[str, Any]) -> list[Chunk]:
    """Returns the chunks that `pack_chunks` packed."""
    trajectories = iter(unpack_trajectories(state["agents"]))
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
