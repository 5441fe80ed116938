"""Turns a server's observations into what its networks read: flattened, scaled, normalised.

Seats read observations through `Observing`. Statistics change only in `add`, which is called for
training episodes when a step has been recorded. So all observations of one step, and all parts of a
team's, are normalised alike, and a refused step leaves no trace. An observation is recorded as it
was acted on, so that a batch's log-probabilities belong to its observations.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from muxrl.protocol.dense import flat_reader
from muxrl.protocol.rows import Kind, index_of, pick_columns
from muxrl.protocol.spaces import Box, Space, box_within, typed_bounds
from muxrl.servers.agents.frames import stacked_space
from muxrl.servers.agents.running_statistics import RunningStatistics
from muxrl.servers.agents.scaling import Scale, Scaling, find_scale
from muxrl.servers.agents.spaces import (
    has_numbers,
    is_read_whole,
    leaves,
    module_observation_reader,
    module_observation_space,
    part_reader,
    read_shape,
    without_bounds,
)
from muxrl.servers.config import ServerPlan

CLIP = 10.0
"""Largest normalised number, as in OpenAI Baselines' `VecNormalize` and Stable-Baselines3."""
_MAX_KINDS = 256
"""Most layouts of kinds for which to remember where agents are in rows."""
_ROUNDING = 1e-7
"""Deviations below this share of the mean are rounding errors of float32, not a signal."""

Reader = Callable[[Any], np.ndarray]


