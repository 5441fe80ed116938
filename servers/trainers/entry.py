"""Reads a trainer's class: its settings, what it needs, and what is wrong with it."""

from __future__ import annotations

import functools
import inspect
import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any

import numpy as np

from muxrl.protocol.rows import each_array
from muxrl.protocol.spaces import DictSpace, bounds
from muxrl.servers.acting import Asked
from muxrl.servers.agents.action_forms import counted_from_0
from muxrl.servers.agents.inputs import State
from muxrl.servers.agents.keys import ACTION_MASK, BINARY_KEYS, OBS, STATE
from muxrl.servers.agents.masks import has_action_mask, observed_parts
from muxrl.servers.agents.observing import Observing
from muxrl.servers.agents.seating import MASKED_AGENTS, TEAMS, Seating
from muxrl.servers.agents.seats import Seat
from muxrl.servers.config import AgentPlan, ServerConfig, ServerPlan
from muxrl.servers.declared import meanings
from muxrl.servers.episodes.blocks import Block, Mode, Seats
from muxrl.servers.episodes.trajectories import stack
from muxrl.servers.gymnasium_spaces import to_gymnasium
from muxrl.servers.import_by_name import import_named
from muxrl.servers.setting_values import (
    AlgorithmProblem,
    kind_of,
    read_as,
    signature_of,
    suggestion,
)
from muxrl.servers.trainers.acting import Actors
from muxrl.servers.trainers.algorithm import Algorithm
from muxrl.servers.trainers.budget import BATCH, FIRST_UPDATE, Milestone, ReplaySize, Schedule
from muxrl.servers.trainers.declared_settings import Settings, settings_class_of
from muxrl.servers.trainers.failures import TrainerFailed
from muxrl.servers.trainers.interface import LearnsFrom, PolicySpec
from muxrl.servers.trainers.spaces import SpaceCheck

OWN = "muxrl.servers.algorithms."
"""Package of muxrl's own trainers."""
METHODS = ("act", "learn", "state", "load")
_OF_RLLIB = ("PPO", "APPO", "IMPALA", "DQN", "SAC")
"""Algorithms that RLlib has, too, as RLLIB_PPO and so on."""
UNSCALED_AGENTS = replace(MASKED_AGENTS, is_scaled=False)
"""Seats of agents whose actions are in the simulation's own bounds, not scaled from -1..1."""
_LEARNS_FROM = ("newest", "recent", "replay")


