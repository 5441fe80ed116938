"""What is known of a trainer's class before it learns: its settings, and what is wrong with it."""

from __future__ import annotations

import inspect
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any, ClassVar

import numpy as np

from muxrl.protocol.rows import each_array
from muxrl.protocol.spaces import DictSpace, bounds
from muxrl.servers.acting import Asked
from muxrl.servers.agents.action_forms import counted_from_0
from muxrl.servers.agents.inputs import State
from muxrl.servers.agents.keys import ACTION_MASK, ALIVE, OBS, STATE
from muxrl.servers.agents.masks import has_action_mask, observed_parts
from muxrl.servers.agents.observing import Observing
from muxrl.servers.agents.seating import MASKED_AGENTS, TEAMS, Seating
from muxrl.servers.agents.seats import Seat
from muxrl.servers.config import AgentPlan, ServerConfig, ServerPlan, WhileLearning
from muxrl.servers.episodes.blocks import Block, Seats
from muxrl.servers.episodes.trajectories import stack
from muxrl.servers.gymnasium_spaces import to_gymnasium
from muxrl.servers.setting_values import (
    AlgorithmProblem,
    kind_of,
    read_as,
    signature_of,
    suggestion,
)
from muxrl.servers.trainers.acting import Actors, TrainerFailed
from muxrl.servers.trainers.interface import LearnsFrom, PolicySpec

METHODS = ("act", "learn", "state", "load")
_LEARNS_FROM = ("newest", "recent", "replay")


@dataclass(frozen=True)
class TrainerEntry:
    """A trainer's class as an algorithm.

    Attributes:
        name: the import path, or the name under which a package has registered it.
        make: the class, or a function that returns a trainer.
    """

    name: str
    make: Any

    learns: ClassVar[bool] = True
    samples_actions: ClassVar[bool] = True

    @property
    def summary(self) -> str:
        """First line of its docstring."""
        return (inspect.getdoc(self.make) or "").partition("\n")[0]

    @property
    def forms_teams(self) -> bool:
        """Whether it learns for teams."""
        return bool(getattr(self.make, "forms_teams", False))

    @property
    def reads_state(self) -> bool:
        """Whether it learns with the global state."""
        return self.forms_teams or bool(getattr(self.make, "reads_state", False))

    @property
    def has_weights(self) -> bool:
        """Whether its weights may go to another one of its class."""
        return hasattr(self.make, "weights") and hasattr(self.make, "set_weights")

    @property
    def seating(self) -> Seating:
        """How its agents are seated."""
        if self.forms_teams:
            return TEAMS
        own = replace(MASKED_AGENTS, is_scaled=False)  # in the simulation's own bounds
        return replace(own, inputs=(*own.inputs, State)) if self.reads_state else own

    @property
    def learns_from(self) -> LearnsFrom:
        found: LearnsFrom = getattr(self.make, "learns_from", "newest")
        return found

    @property
    def default_while_learning(self) -> WhileLearning:
        """Whether simulations wait for an update."""
        return "wait" if self.learns_from == "newest" else "serve"

    # --- settings -----------------------------------------------------------------------

    def settings(self) -> dict[str, Any]:
        """Every setting that has a default: the arguments of the class behind the first. Defaults
        that no config can hold, such as a class, are left out."""
        found = {n: p.default for n, p in self._parameters().items() if p.default is not p.empty}
        return {name: default for name, default in found.items() if _is_json(default)}

    def _parameters(self) -> dict[str, inspect.Parameter]:
        try:
            parameters = list(signature_of(self.make).parameters.values())
        except (TypeError, ValueError):  # of a class written in C, which may take anything
            return {"settings": inspect.Parameter("settings", inspect.Parameter.VAR_KEYWORD)}
        return {p.name: p for p in parameters[1:] if p.kind is not p.VAR_POSITIONAL}

    def complete_settings(self, config: ServerConfig) -> dict[str, Any]:
        """Returns the settings for the server's plan."""
        return dict(config.settings)

    def find_config_problems(self, config: ServerConfig | ServerPlan) -> Iterator[str]:
        """Yields a sentence for each entry of the config that makes no sense for it."""
        parameters = self._parameters()
        known = {n: p for n, p in parameters.items() if p.kind is not p.VAR_KEYWORD}
        for name, value in config.settings.items():
            if name in known:
                try:
                    self._read(known[name], value)
                except AlgorithmProblem as error:
                    yield str(error)
            elif len(known) == len(parameters):
                hint = suggestion(name, known) if known else "; it has none"
                yield f"{self.name} has no setting {name!r}{hint}"
        for name, parameter in known.items():
            if parameter.default is parameter.empty and name not in config.settings:
                yield f"{self.name} needs the setting {name!r}, which has no default"
        for name in ("rl_module", "model"):
            if getattr(config, name):
                yield f"{self.name} makes its networks itself; leave out {name}"
        if config.initialize_only != "all":
            yield f"what acts of {self.name} is not known apart; leave out initialize_only"
        if config.initialize_from and not self.has_weights:
            yield f"{self.name} has no weights() and set_weights(), which initialize_from needs"
        if config.normalize_rewards and not hasattr(self.make, "gamma"):
            yield f"{self.name} has no attribute gamma, which normalize_rewards needs"

    def _read(self, parameter: inspect.Parameter, value: Any) -> Any:
        kind = kind_of(parameter.annotation, parameter.default)
        return read_as(f"{self.name}'s setting {parameter.name!r}", value, kind)

    # --- agents -------------------------------------------------------------------------

    def find_problems(self, plan: ServerPlan, others: Sequence[Any] = ()) -> Iterator[str]:
        """Yields a sentence for each reason why it cannot learn for a plan's agents.

        It makes trainers, which act on drawn observations, and load what they call their state.
        """
        if self.reads_state and not self.forms_teams and plan.agents and plan.state_size is None:
            yield (
                f"{self.name} learns with the global state (reads_state), and none is sent: give "
                "the simulation a method state(), or leave out use_global_state: false"
            )
            return
        for agent_id, agent in plan.agents.items():
            if problem := self.seating.find_mask_problem(agent_id, agent):
                yield problem
                return
        if not plan.agents or any(True for _ in self.find_config_problems(plan)):
            return
        try:
            seats = self.seating.make_seats(plan, Observing.of(plan))
            actors = self.make_actors(plan, seats)
            first = next(iter(actors.learners.values()))
            yield from self._attribute_problems(first)
            for policy_id in actors.learners:
                ours = [seat for seat in seats.values() if seat.policy_id == policy_id]
                drawn = [drawn_observation(seat) for seat in ours]
                actors.answer(asked_of(ours, drawn, plan.agents))
            actors.set_state(actors.get_state())
            actors.get_weights()
        except (TrainerFailed, ValueError, TypeError) as error:
            yield str(error)

    def _attribute_problems(self, trainer: Any) -> Iterator[str]:
        steps = getattr(trainer, "batch_env_steps", None)
        if isinstance(steps, bool) or not isinstance(steps, int) or steps < 1:
            yield (
                f"{self.name}.batch_env_steps is {steps!r}; it must be a whole number from 1 on: "
                "the env steps between two calls of learn"
            )
        if self.learns_from not in _LEARNS_FROM:
            yield (
                f"{self.name}.learns_from is {self.learns_from!r}; it must be one of "
                f"{', '.join(_LEARNS_FROM)}"
            )

    def make_actors(
        self,
        plan: ServerPlan,
        seats: Mapping[str, Seat],
        state_sizes: Mapping[str, int] = MappingProxyType({}),
    ) -> Actors:
        """Makes a trainer for each policy of a server.

        Args:
            plan: the server.
            seats: its own.
            state_sizes: of each policy, where these seats do not tell.

        Raises:
            AlgorithmProblem: the class raised, or what it made lacks a method.
        """
        specs: dict[str, PolicySpec] = {}
        for i, policy_id in enumerate(dict.fromkeys(seat.policy_id for seat in seats.values())):
            ours = [seat for seat in seats.values() if seat.policy_id == policy_id]
            observed = ours[0].observation_space
            parts = observed_parts(observed)
            own: Any = to_gymnasium(parts[OBS])
            state = parts.get(STATE)
            specs[policy_id] = PolicySpec(
                policy_id,
                tuple(seat.seat_id for seat in ours),
                own,
                to_gymnasium(counted_from_0(ours[0].action_space)),
                has_action_mask(observed),
                int(np.random.SeedSequence((plan.seed, i)).generate_state(1)[0]),
                "cuda" if plan.resources.num_gpus else "cpu",
                state_sizes.get(
                    policy_id, plan.state_size or (0 if state is None else state.shape[0])
                )
                if self.reads_state
                else 0,
                {seat.seat_id: seat.members for seat in ours} if self.forms_teams else {},
            )
        return Actors(self.name, specs, lambda spec: self._made(spec, plan.settings), plan.seed)

    def _made(self, spec: PolicySpec, settings: Mapping[str, Any]) -> Any:
        known = self._parameters()
        settings = {n: self._read(known[n], v) if n in known else v for n, v in settings.items()}
        try:
            trainer = self.make(spec, **settings)
        except (Exception, SystemExit) as error:  # the class is the user's
            raise AlgorithmProblem(
                f"{self.name} cannot be made for policy {spec.policy_id!r}: "
                f"{type(error).__name__}: {error}; it is called with (policy, **settings)"
            ) from error
        needed: tuple[str, ...] = METHODS
        why = "a trainer"
        if getattr(trainer, "acts_while_learning", False):
            needed, why = (*METHODS, "weights", "set_weights"), "one that acts while it learns"
        missing = [name for name in needed if not callable(getattr(trainer, name, None))]
        if missing:
            raise AlgorithmProblem(
                f"{self.name} made a {type(trainer).__name__} without {', '.join(missing)}; {why} "
                f"has the methods {', '.join(needed)}"
            )
        return trainer


