"""Records what was played step by step, and reads and writes it as Parquet files.

Each agent has a row for each env step. Its keys:

=====================================  ==========================================================
``seed``                               the episode's; a vector environment is not reset with it
``t``                                  env step, from 0
``agent``
``observation``, ``action``            None if the agent did not act but got a reward, or ended
``reward``, ``terminated``,            what followed the action
``truncated``
``final_observation``                  of an agent that is done, if the simulation has one
=====================================  ==========================================================

In Parquet, observations and actions are lists of numbers: all parts of the space in its order, each
flattened row by row. ``parameter.NAME`` is a column for each parameter of the episode. The file's
metadata has the agents' spaces, from which `read_episodes` restores the original values.
"""

from __future__ import annotations

import contextlib
import itertools
import logging
import os
import random
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from muxrl.client.adapters.around import Around
from muxrl.client.adapters.simulation import Simulation, StepResult
from muxrl.client.adapters.vector_simulation import (
    Rows,
    VectorSimulation,
    VectorStep,
    copied,
    row,
)
from muxrl.protocol.spaces import Discrete, Space, TupleSpace, leaf_type, parts_of

logger = logging.getLogger(__name__)

Row = dict[str, Any]
_SPACES = b"muxrl.spaces"
_PARAMETER = "parameter."
_VALUES = ("observation", "action", "final_observation")


Emit = Callable[[list[Row], Mapping[str, float]], None]
"""A callback for an episode that has ended: it gets the rows and the parameters."""


class _Episode:
    """Collects the rows of an open episode."""

    def __init__(
        self, seed: int | None, parameters: Mapping[str, float], observations: Mapping[str, Any]
    ) -> None:
        self._seed, self._parameters = seed, parameters
        self._t, self._seen = 0, observations
        self._rows: list[Row] = []

    def add(self, actions: Mapping[str, Any], result: StepResult, emit: Emit) -> None:
        """Adds a step; passes all rows to `emit` if the episode is over."""
        done = result.terminations.keys() | result.truncations.keys()
        for agent in dict.fromkeys((*self._seen, *result.rewards, *sorted(done))):
            row = {
                "seed": self._seed,
                "t": self._t,
                "agent": agent,
                "observation": self._seen.get(agent),
                "action": actions.get(agent),
                "reward": result.rewards.get(agent, 0.0),
                "terminated": agent in result.terminations,
                "truncated": agent in result.truncations,
            }
            if agent in result.final_observations:
                row["final_observation"] = result.final_observations[agent]
            self._rows.append(row)
        self._t += 1
        self._seen = result.observations
        if result.is_over:
            emit(self._rows, self._parameters)


class Recorded(Around):
    """Wraps a simulation, and passes on the rows of each episode when it ends.

    Args:
        simulation: the simulation to record.
        emit: is called with the rows and parameters of each episode.
        wants: whether an episode with this seed is recorded.
    """

    def __init__(
        self,
        simulation: Simulation,
        emit: Emit,
        wants: Callable[[int | None], bool] = lambda seed: True,
    ) -> None:
        super().__init__(simulation)
        self._emit, self._wants = emit, wants
        self._episode: _Episode | None = None

    def reset(
        self, seed: int | None = None, options: Mapping[str, float] | None = None
    ) -> tuple[dict[str, Any], dict[str, dict[str, Any]]]:
        observations, infos = self._inside.reset(seed, options)
        self._episode = _Episode(seed, options or {}, observations) if self._wants(seed) else None
        return observations, infos

    def step(self, actions: dict[str, Any]) -> StepResult:
        result: StepResult = self._inside.step(actions)
        if self._episode:
            self._episode.add(actions, result, self._emit)
        return result


class RecordedVector(Around):
    """Records the episodes of a `VectorSimulation`'s copies; see `Recorded`."""

    def __init__(
        self, simulation: VectorSimulation, emit: Emit, wants: Callable[[int | None], bool]
    ) -> None:
        super().__init__(simulation)
        self._emit, self._wants = emit, wants
        self._episodes: dict[int, _Episode] = {}
        """By copy: its open episode, if it is recorded."""
        self._observations: Mapping[str, Rows] = {}

    def reset(self, seed: int | None = None) -> dict[str, Rows]:
        self._episodes = {}
        self._observations = self._inside.reset(seed)
        return dict(self._observations)

    def begin(self, copy: int, seed: int | None, options: Mapping[str, float]) -> None:
        """See `VectorSimulation.begin`."""
        self._inside.begin(copy, seed, options)
        self._episodes.pop(copy, None)  # left by an episode that was lost
        if self._wants(seed):
            seen = {a: copied(row(rows, copy)) for a, rows in self._observations.items()}
            self._episodes[copy] = _Episode(seed, options, seen)

    def step(self, actions: Mapping[str, Rows]) -> VectorStep:
        agents = self.possible_agents
        acting = {c: self._inside.present[c].tolist() for c in self._episodes}
        step: VectorStep = self._inside.step(actions)
        self._observations = step.observations
        for copy, here in acting.items():
            chosen = {a: copied(row(actions[a], copy)) for a in itertools.compress(agents, here)}
            self._episodes[copy].add(chosen, step.of_copy(copy, agents, chosen), self._emit)
            if step.is_over[copy]:
                del self._episodes[copy]
        return step


