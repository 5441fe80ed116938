"""Tries a simulation before anything is started: a reset and one step of random actions.

A fault found here would otherwise appear in every process that is started. A check plays a whole
episode, twice.
"""

from __future__ import annotations

import contextlib
import logging
import math
import pickle
import threading
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import numpy as np

from muxrl.client.adapters.dict_env import Respawn
from muxrl.client.adapters.env_state import raised_by
from muxrl.client.adapters.factory import Copy, make_simulation, make_vector_simulation, naming
from muxrl.client.adapters.sides import with_sides
from muxrl.client.adapters.simulation import Simulation, SimulationError, StepResult
from muxrl.client.adapters.vector_simulation import row
from muxrl.client.episode_metrics import MetricCollector
from muxrl.protocol.own_modules import hidden_file
from muxrl.protocol.rows import stack
from muxrl.protocol.spaces import Space
from muxrl.protocol.suggestions import listed, similar_or_known
from muxrl.protocol.values import Mismatch, Unsound, conform, sample_action

logger = logging.getLogger(__name__)

_SLOW_S = 10.0
_MOST_STEPS, _MOST_S = 1_000, 10.0
"""Bounds of an episode that a check plays: steps and seconds."""
_STEPS_OF_BATCH = 5
"""After so many steps a copy's observations most likely differ from those of a reset."""

_open: list[Simulation] = []
"""Simulations that `begin` leaves open: Python would close one without references."""


@dataclass(frozen=True)
class Subject:
    """A simulation to look at, by the name and arguments that make it."""

    env: str
    kwargs: Mapping[str, Any]
    respawn: Respawn = "refuse"
    vector_env: bool = False
    parameters: Mapping[str, Any] = field(default_factory=dict)
    """See `with_sides`."""
    options: Mapping[str, float] = field(default_factory=dict)
    """Options of a reset."""
    metrics: Mapping[str, str] = field(default_factory=dict)
    """See `MetricCollector`."""
    on_bad_value: Literal["stop", "episode"] = "stop"
    """See `look`."""

    def make(self, index: int = 0) -> Simulation:
        """Makes a copy of the simulation; raises as `make_simulation`."""
        made = make_simulation(
            self.env, self.kwargs, Copy(index), self.respawn, vector_env=self.vector_env
        )
        return with_sides(made, self.parameters)


@dataclass(frozen=True)
class SimulationFacts:
    """What a look found out about a simulation: agents, spaces and global state."""

    agents: dict[str, tuple[Space, Space]]
    """By agent: its observation and action space, in the order of `possible_agents`."""
    state_size: int | None = None
    """Length of the global state; None: there is none."""
    notes: tuple[str, ...] = ()
    """Sentences on faults of the environment that were tolerated."""
    state_problem: str = ""
    """Why its `state()` gives no state, although it has that method; "" if nothing is wrong."""
    first_agents: tuple[str, ...] = ()
    """Agents that observe at the beginning of an episode; (): unknown."""
    absent_metrics: Mapping[str, str] = field(default_factory=dict)
    """Metrics that were in no info of a whole episode, with the end of a sentence on what was."""


def look(
    simulation: Simulation,
    options: Mapping[str, float] | None = None,
    metrics: Mapping[str, str] | None = None,
    *,
    is_whole: bool = False,
    on_bad_value: Literal["stop", "episode"] = "stop",
) -> SimulationFacts:
    """Resets a simulation, plays one step, checks its values as a server would, and closes it.

    Args:
        simulation: the one to look at.
        options: the options of its reset.
        metrics: metrics that its infos should have; see `MetricCollector`.
        is_whole: play an episode to its end, within a bound, and again with the same seed.
        on_bad_value: whether a number that is not finite is refused, or ends the episode, which
            a note tells.

    Raises:
        SimulationError: it raised or called `sys.exit`, an observation does not fit its space, or a
            reward or metric is no finite number.
    """
    notes: list[str] = []
    try:
        first = _Play(simulation, options, metrics or {}, on_bad_value)
        first.play(_MOST_STEPS if is_whole else 1)
        if first.bad_value:
            closes = "on_bad_value is 'episode', so training closes such an episode there"
            notes.append(f"{first.bad_value}; {closes}")
        if is_whole:
            notes += first.find_gaps()
            again = _Play(simulation, options, {}, on_bad_value)
            again.play(len(first.shown) - 1)
            if getattr(simulation, "takes_seed", True):
                notes += first.find_difference(again)
    finally:
        with _calling("close()"):
            simulation.close()
    return SimulationFacts(
        {
            a: (simulation.observation_spaces[a], simulation.action_spaces[a])
            for a in simulation.possible_agents
        },
        None if first.state_problem else simulation.state_size,
        (*getattr(simulation, "notes", ()), *notes),
        first.state_problem,
        tuple(a for shown in first.shown[:1] for what, a in shown if what == "observation"),
        first.find_absent(metrics or {}),
    )


