"""A simulation that steps many copies of itself at once, and one copy of it as a `Simulation`."""

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
"""Values of a space, one for each of the ``N`` copies: an array ``[N, ...]``; of a Dict a dict of
such arrays, of a Tuple a tuple."""


class VectorStep(NamedTuple):
    """What followed from the actions of all copies; agents are named by their ids.

    Arrays ``[N, A]`` have the agents in the order of `possible_agents`. Rows of agents that are not
    there, and of copies without an episode, may hold anything.
    """

    observations: dict[str, Rows]
    """What agents act on next. It stays as it is until the next step, but for copies that begin."""
    rewards: dict[str, NDArray[Any]]
    """``[N]``; an agent that is left out has 0."""
    present: NDArray[np.bool_]
    """``[N, A]``: who acts next; nobody in a copy that has yet to begin its next episode."""
    terminated: NDArray[np.bool_]
    """``[N, A]``: whose part in an episode has ended in this step."""
    truncated: NDArray[np.bool_]
    """``[N, A]``: whose part was cut off."""
    is_over: NDArray[np.bool_]
    """``[N]``: copies whose episode is over: nobody acts in it any more."""
    final_observations: dict[int, dict[str, Any]]
    """By copy: the last observations of agents that are done, by agent."""
    infos: Mapping[str, Mapping[str, Any]]
    """By agent id or `COMMON`: names to arrays ``[N]``; an array "_name" says whose there are."""
    final_states: dict[int, NDArray[np.float32]]
    """Of the copies whose episode is over: the global state then, if there is one."""

    def of_copy(self, copy: int, agents: Sequence[str], acted: Collection[str]) -> StepResult:
        """Returns what followed in one copy.

        Args:
            copy: which.
            agents: of the simulation.
            acted: those who were there.
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
    """``N`` copies of a simulation."""

    num_copies: int
    possible_agents: tuple[str, ...]
    observation_spaces: dict[str, Space]
    """Of an agent in one copy."""
    action_spaces: dict[str, Space]
    state_size: int | None

    @property
    def present(self) -> NDArray[np.bool_]:
        """``[N, A]``: who acts now, see `VectorStep`."""

    def reset(self, seed: int | None = None) -> dict[str, Rows]:
        """Begins an episode in every copy; returns what agents observe."""

    def begin(self, copy: int, seed: int | None, options: Mapping[str, float]) -> None:
        """Hears that an episode is played from where a copy stands, at the first step of one.

        Args:
            copy: which.
            seed: of the episode; the copy has not been reset with it.
            options: parameters of the episode.
        """

    def ask_options(self, options_of: Callable[[int], Mapping[str, float]]) -> None:
        """Has a function be asked for the parameters of a copy's episode before it begins.

        Raises:
            SimulationError: copies begin their episodes without being told anything.
        """

    def step(self, actions: Mapping[str, Rows]) -> VectorStep:
        """Steps all copies. A copy whose episode ends begins the next one by itself.

        Raises:
            SimulationError: the environment breaks its API.
        """

    def leave_out_state(self) -> None:
        """Hears that nobody asks for the global state, so that it need not be read at ends."""

    def state(self) -> NDArray[np.float32] | None:
        """Returns the global states, float32 ``[N, state_size]``, or None if there is none."""

    def close(self) -> None:
        """Closes the environment; a second call does nothing."""


class OnlyCopy(Around):
    """The one copy of a `VectorSimulation` as an ordinary `Simulation`: to look at, to evaluate.

    Args:
        vector: of one copy.
    """

    def __init__(self, vector: VectorSimulation) -> None:
        super().__init__(vector)
        self._last_state: NDArray[np.float32] | None = None
        self._options: Mapping[str, float] = {}
        self._actions: dict[str, Rows] = {}
        """The last one of every agent: those that have ended are still given one."""

    def reset(
        self, seed: int | None = None, options: Mapping[str, float] | None = None
    ) -> tuple[dict[str, Any], dict[str, dict[str, Any]]]:
        """See `Simulation.reset`; infos are not asked for."""
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
        """Returns what the environment shows, a picture or a list of them."""
        shown = self._inside.render()
        return shown[0] if isinstance(shown, list | tuple) and shown else shown


def row(rows: Rows, copy: int) -> Any:
    """Returns the value of one copy."""

    def value_in(array: Any) -> Any:
        value = array[copy]
        return value if isinstance(value, np.ndarray) else value.item()

    return each_array(value_in, rows)


def copied(value: Any) -> Any:
    """Returns a value that does not change with the environment's buffers."""
    return each_array(lambda one: one.copy() if isinstance(one, np.ndarray) else one, value)


def info_of(info: Mapping[str, Any], copy: int) -> dict[str, Any]:
    """Returns what infos in arrays say of one copy."""
    found: dict[str, Any] = {}
    for name, values in info.items():
        if isinstance(values, np.ndarray) and len(values) > copy:
            there = info.get(f"_{name}")
            if there is None or there[copy]:
                found[name] = values[copy]
    final = info.get("final_info")
    return {**found, **info_of(final, copy)} if isinstance(final, Mapping) else found