@dataclass(frozen=True)
class TrainerEntry(Algorithm):
    """A trainer's class as an algorithm.

    Attributes:
        name: the import path, or the name under which a package has registered the class.
        source: the class, or a function that returns a trainer; for muxrl's own trainers their
            path, "module:name", since importing them imports torch.
    """

    name: str
    source: Any

    @property
    def make(self) -> Any:
        """The class, or the function that returns a trainer."""
        return _found_at(self.source) if isinstance(self.source, str) else self.source

    @functools.cached_property
    def settings_class(self) -> Any:
        """Subclass of `Settings` that declares what a user may set.

        None: the fields of another dataclass are the settings, or else the constructor's arguments
        after the first.
        """
        if isinstance(self.source, str):
            return _found_at(f"{OWN}settings:settings_of")(self.source.partition(":")[2])
        declared = settings_class_of(self.make)
        if declared is None or self._plain_settings:
            return None
        if not (preset := getattr(self.make, "preset", None)):
            return declared
        where = {name: getattr(declared, name) for name in ("__module__", "__qualname__")}
        return type(declared.__name__, (declared,), {**where, "preset": preset})

    @property
    def _plain_settings(self) -> Any:
        """The class's dataclass ``Settings`` if it is no subclass of `Settings`; else None."""
        found = None if isinstance(self.source, str) else settings_class_of(self.make)
        return None if found is None or issubclass(found, Settings) else found

    def _declared(self, name: str, default: Any = None) -> Any:
        """Returns an attribute that the class declares, such as ``seating``.

        muxrl's own trainers declare it in their settings, so that reading it imports no torch.
        """
        found = getattr(self.settings_class, name, default)
        return found if isinstance(self.source, str) else getattr(self.make, name, found)

    @property
    def samples_actions(self) -> bool:
        return bool(self._declared("samples_actions", True))

    @property
    def space_check(self) -> SpaceCheck | None:
        return self._declared("space_check")

    @property
    def summary(self) -> str:
        """First line of the class's docstring."""
        return (inspect.getdoc(self.make) or "").partition("\n")[0]

    @functools.cached_property
    def seating(self) -> Seating:
        declared = self._declared("seating")
        if isinstance(declared, Seating):
            return declared
        if self._declared("forms_teams", False):
            return TEAMS
        if self._declared("reads_state", False):
            return replace(UNSCALED_AGENTS, inputs=(*UNSCALED_AGENTS.inputs, State))
        return UNSCALED_AGENTS

    @property
    def reads_state(self) -> bool:
        """Whether it learns with the global state."""
        return State in self.seating.inputs

    @property
    def asks_for_state(self) -> bool:
        return self.reads_state or self.seating.is_joint

    @property
    def has_weights(self) -> bool:
        return self._has("weights") and self._has("set_weights")

    def _has(self, attribute: str) -> bool:
        """Whether the class has an optional attribute; muxrl's own classes have them all."""
        return isinstance(self.source, str) or hasattr(self.make, attribute)

    @property
    def learns_from(self) -> LearnsFrom:
        return self._declared("learns_from", "newest")

    @property
    def acts_while_learning(self) -> bool:
        if isinstance(self.source, str):
            return True
        # What a function will return is unknown; a copy may act.
        return bool(getattr(self.make, "acts_while_learning", not isinstance(self.make, type)))

    @property
    def gives_log_probs(self) -> bool:
        return bool(self._declared("gives_log_probs", False))

    # --- settings -----------------------------------------------------------------------

    def settings(self) -> dict[str, Any]:
        """Returns the declared settings, else the arguments, with their defaults.

        Arguments are left out if a config cannot hold their default, such as a class.
        """
        if self.settings_class:
            return dict(sorted(self.settings_class().known_values().items()))
        found = {n: p.default for n, p in self._parameters().items() if p.default is not p.empty}
        return {name: default for name, default in found.items() if _is_json(default)}

    def _parameters(self) -> dict[str, inspect.Parameter]:
        if plain := self._plain_settings:
            return dict(signature_of(plain).parameters)
        try:
            parameters = list(signature_of(self.make).parameters.values())
        except (TypeError, ValueError):  # a class written in C may take anything
            return {"settings": inspect.Parameter("settings", inspect.Parameter.VAR_KEYWORD)}
        return {p.name: p for p in parameters[1:] if p.kind is not p.VAR_POSITIONAL}

    def kinds(self) -> dict[str, Any]:
        return self.settings_class.known() if self.settings_class else {}

    def meanings(self) -> Mapping[str, str]:
        return meanings(self.settings_class) if self.settings_class else {}

    def model_settings(self) -> dict[str, Any]:
        return self.settings_class().known_of_model if self.settings_class else {}

    def make_settings(self, config: ServerConfig | ServerPlan) -> Any:
        """Returns an instance of ``settings_class`` with the values that a user gave.

        Raises:
            AlgorithmProblem: see `Settings.read`.
        """
        return self.settings_class.read(self.name, config.settings, config.model)

    def find_config_problems(self, config: ServerConfig | ServerPlan) -> Iterator[str]:
        if self.settings_class:
            try:
                self.make_settings(config)
            except AlgorithmProblem as error:
                yield from str(error).splitlines()
        else:
            yield from self._find_argument_problems(config)
        yield from self._network_problems(config)
        if config.initialize_only != "all" and not self._has("set_networks"):
            yield f"what acts of {self.name} is not known apart; leave out initialize_only"
        if config.initialize_from and not self.has_weights:
            yield f"{self.name} has no weights() and set_weights(), which initialize_from needs"
        has_discount = "gamma" in self.kinds() or self._has("gamma")
        if config.normalize_rewards and not has_discount:
            yield f"{self.name} has no attribute gamma, which normalize_rewards needs"

    def _network_problems(self, config: ServerConfig | ServerPlan) -> Iterator[str]:
        if config.model and not self.settings_class:
            yield f"{self.name} makes its networks itself; leave out model"
        if not config.rl_module:
            return
        given = f"an RLModule of your own ({config.rl_module!r} was given)"
        if reason := self.settings_class and self.settings_class.own_module_refused:
            yield f"{self.name} cannot take {given}: {reason}; leave out rl_module"
        elif isinstance(self.source, str):
            instead = self.name if self.name in _OF_RLLIB else "PPO"
            yield f"{self.name} makes its networks itself; for {given} use RLLIB_{instead}"
        else:
            yield f"{self.name} makes its networks itself; leave out rl_module"

    def _find_argument_problems(self, config: ServerConfig | ServerPlan) -> Iterator[str]:
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

    def _read(self, parameter: inspect.Parameter, value: Any) -> Any:
        kind = kind_of(parameter.annotation, parameter.default)
        return read_as(f"{self.name}'s setting {parameter.name!r}", value, kind)

    # --- agents -------------------------------------------------------------------------

    def find_problems(self, plan: ServerPlan, others: Sequence[Algorithm] = ()) -> Iterator[str]:
        """Yields a sentence for each reason why it cannot learn for a plan's agents.

        This makes the trainers, has them act on drawn observations, and load their own state. For
        trusted trainers the check of the spaces is enough.
        """
        needs_state = self.reads_state and not self.seating.is_joint  # joint ones observe it, too
        if needs_state and plan.agents and plan.state_size is None:
            yield (
                f"{self.name} learns with the global state (reads_state), and none is sent: give "
                "the simulation a method state(), or leave out use_global_state: false"
            )
            return
        if problems := [*self._find_agent_problems(plan, others)]:
            yield from problems
            return
        if not plan.agents or any(True for _ in self.find_config_problems(plan)):
            return
        yield from self._find_minibatch_problem(plan)
        if self._declared("is_trusted", False):
            return
        try:
            seats = self.seating.make_seats(plan, Observing(plan))
            actors = self.make_actors(plan, seats)
            first = next(iter(actors.learners.values()))
            yield from self._attribute_problems(first)
            for policy_id in actors.learners:
                # One seat is enough; whether the others are alike is checked elsewhere.
                seat = next(one for one in seats.values() if one.policy_id == policy_id)
                actors.answer(asked_of([seat], [drawn_observation(seat)], plan.agents))
            actors.put("state", actors.get("state"))
            actors.get("weights")
        except (TrainerFailed, ValueError, TypeError) as error:
            yield str(error)

    def _find_minibatch_problem(self, plan: ServerPlan) -> Iterator[str]:
        minibatch, batch = self.values(plan).get("minibatch_size"), self.find_batch_env_steps(plan)
        num = max(Counter(agent.policy_id for agent in plan.agents.values()).values())
        if batch is not None and minibatch is not None and minibatch > batch * num:
            yield (
                f"{self.name}'s setting 'minibatch_size' is {minibatch}, but a policy has "
                f"{batch * num} transitions in a batch at most: {batch} env steps "
                f"('train_batch_size_per_learner') of {num} agent{'s' * (num > 1)}; set "
                f"'minibatch_size' to {batch * num} at most"
            )

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
            seats: of the server, by seat id.
            state_sizes: by policy: the length of the global state, if the seats do not tell.

        Raises:
            AlgorithmProblem: the class raised, or made an object that lacks a method.
        """
        specs: dict[str, PolicySpec] = {}
        for i, policy_id in enumerate(dict.fromkeys(seat.policy_id for seat in seats.values())):
            ours = [seat for seat in seats.values() if seat.policy_id == policy_id]
            observed = ours[0].observation_space
            parts = observed_parts(observed)
            boxes: dict[str, Any] = {key: to_gymnasium(part) for key, part in parts.items()}
            alone = [seat.seat_id for seat in ours if not seat.is_team]
            teams = {agent_id: plan.agents[agent_id].group or "" for agent_id in alone}
            state = parts.get(STATE)
            specs[policy_id] = PolicySpec(
                policy_id,
                tuple(seat.seat_id for seat in ours),
                boxes[OBS],
                to_gymnasium(counted_from_0(ours[0].action_space)),
                has_action_mask(observed),
                int(np.random.SeedSequence((plan.seed, i)).generate_state(1)[0]),
                "cuda" if plan.resources.num_gpus else "cpu",
                state_sizes.get(
                    policy_id, plan.state_size or (0 if state is None else state.shape[0])
                )
                if self.reads_state
                else 0,
                {seat.seat_id: seat.members for seat in ours} if self.seating.forms_teams else {},
                boxes,
                {agent_id: group for agent_id, group in teams.items() if group},
            )
        return Actors(self.name, specs, lambda spec: self._made(spec, plan), plan.seed)

    def _made(self, spec: PolicySpec, plan: ServerPlan) -> Any:
        settings: Any
        if self.settings_class:
            way, settings = "settings", self.make_settings(plan)
        else:
            known, given = self._parameters(), plan.settings.items()
            read = {n: self._read(known[n], v) if n in known else v for n, v in given}
            way, settings = "settings" if self._plain_settings else "**settings", read
        try:
            if plain := self._plain_settings:
                settings = plain(**settings)
            trainer = self._make(spec, plan, settings)
        except (Exception, SystemExit) as error:  # raised by the user's class
            raise AlgorithmProblem(
                f"{self.name} cannot be made for policy {spec.policy_id!r}: "
                f"{type(error).__name__}: {error}; it is called with (policy, {way})"
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

    def _make(self, spec: PolicySpec, plan: ServerPlan, settings: Any) -> Any:
        return self.make(spec, **settings) if type(settings) is dict else self.make(spec, settings)

    # --- the budget ---------------------------------------------------------------------

    def values(self, plan: ServerPlan) -> Mapping[str, Any]:
        return self.make_settings(plan).values() if self.settings_class else {}

    def find_milestones(self, plan: ServerPlan) -> Iterator[Milestone]:
        batch = self.find_batch_env_steps(plan)
        if batch is not None:
            yield Milestone(FIRST_UPDATE, (BATCH,), env_steps=batch)
        yield from self._call_declared("find_milestones", plan) or ()

    def find_schedules(self, plan: ServerPlan) -> Iterator[Schedule]:
        for setting, value in self.values(plan).items():
            if isinstance(value, list | tuple) and len(value) > 1 and all(map(_is_point, value)):
                yield Schedule(setting, tuple((float(at), float(v)) for at, v in value))

    def find_batch_env_steps(self, plan: ServerPlan) -> int | None:
        if not self.settings_class or self.learns_from == "replay":
            return None
        made = self.make_settings(plan)
        return getattr(made, "batch_env_steps", None) or getattr(made, BATCH, None)

    def find_replay_size(self, plan: ServerPlan) -> ReplaySize | None:
        if self._declared("replay_size") is None:
            return None
        seats = self.seating.make_seats(plan, Observing(plan))
        return self._call_declared("replay_size", plan, seats)

    def learns_jointly(self, plan: ServerPlan) -> bool:
        found = self._call_declared("learns_jointly", plan)
        return found is None or bool(found)

    def _call_declared(self, name: str, plan: ServerPlan, *more: Any) -> Any:
        """Calls a class method with a server's settings; returns None if the class has none."""
        method = self._declared(name)
        return method(self.make_settings(plan), *more) if self.settings_class and method else None


