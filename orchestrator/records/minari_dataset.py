"""Writes the recorded episodes of one agent as a Minari dataset, for offline learning elsewhere."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from muxrl.orchestrator.records.played import Row, read_episodes, spaces_of
from muxrl.protocol.spaces import Space, TupleSpace, parts_of
from muxrl.protocol.suggestions import similar_or_known
from muxrl.servers.gymnasium_spaces import to_gymnasium


def write_dataset(files: Sequence[Path], dataset_id: str, agent: str | None, about: str) -> int:
    """Writes a dataset to Minari's folder (``MINARI_DATASETS_PATH``).

    An agent's step lasts until its next observation, and has all rewards until then. If an episode
    ends without a final observation, the last observation is used instead. An agent that comes
    back after its end has an episode for each of its lives.

    Args:
        files: Parquet files of `muxrl.orchestrator.records.played`.
        dataset_id: such as ``chase/prey-v0``.
        agent: whose steps are written; None: the only agent's.
        about: description of the dataset.

    Returns:
        The number of episodes.

    Raises:
        ValueError: there is no such agent, or no episode of it, or Minari refuses the name.
        ModuleNotFoundError: Minari is not installed.
    """
    import minari
    from minari.data_collector.episode_buffer import EpisodeBuffer

    spaces = spaces_of(files[-1])
    agent = agent or (next(iter(spaces)) if len(spaces) == 1 else "")
    if agent not in spaces:
        hint = similar_or_known(agent, spaces, "agents are")
        raise ValueError(
            f"a dataset holds what one agent did, and no agent is named {agent!r}{hint}"
        )
    observation_space, action_space = spaces[agent]
    buffers: list[Any] = []
    for file in files:
        for rows, parameters in read_episodes(file):
            for steps in _lives([row for row in rows if row["agent"] == agent]):
                last = steps[-1]
                final = last["final_observation"]
                seen = [step["observation"] for step in steps]
                seen.append(seen[-1] if final is None else final)
                ends = [step is last for step in steps]
                buffers.append(
                    EpisodeBuffer(
                        id=len(buffers),
                        seed=last["seed"],
                        options=parameters or None,
                        observations=_in_columns(observation_space, seen),
                        actions=_in_columns(action_space, [step["action"] for step in steps]),
                        rewards=[step["reward"] for step in steps],
                        terminations=[end and last["terminated"] for end in ends],
                        truncations=[end and not last["terminated"] for end in ends],
                        infos={},
                    )
                )
    if not buffers:
        raise ValueError(f"agent {agent!r} acts in no recorded episode")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # about a missing author's address and environment
        minari.create_dataset_from_buffers(
            dataset_id,
            buffers,
            observation_space=to_gymnasium(observation_space),
            action_space=to_gymnasium(action_space),
            description=about,
            data_format="hdf5",
        )
    return len(buffers)


def _lives(rows: Sequence[Row]) -> list[list[Row]]:
    """Returns an agent's rows in which it acts, as one list for each of its lives.

    Each row also has the rewards that came before the agent's next action, and its end, if any.
    """
    lives: list[list[Row]] = []
    for row in rows:
        last = lives[-1][-1] if lives else None
        if row["action"] is not None:
            if last is None or last["terminated"] or last["truncated"]:
                lives.append([])
            lives[-1].append(dict(row))
        elif last is not None:
            last["reward"] += row["reward"]
            for key in ("terminated", "truncated"):
                last[key] |= row[key]
            if last["final_observation"] is None:
                last["final_observation"] = row["final_observation"]
    return lives


def _in_columns(space: Space, values: Sequence[Any]) -> Any:
    """Returns values of a space with one list for each part of the space."""
    parts = parts_of(space)
    if parts is None:
        return list(values)
    columns = {key: _in_columns(part, [value[key] for value in values]) for key, part in parts}
    return tuple(columns.values()) if isinstance(space, TupleSpace) else columns
