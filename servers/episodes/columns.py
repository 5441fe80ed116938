"""Recorded episodes as a few long arrays, which a checkpoint can hold, and back.

Steps of all episodes of a policy are put one behind the other. What comes back is equal to the
last bit, dtypes included.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import gymnasium
import numpy as np
import tree
from ray.rllib.env.multi_agent_episode import MultiAgentEpisode
from ray.rllib.env.single_agent_episode import SingleAgentEpisode
from ray.rllib.env.utils.infinite_lookback_buffer import InfiniteLookbackBuffer

from muxrl.servers.feed import Chunk
from muxrl.servers.seats import Seat

Spaces = tuple[gymnasium.Space, gymnasium.Space]


def pack_episodes(episodes: Sequence[SingleAgentEpisode]) -> dict[str, Any]:
    """Returns the episodes as plain values and arrays; spaces are left out.

    Args:
        episodes: of any agents; those of one policy have observations, actions and extra outputs of
            the same structure.
    """
    groups: dict[tuple[Any, ...], list[int]] = {}
    for i, episode in enumerate(episodes):
        groups.setdefault((episode.module_id, *episode.extra_model_outputs), []).append(i)
    return {
        "num": len(episodes),
        "groups": [
            _pack_group(np.array(places), [episodes[i] for i in places])
            for places in groups.values()
        ],
    }


def _pack_group(places: np.ndarray, episodes: list[SingleAgentEpisode]) -> dict[str, Any]:
    return {
        "places": places,
        "module_id": episodes[0].module_id,
        "ids": [e.id_ for e in episodes],
        "agent_ids": [e.agent_id for e in episodes],
        "multi_agent_episode_ids": [e.multi_agent_episode_id for e in episodes],
        "t_started": np.array([e.t_started for e in episodes]),
        "lookbacks": np.array([e.observations.lookback for e in episodes]),
        "is_terminated": np.array([e.is_terminated for e in episodes]),
        "is_truncated": np.array([e.is_truncated for e in episodes]),
        "is_numpy": np.array([e.is_numpy for e in episodes]),
        "num_steps": np.array([_length(e.rewards) for e in episodes]),
        "observations": _joined([e.observations for e in episodes]),
        "actions": _joined([e.actions for e in episodes]),
        "rewards": _joined([e.rewards for e in episodes]),
        "extra_outputs": {
            name: _joined([e.extra_model_outputs[name] for e in episodes])
            for name in episodes[0].extra_model_outputs
        },
    }


def unpack_episodes(
    state: Mapping[str, Any], spaces_of: Callable[[str, str], Spaces]
) -> list[SingleAgentEpisode]:
    """Returns the episodes in the order in which they were packed.

    Args:
        state: from `pack_episodes`.
        spaces_of: returns the spaces of observations and actions for an agent's id and a policy's.
    """
    episodes: list[Any] = [None] * state["num"]
    for group in state["groups"]:
        module_id, ends = group["module_id"], np.cumsum(group["num_steps"])
        for i, place in enumerate(group["places"]):
            steps = slice(int(ends[i] - group["num_steps"][i]), int(ends[i]))
            # Each episode has one observation more than it has steps.
            observed = slice(steps.start + i, steps.stop + i + 1)
            agent_id = group["agent_ids"][i]
            observation_space, action_space = spaces_of(agent_id, module_id)
            episode = SingleAgentEpisode(
                id_=group["ids"][i],
                observations=_rows(group["observations"], observed),
                observation_space=observation_space,
                actions=_rows(group["actions"], steps),
                action_space=action_space,
                rewards=group["rewards"][steps].tolist(),
                extra_model_outputs={
                    name: _rows(column, steps) for name, column in group["extra_outputs"].items()
                },
                terminated=bool(group["is_terminated"][i]),
                truncated=bool(group["is_truncated"][i]),
                t_started=int(group["t_started"][i]),
                len_lookback_buffer=int(group["lookbacks"][i]),
                agent_id=agent_id,
                module_id=module_id,
                multi_agent_episode_id=group["multi_agent_episode_ids"][i],
            )
            episodes[place] = episode.to_numpy() if group["is_numpy"][i] else episode
    return episodes


def num_bytes(episode: SingleAgentEpisode) -> int:
    """Returns how large an episode is that is in arrays already."""
    columns = [episode.observations, episode.actions, episode.rewards]
    columns += episode.extra_model_outputs.values()
    return sum(leaf.nbytes for column in columns for leaf in tree.flatten(column.data))


def pack_chunks(chunks: Sequence[Chunk]) -> dict[str, Any]:
    """Returns chunks of episodes as plain values and arrays."""
    return {
        "chunks": [
            {
                "id": chunk.episode.id_,
                "t_started": chunk.episode.env_t_started,
                "t": chunk.episode.env_t,
                "is_terminated": chunk.episode.is_terminated,
                "is_truncated": chunk.episode.is_truncated,
                "weights_seq_nos": list(chunk.weights_seq_nos),
                "num_agents": len(chunk.episode.agent_episodes),
            }
            for chunk in chunks
        ],
        "agents": pack_episodes([e for c in chunks for e in c.episode.agent_episodes.values()]),
    }


def unpack_chunks(
    state: Mapping[str, Any], seats: Mapping[str, Seat], policy_for: Callable[..., str]
) -> list[Chunk]:
    """Returns the chunks that were packed.

    Args:
        state: from `pack_chunks`.
        seats: by seat id.
        policy_for: RLlib's agent-to-module mapping function.
    """

    def spaces_of(seat_id: str, policy_id: str) -> Spaces:
        return seats[seat_id].observation_space, seats[seat_id].action_space

    agents = iter(unpack_episodes(state["agents"], spaces_of))
    chunks = []
    for one in state["chunks"]:
        episode = MultiAgentEpisode(
            id_=one["id"],
            observation_space={s: seat.observation_space for s, seat in seats.items()},
            action_space={s: seat.action_space for s, seat in seats.items()},
            agent_to_module_mapping_fn=policy_for,
            env_t_started=one["t_started"],
        )
        singles = [next(agents) for _ in range(one["num_agents"])]
        episode.agent_episodes = {s.id_.removeprefix(f"{one['id']}_"): s for s in singles}
        episode.env_t = one["t"]
        episode.is_terminated, episode.is_truncated = one["is_terminated"], one["is_truncated"]
        chunks.append(Chunk(episode, one["weights_seq_nos"]))
    return chunks


def _length(buffer: InfiniteLookbackBuffer) -> int:
    """The number of rows, the lookback included."""
    return len(tree.flatten(buffer.data)[0]) if buffer.finalized else len(buffer.data)


def _joined(buffers: list[InfiniteLookbackBuffer]) -> Any:
    """Returns the rows of all buffers, as one array or a tree of arrays ``[rows, ...]``."""
    parts = [b.data if b.finalized else _stacked(b.data) for b in buffers]
    return tree.map_structure(lambda *leaves: np.concatenate(leaves), *parts)


def _stacked(rows: list[Any]) -> Any:
    return tree.map_structure(lambda *leaves: np.stack(leaves), *rows)


def _rows(columns: Any, where: slice) -> list[Any]:
    return list(_each_row(columns, where))


def _each_row(columns: Any, where: slice) -> Iterator[Any]:
    for row in range(where.start, where.stop):
        yield tree.map_structure(lambda column, row=row: column[row], columns)
