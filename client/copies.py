"""Copies of a simulation, each with the episode of its slot: what a loop has them do.

A loop knows episodes, seeds and budgets; copies carry values between simulations and the table of
open episodes, in dicts (`SingleCopies`) or in arrays (`VectorCopies`).
"""

from __future__ import annotations

import itertools
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, ClassVar, NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from muxrl.client.adapters.simulation import Simulation, SimulationError, StepResult
from muxrl.client.adapters.vector_simulation import Rows, VectorSimulation, VectorStep
from muxrl.client.episode_metrics import MetricCollector
from muxrl.client.errors import EpisodeMisuse
from muxrl.client.multiplexer import MultiplexingClient
from muxrl.client.outbox import Outbox
from muxrl.protocol.user_errors import one_line, user_frame

T = TypeVar("T")

_MOST_IDLE = 10_000
"""Steps in a row in which no copy of a vector acts."""


class SimulationFailed(RuntimeError):
    """The simulation raised; its own exception is the cause.

    Attributes:
        place: where in the user's code, and of which type, to be compared; "" if not known.
    """

    place: str = ""

    @classmethod
    def of(cls, verb: str, error: BaseException, remedy: str = "") -> SimulationFailed:
        """Returns what to raise from an exception in one of the simulation's methods."""
        text = str(error) if isinstance(error, SimulationError) else one_line(error)
        failed = cls(f"{text}, in {verb}() of the simulation{remedy}")
        frame = user_frame(error)
        failed.place = f"{frame.filename}:{frame.lineno} {type(error)}" if frame else text
        if isinstance(error, OSError):  # from outside, and may be gone the next time
            failed.place = ""
        return failed


class Over(NamedTuple):
    """An episode that the simulation has ended; what else is to be said of its end."""

    copy: int
    is_truncated: bool
    """Whether agents that are not known to be done were truncated, rather than terminated."""
    final_observations: Mapping[str, Any]
    """Theirs."""
    state: Any
    """The global state, if values are to be bootstrapped."""


class Copies(ABC):
    """``N`` copies of a simulation; copy ``i`` has slot ``i`` of the table.

    Args:
        num: N.
        agents: ids of their agents.
        client: where actions come from.
        metrics: see `MetricCollector`.

    Raises:
        AssignmentError: an agent belongs to no server.
    """

    begin_on_request: ClassVar[bool]
    """Whether each begins an episode, with a seed, when it is told, and is stepped by itself. Else
    all are stepped together, and begin their episodes by themselves."""

    def __init__(
        self,
        num: int,
        agents: Iterable[str],
        client: MultiplexingClient,
        metrics: Mapping[str, str],
    ) -> None:
        client.check_agents(agents)
        self.num = num
        self.num_env_steps = 0
        """Of all of them, so far."""
        self.table = client.new_table(num)
        """Of the open episodes."""
        self.metrics = MetricCollector(metrics, num)
        """Of these."""
        self._has_metrics = bool(metrics)
        self._wants_state = client.wants_state

    @abstractmethod
    def num_steps(self, copy: int) -> int:
        """Returns the env steps of a copy's episode, also just after its end."""

    def ask_options(self, options_of: Callable[[int], Mapping[str, float]]) -> None:  # noqa: B027
        """Has a function be asked for the parameters of episodes that begin by themselves.

        Raises:
            SimulationError: copies begin their episodes without being told anything.
        """

    def reset(self, seed: int | None) -> None:  # noqa: B027
        """Begins the first episode in every copy, if they begin by themselves."""

    def may_begin(self, copy: int) -> bool:
        """Whether the episode that a copy is at, or can be reset to, is at its first step."""
        return True

    @abstractmethod
    def begin(self, copy: int, seed: int | None, parameters: Mapping[str, float]) -> None:
        """Begins an episode in a copy, or notes that one has begun where it stands."""

    @abstractmethod
    def ask(self, outbox: Outbox) -> None:
        """Adds the next step of all that have not been asked since they began or were stepped."""

    @abstractmethod
    def step(self, copies: Sequence[int]) -> Iterator[Over]:
        """Steps copies with the actions that were answered, and logs what followed.

        Yields:
            Those whose episode is over, each of which may begin the next one before the others
            are stepped.

        Raises:
            SimulationFailed: the simulation raised, or broke its rules.
        """

    def _call(self, verb: str, call: Callable[..., T], *args: Any) -> T:
        try:
            return call(*args)
        except (Exception, SystemExit) as error:  # this one would end the process in silence
            raise SimulationFailed.of(verb, error) from error

    def _state_of(self, simulation: Any) -> Any:
        if not self._wants_state:
            return None
        try:
            return simulation.state()
        except (Exception, SystemExit) as error:
            remedy = ", asked for the global state; with use_global_state: false servers do without"
            raise SimulationFailed.of("state", error, remedy) from error