def share_of(seed: int | None, share: float) -> bool:
    """Whether an episode is in a random share of all; the seed decides, also in a resumed run."""
    return random.Random(f"record/{seed}").random() < share


class ParquetFile:
    """Writes a file in which each episode is a row group.

    Args:
        path: of the new file, which appears with `close`.
    """

    def __init__(self, path: Path) -> None:
        self._path, self._part = path, path.with_name(f".{path.name}.part")
        self._writer: Any = None

    def write(
        self, simulation: Simulation, rows: list[Row], parameters: Mapping[str, float]
    ) -> None:
        """Adds an episode; all episodes of a file have the same spaces and parameter names."""
        import pyarrow as pa
        from pyarrow import parquet

        spaces = {
            agent: (simulation.observation_spaces[agent], simulation.action_spaces[agent])
            for agent in simulation.possible_agents
        }

        def numbers_of(name: str, row: Row) -> list[float] | None:
            value = row.get(name)
            space = spaces[row["agent"]][name == "action"]
            return None if value is None else list(_flat(space, value))

        numbers = pa.list_(pa.float64())
        columns: dict[str, Any] = {
            "seed": (pa.int64(), [row["seed"] for row in rows]),
            "t": (pa.int32(), [row["t"] for row in rows]),
            "agent": (pa.string(), [row["agent"] for row in rows]),
            **{name: (numbers, [numbers_of(name, row) for row in rows]) for name in _VALUES},
            "reward": (pa.float64(), [row["reward"] for row in rows]),
            "terminated": (pa.bool_(), [row["terminated"] for row in rows]),
            "truncated": (pa.bool_(), [row["truncated"] for row in rows]),
        }
        for name, value in parameters.items():
            columns[_PARAMETER + name] = (pa.float64(), [float(value)] * len(rows))
        schema = pa.schema(
            [(name, kind) for name, (kind, _) in columns.items()],
            {_SPACES: msgspec.json.encode(spaces)},
        )
        table = pa.table([pa.array(v, kind) for kind, v in columns.values()], schema=schema)
        if self._writer is None:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            self._writer = parquet.ParquetWriter(self._part, schema)
        self._writer.write_table(table)

    def close(self) -> None:
        """Moves the file to its path, if an episode was written."""
        if self._writer is not None:
            self._writer.close()
            os.replace(self._part, self._path)


def keep_share(simulation: Any, folder: Path, share: float, *, is_vector: bool = False) -> Any:
    """Wraps a simulation so that a share of its episodes is written, each to ``SEED.parquet``.

    If an episode cannot be written, on a full disk for instance, the run goes on without it.
    """

    def write(rows: list[Row], parameters: Mapping[str, float]) -> None:
        try:
            with contextlib.closing(ParquetFile(folder / f"{rows[0]['seed']}.parquet")) as file:
                file.write(simulation, rows, parameters)
        except OSError as error:
            logger.warning("an episode could not be recorded: %s", error)

    around = RecordedVector if is_vector else Recorded
    return around(simulation, write, lambda seed: share_of(seed, share))


def read_episodes(path: Path) -> Iterator[tuple[list[Row], dict[str, float]]]:
    """Yields the rows of each episode in a file, with the original values, and its parameters.

    Raises:
        OSError: the file cannot be read.
        ValueError: the file holds no episodes.
    """
    from pyarrow import parquet

    file, spaces = parquet.ParquetFile(path), spaces_of(path)
    for group in range(file.num_row_groups):
        rows: list[Row] = file.read_row_group(group).to_pylist()
        names = [name for name in rows[0] if name.startswith(_PARAMETER)]
        parameters = {name.removeprefix(_PARAMETER): rows[0][name] for name in names}
        for one in rows:
            for name in names:
                del one[name]
            for name in _VALUES:
                if one[name] is not None:
                    space = spaces[one["agent"]][name == "action"]
                    one[name] = _value(space, iter(one[name]))
        yield rows, parameters


def spaces_of(path: Path) -> dict[str, tuple[Space, Space]]:
    """Returns the observation space and action space of each agent; raises as `read_episodes`."""
    from pyarrow import parquet

    metadata = parquet.read_schema(path).metadata or {}
    if _SPACES not in metadata:
        raise ValueError(f"{path} holds no episodes that muxrl recorded")
    return msgspec.json.decode(metadata[_SPACES], type=dict[str, tuple[Space, Space]])


def _flat(space: Space, value: Any) -> Iterator[float]:
    parts = parts_of(space)
    if parts is None:
        yield from np.asarray(value, np.float64).ravel().tolist()
    else:
        for key, part in parts:
            yield from _flat(part, value[key])


def _value(space: Space, numbers: Iterator[float]) -> Any:
    parts = parts_of(space)
    if parts is not None:
        values = {key: _value(part, numbers) for key, part in parts}
        return tuple(values.values()) if isinstance(space, TupleSpace) else values
    if isinstance(space, Discrete):
        return int(next(numbers))
    dtype, shape = leaf_type(space)
    flat = [next(numbers) for _ in range(int(np.prod(shape)))]
    return np.array(flat, dtype).reshape(shape)
