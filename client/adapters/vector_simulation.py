"""The interface of simulations that step many copies of themselves at once, in arrays."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, NamedTuple, Protocol, cast

import numpy as np
from numpy.typing import NDArray

from muxrl.client.adapters.around import Around
from muxrl.client.adapters.simulation import StepResult
from muxrl.protocol.rows import each_array
from muxrl.protocol.spaces import Space

Rows = Any
"""A value of a space for each of the ``N`` copies: an array ``[N, ...]``; for a Dict a dict of such
arrays, for a Tuple a tuple of them."""


class VectorStep(NamedTuple):
    """The result of one step of all copies, by agent id.

    Arrays ``[N, A]`` have the agents in the order of `possible_agents`. Rows of absent agents, and
    of copies without an episode, may hold anything.
    """

    observations: dict[str, Rows]
    """Observations to act on next. Unchanged until the next step, except in copies that begin."""
    rewards: dict[str, NDArray[Any]]
    """Rewards ``[N]``; an agent that is left out gets 0."""
    present: NDArray[np.bool_]
    """``[N, A]``: who acts next; no agent in a copy that has yet to begin its next episode."""
    terminated: NDArray[np.bool_]
    """``[N, A]``: agents that have terminated in this step."""
    truncated: NDArray[np.bool_]
    """``[N, A]``: agents that were truncated in this step."""
    is_over: NDArray[np.bool_]
    """``[N]``: copies whose episode is over, so that no agent acts in it any more."""
    final_observations: dict[int, dict[str, Any]]
    """By copy, then by agent: the final observations of agents that are done."""
    infos: Mapping[str, Mapping[str, Any]]
    """By agent id or `COMMON`, then by name: an array ``[N]``; an array "_name" says which copies
    have a value, if not all."""
    final_states: dict[int, NDArray[np.float32]]
    """By copy whose episode is over: the global state at its end, if there is one."""

    def of_copy(self, copy: int, agents: Sequence[str], acted: Collection[str]) -> StepResult:
        """Returns the result of one copy.

        Args:
            copy: index of the copy.
            agents: all agents of the simulation.
            acted: agents that acted in the copy.
        """
        is_over = bool(self.is_over[copy])
        acting, terminated, truncated = (
            list(itertools.compress(agents, flags[copy].tolist()))
            for flags in (self.present, self.terminated, self.truncated)
        )
        return StepResult(
            {} if is_over else {a: copied(row(self.observations[a], copy)) for a in acting},
            {a: float(rewards[copy]) for a, rewards in self.rewards.items() if a in acted},
            dict.fromkeys(terminated, True),
            dict.fromkeys(truncated, True),
            copied(self.final_observations.get(copy, {})),
            {who: info_of(info, copy) for who, info in self.infos.items()},
            is_over,
        )


class VectorSimulation(Protocol):
    """``N`` copies of a simulation that are stepped together, in arrays."""

    num_copies: int
    possible_agents: tuple[str, ...]
    observation_spaces: dict[str, Space]
    """By agent: its space in a single copy."""
    action_spaces: dict[str, Space]
    state_size: int | None

    @property
    def present(self) -> NDArray[np.bool_]:
        """``[N, A]``: who acts now; see `VectorStep`."""

    def reset(self, seed: int | None = None) -> dict[str, Rows]:
        """Begins an episode in every copy; returns the observations."""

    def begin(self, copy: int, seed: int | None, options: Mapping[str, float]) -> None:
        """Is called when an episode starts in a copy, which stands at the first step of one.

        Args:
            copy: index of the copy.
            seed: of the episode; the copy has not been reset with it.
            options: parameters of the episode.
        """

    def ask_options(self, options_of: Callable[[int], Mapping[str, float]]) -> None:
        """Sets the function that gives the parameters of a copy's next episode.

        Raises:
            SimulationError: copies begin their episodes without taking parameters.
        """

    def step(self, actions: Mapping[str, Rows]) -> VectorStep:
        """Steps all copies. A copy whose episode ends begins the next one by itself.

        Raises:
            SimulationError: the environment breaks its API.
        """

    def leave_out_state(self) -> None:
        """Leaves out the global state from now on: no server reads it, so ends need none either."""

    def state(self) -> NDArray[np.float32] | None:
        """Returns the global states, float32 ``[N, state_size]``, or None if there is none."""

    def close(self) -> None:
        """Closes the environment; a second call does nothing."""


class OnlyCopy(Around):
    """A `VectorSimulation` with one copy as an ordinary `Simulation`: for looks and evaluations.

    Args:
        vector: a simulation with one copy.
    """

    def __init__(self, vector: VectorSimulation) -> None:
        super().__init__(vector)
        self._last_state: NDArray[np.float32] | None = None
        self._options: Mapping[str, float] = {}
        self._actions: dict[str, Rows] = {}
        """The last action of every agent; agents that have ended still need one."""

    def reset(
        self, seed: int | None = None, options: Mapping[str, float] | None = None
    ) -> tuple[dict[str, Any], dict[str, dict[str, Any]]]:
        """See `Simulation.reset`; infos are left out."""
        self._last_state = None
        self._options = options or {}
        if options:
            self._inside.ask_options(lambda _: self._options)
        return {a: copied(row(rows, 0)) for a, rows in self._inside.reset(seed).items()}, {}

    def step(self, actions: dict[str, Any]) -> StepResult:
        """See `Simulation.step`."""
        self._actions |= each_array(lambda one: np.array([one]), actions)
        result = self._inside.step(self._actions)
        self._last_state = result.final_states.get(0)
        return cast(StepResult, result.of_copy(0, self.possible_agents, actions))

    def state(self) -> NDArray[np.float32] | None:
        """See `Simulation.state`."""
        if self._last_state is not None:
            return self._last_state
        states = self._inside.state()
        return None if states is None else states[0].copy()

    def render(self) -> Any:
        """Returns the picture of the copy."""
        shown = self._inside.render()
        return shown[0] if isinstance(shown, list | tuple) and shown else shown


def row(rows: Rows, copy: int) -> Any:
    """Returns the value of one copy."""

    def value_in(array: Any) -> Any:
        value = array[copy]
        return value if isinstance(value, np.ndarray) else value.item()

    return each_array(value_in, rows)


def copied(value: Any) -> Any:
    """Returns a copy of a value, as the environment may overwrite its arrays."""
    return each_array(lambda one: one.copy() if isinstance(one, np.ndarray) else one, value)


def info_of(info: Mapping[str, Any], copy: int) -> dict[str, Any]:
    """Returns the infos of one copy out of infos in arrays, nested ones too."""
    found: dict[str, Any] = {}
    final = info.get("final_info")
    for name, values in info.items():
        there = info.get(f"_{name}")
        if (there is not None and not there[copy]) or (name[:1] == "_" and name[1:] in info):
            continue
        if isinstance(values, Mapping):
            if values is not final:
                found[name] = info_of(values, copy)
        elif isinstance(values, np.ndarray) and values.ndim and len(values) > copy:
            found[name] = values[copy]
    return {**found, **info_of(final, copy)} if isinstance(final, Mapping) else found