class SingleCopies(Copies):
    """Ordinary simulations, side by side: each is reset and stepped by itself, in dicts by agent.

    Args:
        simulations: one for each slot.
        client, metrics: see `Copies`.
    """

    begin_on_request = True

    def __init__(
        self,
        simulations: Sequence[Simulation],
        client: MultiplexingClient,
        metrics: Mapping[str, str],
    ) -> None:
        agents = {agent: None for one in simulations for agent in one.possible_agents}
        super().__init__(len(simulations), agents, client, metrics)
        self._simulations = simulations
        self._num_steps = [0] * self.num
        self._acting: list[Mapping[str, Any]] = [{}] * self.num
        """What those observe who act next."""
        self._asking: list[int] = []
        self._states: list[Any] = [None] * self.num

    def num_steps(self, copy: int) -> int:
        return self._num_steps[copy]

    def begin(self, copy: int, seed: int | None, parameters: Mapping[str, float]) -> None:
        reset, given = self._simulations[copy].reset, (parameters,) if parameters else ()
        self._num_steps[copy] = 0
        self.metrics.clear(copy)
        self._observe(copy, self._call("reset", reset, seed, *given)[0])

    def _observe(self, copy: int, observations: Mapping[str, Any]) -> None:
        self._acting[copy] = observations
        self._asking.append(copy)
        self._states[copy] = self._state_of(self._simulations[copy])

    def ask(self, outbox: Outbox) -> None:
        if not (asking := self._asking):
            return
        # Those that have begun are the last: in order, episodes stay rows beside each other.
        asking.sort()
        seen = [self._acting[copy] for copy in asking]
        self.table.step(outbox, asking, seen, [self._states[copy] for copy in asking])
        self._asking = []

    def step(self, copies: Sequence[int]) -> Iterator[Over]:
        table = self.table
        for copy in copies:
            simulation, chosen = self._simulations[copy], table.actions[copy]
            actions = {agent_id: chosen[agent_id] for agent_id in self._acting[copy]}
            result = self._call("step", simulation.step, actions)
            num_steps = 1 + len(result.earlier_infos)
            self._num_steps[copy] += num_steps
            self.num_env_steps += num_steps
            if self._has_metrics:
                self._note_infos(copy, result)
            terminations, truncations = result.terminations, result.truncations
            table.log(copy, result.rewards, terminations, truncations, result.final_observations)
            if not result.is_over:
                self._observe(copy, result.observations)
                continue
            state = self._state_of(simulation) if table.wants_state_at_end(copy) else None
            yield Over(copy, bool(truncations) and not terminations, {}, state)

    def _note_infos(self, copy: int, result: StepResult) -> None:
        try:
            for infos in (*result.earlier_infos, result.infos):
                self.metrics.add(infos, copy)
        except SimulationError as error:
            raise SimulationFailed(str(error)) from error