def _is_json(value: Any) -> bool:
    try:
        json.dumps(value)
    except (TypeError, ValueError):
        return False
    return True


def drawn_observation(seat: Seat) -> Any:
    """Returns an observation of a seat's space, every action available."""
    space = seat.observation_space
    parts = observed_parts(space)
    rng = np.random.default_rng(0)
    low, high = (np.clip(bound, -1.0, 1.0) for bound in bounds(parts[OBS]))
    observed = rng.uniform(low, high).astype(np.float32)
    if seat.is_team:
        mask, present = seat.actions.masks, np.ones(len(seat.members), np.float32)
        return {OBS: observed, ACTION_MASK: mask, ALIVE: present}
    if not has_action_mask(space):
        return {OBS: observed} if isinstance(space, DictSpace) else observed
    return {OBS: observed, ACTION_MASK: np.ones(parts[ACTION_MASK].shape, np.float32)}


def asked_of(
    seats: Sequence[Seat], observations: Sequence[Any], agents: Mapping[str, AgentPlan]
) -> Asked:
    """Returns what seats of a policy ask greedily, outside of any episode.

    Args:
        seats: these.
        observations: what each of them reads.
        agents: of the server.
    """
    known = Seats(agents, {seat.seat_id: seat for seat in seats})
    served = known.lineup(tuple(agents))
    seen = each_array(lambda one: one[None], stack(observations))
    block = Block(None, known, served, [""], [0], slice(0, 1), [0], [seen])
    return Asked(seats[0].policy_id, [block], [0])
