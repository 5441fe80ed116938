"""A simulation that steps many copies of itself at once, and one copy of it as a `Simulation`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from muxrl.client.adapters.simulation import SimulationError, StepResult
from muxrl.protocol.rows import each_array
from muxrl.protocol.spaces import Space

Rows = Any
"""Values of a space, one for each of the ``N`` copies: an array ``[N, ...]``; of a Dict a dict of
such arrays, of a Tuple a tuple."""


class VectorStep(NamedTuple):
    """What followed from the actions of all copies; agents are named by their ids."""

    observations: dict[str, Rows]
    """What agents act on next, in copies in which they do."""
    rewards: dict[str, NDArray[Any]]
    """``[N]``."""
    terminated: NDArray[np.bool_]
    """``[N]``: copies whose episode has ended."""
    truncated: NDArray[np.bool_]
    """``[N]``: those whose episode was cut off."""
    final_observations: dict[int, dict[str, Any]]
    """Of the copies whose episode is over: the last observations by agent."""
    is_acting: NDArray[np.bool_]
    """``[N]``: False in a copy that begins its next episode one step later."""
    infos: Mapping[str, Mapping[str, Any]]
    """By agent id or `COMMON`: names to arrays ``[N]``; an array "_name" says whose there are."""
    final_states: dict[int, NDArray[np.float32]]
    """Of the copies whose episode is over: the global state then, if there is one."""


class VectorSimulation(Protocol):
    """``N`` copies of a simulation. In each, all agents act in every step of an episode."""

    num_copies: int
    possible_agents: tuple[str, ...]
    observation_spaces: dict[str, Space]
    """Of an agent in one copy."""
    action_spaces: dict[str, Space]
    state_size: int | None

    def reset(self, seed: int | None = None) -> dict[str, Rows]:
        """Begins an episode in every copy; returns what agents observe."""
        ...

    def ask_options(self, options_of: Callable[[int], Mapping[str, float]]) -> None:
        """Has a function be asked for the parameters of a copy's episode before it begins.

        Raises:
            SimulationError: copies begin their episodes without being told anything.
        """
        ...

    def step(self, actions: Mapping[str, Rows]) -> VectorStep:
        """Steps all copies. A copy whose episode ends begins the next one by itself.

        Raises:
            SimulationError: the environment breaks its API.
        """
        ...

    def state(self) -> NDArray[np.float32] | None:
        """Returns the global states, float32 ``[N, state_size]``, or None if there is none."""
        ...

    def close(self) -> None:
        """Closes the environment; a second call does nothing."""
        ...


class OnlyCopy:
    """The one copy of a `VectorSimulation` as an ordinary `Simulation`: to look at, to evaluate.

    Args:
        vector: of one copy.
    """

    def __init__(self, vector: VectorSimulation) -> None:
        if vector.num_copies != 1:
            raise SimulationError(f"one copy was asked for, and there are {vector.num_copies}")
        self._vector = vector
        self.possible_agents = vector.possible_agents
        self.observation_spaces = vector.observation_spaces
        self.action_spaces = vector.action_spaces
        self.state_size = vector.state_size
        self.state_problem: str = getattr(vector, "state_problem", "")
        self._last_state: NDArray[np.float32] | None = None
        self._options: Mapping[str, float] = {}

    def reset(
        self, seed: int | None = None, options: Mapping[str, float] | None = None
    ) -> tuple[dict[str, Any], dict[str, dict[str, Any]]]:
        """See `Simulation.reset`; infos are not asked for."""
        self._last_state = None
        self._options = options or {}
        if options:
            self._vector.ask_options(lambda _: self._options)
        return {a: copied(row(rows, 0)) for a, rows in self._vector.reset(seed).items()}, {}

    def step(self, actions: dict[str, Any]) -> StepResult:
        """See `Simulation.step`."""
        given = {agent: _one_row(actions[agent]) for agent in self.possible_agents}
        result = self._vector.step(given)
        is_terminated, is_truncated = bool(result.terminated[0]), bool(result.truncated[0])
        is_over = is_terminated or is_truncated
        done = dict.fromkeys(self.possible_agents, True)
        self._last_state = result.final_states.get(0)
        return StepResult(
            {} if is_over else {a: copied(row(rows, 0)) for a, rows in result.observations.items()},
            {agent: float(rewards[0]) for agent, rewards in result.rewards.items()},
            done if is_terminated else {},
            done if is_over and not is_terminated else {},
            copied(result.final_observations.get(0, {})),
            {who: _info_of(info, 0) for who, info in result.infos.items()},
            is_over,
        )

    def state(self) -> NDArray[np.float32] | None:
        """See `Simulation.state`."""
        if self._last_state is not None:
            return self._last_state
        states = self._vector.state()
        return None if states is None else states[0].copy()

    def render(self) -> Any:
        """Returns what the environment shows, a picture or a list of them."""
        shown = self._vector.render()  # type: ignore[attr-defined]
        return shown[0] if isinstance(shown, list | tuple) and shown else shown

    def close(self) -> None:
        """See `Simulation.close`."""
        self._vector.close()


def row(rows: Rows, copy: int) -> Any:
    """Returns the value of one copy."""
    if isinstance(rows, Mapping):
        return {key: row(part, copy) for key, part in rows.items()}
    if isinstance(rows, list | tuple):
        return tuple(row(part, copy) for part in rows)
    value = rows[copy]
    return value if isinstance(value, np.ndarray) else value.item()


def copied(value: Any) -> Any:
    """Returns a value that does not change with the environment's buffers."""
    return each_array(lambda one: one.copy() if isinstance(one, np.ndarray) else one, value)


def _one_row(value: Any) -> Rows:
    if isinstance(value, Mapping):
        return {key: _one_row(part) for key, part in value.items()}
    if isinstance(value, tuple):
        return tuple(map(_one_row, value))
    return np.array([value])


def _info_of(info: Mapping[str, Any], copy: int) -> dict[str, Any]:
    """Returns what infos in arrays say of one copy."""
    found: dict[str, Any] = {}
    for name, values in info.items():
        if isinstance(values, np.ndarray) and len(values) > copy:
            there = info.get(f"_{name}")
            if there is None or there[copy]:
                found[name] = values[copy]
    final = info.get("final_info")
    return {**found, **_info_of(final, copy)} if isinstance(final, Mapping) else found