def look_at(subject: Subject, is_whole: bool) -> SimulationFacts:
    """Makes a simulation and looks at it; raises as `look`."""
    made = subject.make()
    with naming(subject.env, "trying it"):
        found = look(
            made,
            subject.options,
            subject.metrics,
            is_whole=is_whole,
            on_bad_value=subject.on_bad_value,
        )
    module = subject.env.partition(":")[0]
    if file := hidden_file(module):
        note = f"{module!r} is {file}, not the installed module of that name"
        found = replace(found, notes=(*found.notes, note))
    return found


def begin(subject: Subject, index: int) -> None:
    """Makes a copy of a simulation, begins an episode and keeps it open; raises as `look`."""
    _open.append(subject.make(index))
    with naming(subject.env, "trying it"):
        _Play(_open[-1], subject.options, {}, subject.on_bad_value).play(0)


def look_at_batch(subject: Subject) -> None:
    """Resets one of two copies of a vector environment, if they are reset on request.

    Raises:
        SimulationError: the environment raised, or the other copy changed.
    """
    made = make_vector_simulation(subject.env, subject.kwargs, 2, respawn=subject.respawn)
    vector = with_sides(made, subject.parameters, is_vector=True)
    rng = np.random.default_rng(0)
    with naming(subject.env, "trying it"):
        if subject.options:
            vector.ask_options(lambda _: subject.options)
        with _calling("reset()"):
            observations = vector.reset(0)
        for _ in range(_STEPS_OF_BATCH):
            actions = {}
            for agent, space in vector.action_spaces.items():
                seen = [row(observations[agent], copy) for copy in range(2)]
                actions[agent] = stack(space, [sample_action(space, s, rng) for s in seen], (2,))
            with _calling("step()"):
                observations = vector.step(actions).observations
        if vector.resets_on_request:
            vector.reset_some(np.array([True, False]), observations)
        vector.close()


class _BadValue(SimulationError):
    """A number is not finite."""