@functools.cache
def _found_at(path: str) -> Any:
    """Returns the object at an import path of muxrl.

    Raises:
        AlgorithmProblem: it cannot be imported, for instance because torch is not installed.
    """
    return import_named("algorithm", path, path)


def _is_point(value: Any) -> bool:
    is_pair = isinstance(value, list | tuple) and len(value) == 2
    return is_pair and all(isinstance(number, int | float) for number in value)


def _is_json(value: Any) -> bool:
    try:
        json.dumps(value)
    except (TypeError, ValueError):
        return False
    return True


def drawn_observation(seat: Seat) -> Any:
    """Draws an observation of a seat's space, with all actions available and no member absent."""
    space = seat.observation_space
    rng = np.random.default_rng(0)
    drawn: dict[str, np.ndarray] = {}
    for key, part in observed_parts(space).items():
        low, high = (np.clip(bound, -1.0, 1.0) for bound in bounds(part))
        drawn[key] = rng.uniform(low, high).astype(np.float32)
    for key in BINARY_KEYS & drawn.keys():
        drawn[key] = np.ones_like(drawn[key])
    if seat.is_team and ACTION_MASK in drawn:  # some members may have fewer actions
        drawn[ACTION_MASK] = seat.actions.masks
    return drawn if isinstance(space, DictSpace) else drawn[OBS]


def asked_of(
    seats: Sequence[Seat], observations: Sequence[Any], agents: Mapping[str, AgentPlan]
) -> Asked:
    """Returns the request of a policy's seats for greedy actions, outside of any episode.

    Args:
        seats: of one policy.
        observations: of each seat.
        agents: of the server.
    """
    known = Seats(agents, {seat.seat_id: seat for seat in seats})
    served = known.layout(tuple(agents))
    seen = each_array(lambda one: one[None], stack(observations))
    block = Block(None, Mode(known), served, [""], [0], slice(0, 1), [0], [seen])
    return Asked(seats[0].policy_id, [block], [0])