class VectorCopies(Copies):
    """The copies of a `VectorSimulation`, which steps all of them at once, in arrays.

    Args:
        simulation: whose they are.
        client, metrics: see `Copies`.
    """

    begin_on_request = False

    def __init__(
        self, simulation: VectorSimulation, client: MultiplexingClient, metrics: Mapping[str, str]
    ) -> None:
        super().__init__(simulation.num_copies, simulation.possible_agents, client, metrics)
        if not client.wants_state:
            simulation.leave_out_state()
        self._simulation = simulation
        self._num_steps = np.zeros(self.num, np.int64)
        self._is_first = np.zeros(self.num, bool)
        """Whether a copy is at the first step of an episode, or comes to it next."""
        self._observations: Mapping[str, Rows] = {}
        self._present: NDArray[np.bool_] = simulation.present
        self._again: list[int] | None = None
        """Copies that are asked alone, since they have begun anew; None: all are asked."""
        self._num_idle = 0

    def ask_options(self, options_of: Callable[[int], Mapping[str, float]]) -> None:
        """See `VectorSimulation.ask_options`."""
        self._simulation.ask_options(options_of)

    def num_steps(self, copy: int) -> int:
        return int(self._num_steps[copy])

    def reset(self, seed: int | None) -> None:
        self._observations = self._call("reset", self._simulation.reset, seed)
        self._present, self._is_first[:] = self._simulation.present, True

    def may_begin(self, copy: int) -> bool:
        return bool(self._is_first[copy] and self._present[copy].any())

    def begin(self, copy: int, seed: int | None, parameters: Mapping[str, float]) -> None:
        if self._is_first[copy]:
            self._call("begin", self._simulation.begin, copy, seed, parameters)
            self._is_first[copy] = False
        else:
            self._again = [*(self._again or ()), copy]
        self._num_steps[copy] = 0
        self.metrics.clear(copy)  # of what came with a reset

    def ask(self, outbox: Outbox) -> None:
        state, agents = self._state_of(self._simulation), self._simulation.possible_agents
        try:
            self.table.step_in_arrays(
                outbox, agents, self._observations, self._present, state, self._again
            )
        except EpisodeMisuse as error:
            raise SimulationFailed(str(error)) from error
        self._again = None

    def step(self, copies: Sequence[int]) -> Iterator[Over]:
        self._num_idle = 0 if copies else self._num_idle + 1
        if self._num_idle > _MOST_IDLE:
            raise SimulationFailed(
                f"all {self.num} copies had a bad value, and for {self._num_idle} steps none of "
                "their episodes has ended"
            )
        table = self.table
        step = self._call("step", self._simulation.step, table.actions_in_arrays)
        self._num_steps += table.is_open
        self.num_env_steps += len(copies)
        try:
            if self._has_metrics:
                self.metrics.add_arrays(step.infos, step.is_over)
            table.log_in_arrays(step.rewards)
        except (SimulationError, EpisodeMisuse) as error:
            raise SimulationFailed(str(error)) from error
        self._observations, self._present = step.observations, step.present
        overs = self._log_ends(step)
        self._is_first |= step.is_over
        yield from overs

    def _log_ends(self, step: VectorStep) -> list[Over]:
        """Logs the ends of agents before that of their episode, and returns the ends of episodes.

        Where all agents of an episode end in its last step in one way, its end says so of all.
        """
        table, agents, overs = self.table, self._simulation.possible_agents, list[Over]()
        flags = step.terminated, step.truncated
        if not any(map(np.count_nonzero, (*flags, step.is_over))):
            return overs
        have_ended, are_cut = (np.asarray(one.all(1)) for one in flags)
        have_all = step.is_over & (have_ended | are_cut)
        done = flags[0].any(1) | flags[1].any(1) | step.is_over
        for copy in np.flatnonzero(done & table.is_open).tolist():
            finals, state = step.final_observations.get(copy, {}), step.final_states.get(copy)
            if have_all[copy]:
                is_cut = bool(are_cut[copy])
                overs.append(Over(copy, is_cut, finals, state if is_cut else None))
                continue
            terminated, truncated = (
                dict.fromkeys(itertools.compress(agents, one[copy].tolist()), True) for one in flags
            )
            table.log(copy, {}, terminated, truncated, finals)
            if step.is_over[copy]:
                state = state if table.wants_state_at_end(copy) else None
                overs.append(Over(copy, bool(truncated) and not terminated, {}, state))
        return overs