class _Play:
    """An episode of random actions, and what the simulation returned in it.

    Attributes:
        shown: one dict for the reset and for each step: by what it is ("reward", say) and agent,
            the value, or a hash of an observation.
        state_problem: see `SimulationFacts`.
        bad_value: a sentence on the number that has ended it; "" if none has.
    """

    def __init__(
        self,
        simulation: Simulation,
        options: Mapping[str, float] | None,
        metrics: Mapping[str, str],
        on_bad_value: Literal["stop", "episode"] = "stop",
    ) -> None:
        self.shown: list[dict[tuple[str, str], Any]] = []
        self.state_problem: str = getattr(simulation, "state_problem", "")
        self.bad_value = ""
        self._on_bad_value = on_bad_value
        self._simulation, self._options = simulation, options
        self._metrics = MetricCollector(metrics)
        self._names_in_infos: dict[str, None] = {}
        self._rng = np.random.default_rng(0)
        self._is_over, self._has_time = False, True
        self._num_actions: Counter[str] = Counter()
        self._num_unpaid: Counter[str] = Counter()
        self._awaits_reward: set[str] = set()
        """Agents that have acted and got no reward since."""

    def play(self, num_steps: int) -> None:
        """Plays at most `num_steps`, until the episode ends, and for no longer than `_MOST_S`.

        Raises:
            SimulationError: see `look`.
        """
        try:
            self._play(num_steps)
        except _BadValue as bad:
            if self._on_bad_value == "stop":
                raise
            self.bad_value = str(bad)

    def _play(self, num_steps: int) -> None:
        simulation = self._simulation
        until = time.monotonic() + _MOST_S
        with _calling("reset()"):
            given = {"options": self._options} if self._options else {}
            observations, _ = simulation.reset(0, **given)
        actions = self._read_step("reset()", observations)
        if not self.state_problem:
            try:
                with _calling("state()"):
                    simulation.state()
            except SimulationError as error:  # maybe no server reads it
                self.state_problem = str(error)
        for t in range(1, num_steps + 1):
            self._has_time = t == 1 or time.monotonic() < until
            if self._is_over or not self._has_time:
                return
            where = "step()" if num_steps == 1 else f"step() number {t}"
            with _calling(where):
                result = simulation.step(actions)
            self._pay(result, actions)
            actions = self._read_step(where, result.observations, result)
            self._is_over = result.is_over

    def _read_step(
        self, where: str, observations: Mapping[str, Any], result: StepResult | None = None
    ) -> dict[str, Any]:
        """Checks what a reset or step returned, and returns random actions for the next step."""
        shown: dict[tuple[str, str], Any] = {}
        seen = self._judge(where, "observation", observations, shown)
        if result is not None:
            self._judge(where, "last observation", result.final_observations, shown)
            for agent, reward in result.rewards.items():
                if not math.isfinite(reward):
                    raise _BadValue(
                        f"{where} gave agent {agent!r} the reward {reward}; expected a finite "
                        "number"
                    )
                shown["reward", agent] = reward
            shown.update({("termination", agent): True for agent in result.terminations})
            shown.update({("truncation", agent): True for agent in result.truncations})
            for infos in (*result.earlier_infos, result.infos):
                self._metrics.add(infos)
                for info in infos.values():
                    self._names_in_infos.update(dict.fromkeys(_names_in(info)))
        self.shown.append(shown)
        actions: dict[str, Any] = {}
        for agent in sorted(seen):
            try:
                space = self._simulation.action_spaces[agent]
                actions[agent] = sample_action(space, seen[agent], self._rng)
            except ValueError as error:
                raise SimulationError(f"after {where}, agent {agent!r}: {error}") from None
        return actions

    def _judge(
        self, where: str, what: str, given: Mapping[str, Any], shown: dict[tuple[str, str], Any]
    ) -> dict[str, Any]:
        judged = {}
        for agent, value in given.items():
            try:
                seen = judged[agent] = conform(self._simulation.observation_spaces[agent], value)
            except Mismatch as mismatch:
                kind = _BadValue if isinstance(mismatch, Unsound) else SimulationError
                raise kind(
                    f"{where} gave agent {agent!r} an observation that is not in its space: "
                    f"{mismatch}"
                ) from None
            shown[what, agent] = hash(pickle.dumps(seen))
        return judged

    def _pay(self, result: StepResult, actions: Mapping[str, Any]) -> None:
        self._num_actions.update(actions.keys())
        self._num_unpaid.update(self._awaits_reward & actions.keys())
        self._awaits_reward |= actions.keys()
        self._awaits_reward -= result.rewards.keys()
        ended = self._awaits_reward if result.is_over else result.terminations.keys()
        self._num_unpaid.update(self._awaits_reward & ended)
        self._awaits_reward -= ended

    def find_gaps(self) -> Iterator[str]:
        """Yields sentences on what was missing in the episode: an end, or rewards."""
        num_steps = len(self.shown) - 1
        if not (self._is_over or self.bad_value):
            within = f"{_MOST_S:g} s ({num_steps:,} steps)" if not self._has_time else (
                f"{num_steps:,} steps")  # fmt: skip
            yield (
                f"no episode of random actions ended within {within}; an episode that never ends "
                "has no return, and evaluations wait for its end: truncate it after some steps"
            )
        alike: dict[str, list[str]] = {}
        for agent in sorted(self._num_unpaid, key=self._simulation.possible_agents.index):
            share = f"{self._num_unpaid[agent]} of {self._num_actions[agent]}"
            alike.setdefault(share, []).append(repr(agent))
        for share, agents in alike.items():
            yield (
                f"step() gave {listed(agents)} no reward for {share} actions, which counts as a "
                "reward of 0; give a reward to every agent that has acted"
            )

    def find_absent(self, metrics: Iterable[str]) -> dict[str, str]:
        """Returns the metrics that did not come, if the episode ended; see `SimulationFacts`."""
        if not self._is_over:
            return {}
        came, known = self._metrics.result(), self._names_in_infos
        absent = [name for name in metrics if name not in came and name not in known]
        return {name: similar_or_known(name, known, "its infos have") for name in absent}

    def find_difference(self, again: _Play) -> Iterator[str]:
        """Yields a sentence if another episode with the same seed and actions was different."""
        for t, (one, other) in enumerate(zip(self.shown, again.shown, strict=False)):
            for what, agent in sorted(one.keys() | other.keys()):
                first, second = (shown.get((what, agent)) for shown in (one, other))
                if first == second:
                    continue
                difference = "differs"
                if None in (first, second):
                    difference = "is missing in one of them"
                elif what == "reward":
                    difference = f"is {first:g} in one and {second:g} in the other"
                where = f"in step {t}" if t else "after reset(seed=0)"
                yield (
                    f"two episodes with the same seed and the same actions differ: {where} the "
                    f"{what} of agent {agent!r} {difference}; draw all random numbers from a "
                    "generator that reset() seeds, or runs cannot be repeated"
                )
                return


def _names_in(info: Any, prefix: str = "") -> Iterator[str]:
    """Yields what of an info can be a metric, by the names that they have in a config."""
    for key, value in info.items() if isinstance(info, Mapping) else ():
        if isinstance(value, Mapping):
            yield from _names_in(value, f"{prefix}{key}/")
        else:
            yield f"{prefix}{key}"


@contextlib.contextmanager
def _calling(where: str) -> Iterator[None]:
    """Warns of a call that takes long, and turns what it raises into a `SimulationError`.

    Nothing else is printed yet that would explain the wait.
    """
    difference = f"the environment's {where} has taken {_SLOW_S:g} s so far; what does it wait for?"
    timer = threading.Timer(_SLOW_S, logger.warning, (difference,))
    timer.daemon = True
    timer.start()
    try:
        yield
    except (Exception, SystemExit) as error:  # the user's code may raise anything
        raise SimulationError(raised_by(where, error)) from error
    finally:
        timer.cancel()