class Normalizer:
    """Normalises observations of one kind: less the mean, by the deviation, within ±`CLIP`.

    Until there are two observations, 0 stands for the mean and 1 for the deviation.

    Args:
        space: of the observations. One-hot parts, truth values and masks in it stay unchanged.
    """

    def __init__(self, space: Space) -> None:
        shape = read_shape(space)
        self.statistics = RunningStatistics(shape)
        found = list(leaves(space))
        numbers = np.concatenate([np.full(leaf.size, leaf.is_number) for leaf in found])
        self._numbers = numbers.reshape(shape)
        self._is_all_numbers = bool(numbers.all())
        self._limit = np.where(self._numbers, CLIP, np.inf)
        self._constants: tuple[np.ndarray, np.ndarray] | None = None

    def constants(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Returns what to subtract, divide by and clip at: float64, of the shape that is read."""
        if self._constants is None:
            mean, deviation = self.statistics.mean, np.sqrt(self.statistics.variance)
            deviation[deviation <= _ROUNDING * np.abs(mean)] = 1.0
            if not self._is_all_numbers:
                mean = np.where(self._numbers, mean, 0.0)
                deviation[~self._numbers] = 1.0
            self._constants = mean, deviation
        return *self._constants, self._limit

    def __call__(self, values: np.ndarray) -> np.ndarray:
        """Returns float64 values normalised, as float32."""
        mean, deviation, limit = self.constants()
        normal = (values - mean) / deviation
        np.maximum(normal, -limit, out=normal)
        return np.minimum(normal, limit, out=normal).astype(np.float32)

    def add(self, batch: np.ndarray) -> None:
        """Counts observations, float64 ``[n, ...]``."""
        self.statistics.add(batch)
        self._constants = None

    def set_state(self, state: Mapping[str, Any]) -> None:
        """Continues with the state of other statistics."""
        self.statistics.set_state(state)
        self._constants = None


class Reading:
    """Turns a conforming value of a space into the float32 array that a network reads.

    Rows of values, ``[..., *shape]``, become rows.

    Args:
        space: of the values.
        scale: scales values by their bounds; None: they stay as they are.
        normalizer: normalises numbers; None: they stay as they are.
    """

    def __init__(self, space: Space, scale: Scale | None, normalizer: Normalizer | None) -> None:
        self.scale = scale
        self.normalizer = normalizer
        # Large means leave float32 no digits for the rest.
        dtype: type[np.floating] = np.float32 if normalizer is None else np.float64
        self._read: Reader = (
            partial(np.array, dtype=dtype) if is_read_whole(space) else flat_reader(space, dtype)
        )

    def __call__(self, value: Any) -> np.ndarray:
        values = self.numbers(value)
        return values if self.normalizer is None else self.normalizer(values)

    @property
    def key(self) -> object:
        """Equal for readings that do the same."""
        return self.scale and self.scale.key, self.normalizer

    def numbers(self, value: Any) -> np.ndarray:
        """Returns values flattened and scaled: float64 if they will be normalised, else float32."""
        array = self._read(value)
        return array if self.scale is None else self.scale.apply(array)


class _Source(NamedTuple):
    """The part of an agent's observation that a normalizer counts."""

    reading: Reading
    part: Callable[[Any], Any]


class Observing:
    """Reads the observations of a server's agents.

    Statistics are kept by policy. If agents of a policy observe different things, as members of a
    team may, each kind of observation has its own statistics; so has a global state.

    Args:
        plan: the server.

    Attributes:
        normalizes: whether numbers are normalised.
        frame_stack: number of an agent's observations that are read at once; see
            `muxrl.servers.agents.frames`. Readers and statistics are for single observations.
    """

    def __init__(self, plan: ServerPlan) -> None:
        self._agents, self._scaling = plan.agents, plan.scale_observations
        self.normalizes, self.frame_stack = plan.normalize_observations, plan.frame_stack
        self._by_policy: dict[str, dict[str, Normalizer]] = {}
        """By policy, then by kind of observation."""
        self._states: dict[str, Normalizer] = {}
        """By kind of global state."""
        self._sources: dict[str, dict[Normalizer, _Source]] = {}
        """By agent, then by normalizer: what it counts of the agent's observation."""
        self._columns: dict[tuple[str, ...], list[tuple[_Source, slice | np.ndarray]]] = {}
        """By the agents of a kind: each source, with the columns of the rows that it counts."""
        self._simulation_state: Reading | None = None
        self._is_frozen = False

    @property
    def reads_as(self) -> Scaling | None:
        """Equal for servers that read equal spaces alike; None: no other server reads alike."""
        return None if self.normalizes or self.frame_stack > 1 else self._scaling

    def space(self, space: Space) -> Box:
        """Returns the space of what is read of a space, with all frames."""
        box = module_observation_space(space)
        scale = find_scale(space, self._scaling)
        if self.normalizes:
            box = Box(box.shape)
        elif scale is not None:
            box = box_within(*((b - scale.low) / scale.width for b in typed_bounds(box)))
        return stacked_space(box, self.frame_stack)

    def reader(self, agent_id: str, space: Space) -> Reader:
        """Returns the reader of the part of an agent's observation with this space, or of rows."""
        return self.reading(agent_id, space) or module_observation_reader(space)

    def state_reader(self, agent_id: str, space: Space) -> Reader:
        """Returns the reader of the global state that an agent observes."""
        reading = self._reading(agent_id, space, self._states)
        return reading or module_observation_reader(space)

    def simulation_state_reader(self, size: int) -> Reader:
        """Returns the reader of the simulation's global state, float32 rows."""
        if not self.normalizes:
            return module_observation_reader(Box((size,)))
        space = Box((size,))
        normalizer = self._states.setdefault("of the simulation", Normalizer(space))
        self._simulation_state = Reading(space, None, normalizer)
        return self._simulation_state

    def reading(self, agent_id: str, space: Space) -> Reading | None:
        """Returns a `Reading` as for `reader`; None: nothing is scaled or normalised."""
        if not self.normalizes and self._scaling == "none":
            return None
        kinds = self._by_policy.setdefault(self._agents[agent_id].policy_id, {})
        return self._reading(agent_id, space, kinds)

    def _reading(self, agent_id: str, space: Space, kinds: dict[str, Normalizer]) -> Reading | None:
        scale = find_scale(space, self._scaling)
        if not self.normalizes or not has_numbers(space):
            return None if scale is None else Reading(space, scale, None)
        normalizer = kinds.setdefault(str(without_bounds(space)), Normalizer(space))
        reading = Reading(space, scale, normalizer)
        part = part_reader(self._agents[agent_id].observation_space, space)
        self._sources.setdefault(agent_id, {})[normalizer] = _Source(reading, part)
        return reading

    # --- statistics ---------------------------------------------------------------------

    def add(self, kinds: Sequence[Kind], rows: Sequence[Any], states: Any) -> None:
        """Counts a training step of many episodes, all of which were read alike.

        Args:
            kinds: of observations; see `muxrl.protocol.rows.Layout.observed`.
            rows: of each kind, ``[E, A, ...]``.
            states: global states ``[E, state_size]``, None if none were sent.
        """
        if self._is_frozen:
            return
        batches: dict[Normalizer, list[np.ndarray]] = {}
        for kind, seen in zip(kinds, rows, strict=True):
            for (reading, part), where in self._columns_of(kind.agents):
                assert reading.normalizer is not None
                counted = reading.numbers(part(pick_columns(seen, where)))
                shape = reading.normalizer.statistics.mean.shape
                batches.setdefault(reading.normalizer, []).append(counted.reshape(-1, *shape))
        if self._simulation_state is not None and states is not None:
            reading = self._simulation_state
            assert reading.normalizer is not None
            batches[reading.normalizer] = [reading.numbers(states)]
        for normalizer, batch in batches.items():
            normalizer.add(np.concatenate(batch))

    def _columns_of(self, agents: Sequence[str]) -> list[tuple[_Source, slice | np.ndarray]]:
        key = tuple(agents)
        if key not in self._columns:
            if len(self._columns) >= _MAX_KINDS:
                self._columns.clear()
            found: dict[Normalizer, tuple[_Source, list[int]]] = {}
            for i, agent_id in enumerate(agents):
                for normalizer, source in self._sources.get(agent_id, {}).items():
                    found.setdefault(normalizer, (source, []))[1].append(i)
            self._columns[key] = [(one, index_of(at)) for one, at in found.values()]
        return self._columns[key]

    def freeze(self) -> None:
        """Keeps the statistics unchanged from now on."""
        self._is_frozen = True

    def get_state(self) -> dict[str, Any]:
        """Returns the statistics, as plain values and arrays."""
        return {
            "policies": {
                policy_id: {kind: n.statistics.get_state() for kind, n in kinds.items()}
                for policy_id, kinds in self._by_policy.items()
            },
            "states": {kind: n.statistics.get_state() for kind, n in self._states.items()},
        }

    def set_state(
        self,
        state: Mapping[str, Any],
        *,
        names: Mapping[str, str] | None = None,
        has_states: bool = True,
    ) -> None:
        """Continues with statistics that `get_state` returned.

        Args:
            state: maybe of another server.
            names: names of policies in the state, if they differ.
            has_states: whether statistics of global states are needed; acting needs none.

        Raises:
            ValueError: the state lacks a policy, or is of other observations.
        """
        for policy_id, kinds in self._by_policy.items():
            name = (names or {}).get(policy_id, policy_id)
            whose = f"the observations of policy {name!r}"
            _set_states(kinds, state["policies"].get(name, {}), whose)
        if has_states:
            _set_states(self._states, state["states"], "the global state")


def _set_states(
    kinds: Mapping[str, Normalizer], states: Mapping[str, Mapping[str, Any]], whose: str
) -> None:
    for kind, normalizer in kinds.items():
        if kind not in states:
            raise ValueError(
                f"the checkpoint has no statistics of {whose} in {kind}, only in "
                f"{', '.join(states) or 'nothing'}; is it the same task?"
            )
        normalizer.set_state(states[kind])
