"""The policies of a checkpoint, which act as they were saved.

The checkpoint's note says how they were used (for a team, with a separate action mask, with a
global state), so that the config of the run that trained them is not needed.
"""

from __future__ import annotations

import contextlib
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Any, NamedTuple

import gymnasium
import msgspec

from muxrl.protocol.spaces import Space
from muxrl.servers.agents.keys import STATE
from muxrl.servers.agents.observing import Observing
from muxrl.servers.agents.running_statistics import RunningStatistics
from muxrl.servers.agents.seats import Seat
from muxrl.servers.agents.spaces import split_state, without_bounds
from muxrl.servers.checkpoints.checkpoint import ABOUT_FILE, READ_ALIKE, Checkpoint
from muxrl.servers.config import AgentPlan, ServerPlan
from muxrl.servers.gymnasium_spaces import Spaces, spaces_of
from muxrl.servers.setting_values import AlgorithmProblem
from muxrl.servers.trainers.acting import Actors
from muxrl.servers.trainers.entry import TrainerEntry
from muxrl.servers.trainers.failures import TrainerFailed
from muxrl.servers.trainers.lookup import find_trainer

_OF_STATES = ("state_size", "use_global_state", "late_members")
"""Keys of a note that say what a central critic reads."""
_OF_TRAINERS = ("settings", "model", "rl_module", "state_size")
"""Keys of a note that trainers are made from, as a plan has them."""


class Critics(NamedTuple):
    """Complete trainers, with which states are valued."""

    actors: Actors
    seats: Mapping[str, Seat]
    """By seat id; these seats observe what critics read."""


class FrozenPolicies:
    """The policies of a checkpoint, and how agents are seated for them.

    Attributes:
        name: of the algorithm.
        seating: the seating that they were trained with.
        spaces: by policy, its observation and action space.

    Args:
        entry: the algorithm.
        checkpoint: has the policies.
        names: by policy of the server: its name in the checkpoint, if it differs.

    Raises:
        AlgorithmProblem: the checkpoint cannot be read, or has no policy of such a name.
    """

    def __init__(
        self, entry: TrainerEntry, checkpoint: Checkpoint, names: Mapping[str, str]
    ) -> None:
        self._names = dict(names)
        self._checkpoint = checkpoint
        self._entry = entry
        self.name, self.seating = entry.name, entry.seating
        with understood(checkpoint):
            seats = self.seating.make_seats(plan_of(checkpoint.about))
        self.spaces: dict[str, Spaces] = {s.policy_id: spaces_of(s) for s in seats.values()}
        for policy_id, name in self._names.items():
            if name not in self.spaces:
                raise AlgorithmProblem(self._no_policy(policy_id, name))

    def make_inference(self, plan: ServerPlan, *, should_explore: bool | None = None) -> Actors:
        """Returns the policies in the form that acts for a server.

        Args:
            plan: the server.
            should_explore: whether actions are drawn as in training, at the point where it ended;
                else the likeliest action, or the one with the highest value, is taken. An opponent
                is then the same in training and in evaluation. None: as each episode asks.

        Raises:
            AlgorithmProblem: the policies cannot be loaded, or do not match the note.
        """
        seats = self.seating.make_seats(plan, self.observing(plan))
        actors = self._load(plan, seats, only_acting=True)
        actors.should_explore = should_explore
        return actors

    def load_critics(self, plan: ServerPlan) -> Critics:
        """Returns the critics of a server's policies.

        Raises:
            AlgorithmProblem: the critics cannot be loaded.
        """
        with_states = self._as_noted(plan, _OF_STATES)  # as agents saw the state in training
        seats = self.make_seats(with_states, self.observing(with_states), has_states=True)
        actors = self._load(with_states, seats, only_acting=False)
        read = [getattr(one, "value_keys", ()) for one in actors.learners.values()]
        if not any(STATE in keys for keys in read):
            alone = replace(plan, late_members="allow", state_size=None)
            seats = self.make_seats(alone, self.observing(alone))
        return Critics(actors, seats)

    def _load(self, plan: ServerPlan, seats: Mapping[str, Seat], *, only_acting: bool) -> Actors:
        """Returns the trainers for a server.

        Args:
            plan: the server.
            seats: the server's seats.
            only_acting: whether critics are left out, if the trainers can do so; critics then need
                not fit.

        Raises:
            AlgorithmProblem: the trainers cannot be loaded.
        """
        names = self.names_of(plan)
        with understood(self._checkpoint):
            state_sizes = self._checkpoint.about["state_sizes"]
            sizes = {policy_id: state_sizes[name] for policy_id, name in names.items()}
            begun = self._as_noted(plan, _OF_TRAINERS)
        actors = self._entry.make_actors(begun, seats, sizes)
        actors.is_learned_from = False
        try:
            saved = self._checkpoint.read_state()
            if "trainers" in saved and not (only_acting and saved["networks"]):
                actors.put("state", {p: saved["trainers"][name] for p, name in names.items()})
            else:  # a live checkpoint, for example
                actors.load({p: saved["weights"][name] for p, name in names.items()}, 0)
        except (OSError, KeyError, ValueError, TrainerFailed) as error:
            raise AlgorithmProblem(
                f"checkpoint {str(self._checkpoint.path)!r} cannot be loaded: "
                f"{type(error).__name__}: {error}"
            ) from error
        actors.num_env_steps_sampled = self._checkpoint.env_steps
        return actors

    def _as_noted(self, plan: ServerPlan, parts: Iterable[str]) -> ServerPlan:
        """Returns a plan with these parts of the checkpoint's note."""
        return replace(plan, **{part: self._checkpoint.about[part] for part in parts})

    def observing(self, plan: ServerPlan) -> Observing:
        """Returns an `Observing` for a server that reads as in training, without the statistics."""
        return Observing(self._as_noted(plan, READ_ALIKE))

    @property
    def state_size(self) -> int | None:
        """Length of the simulation's global state in training; None: it sent none."""
        return self._checkpoint.about["state_size"]

    def reward_deviation(self, plan: ServerPlan, policy_id: str) -> float:
        """Returns the last divisor of a policy's rewards in training; 1: they were not divided."""
        states = self._checkpoint.read_normalization()["rewards"]
        scale = RunningStatistics(())
        if (name := self.names_of(plan)[policy_id]) in states:
            scale.set_state(states[name])
        return float(scale.variance) ** 0.5 or 1.0

    def make_seats(
        self, plan: ServerPlan, observing: Observing, *, has_states: bool = False
    ) -> dict[str, Seat]:
        """Returns a server's seats by id.

        Args:
            plan: the server.
            observing: the server's; it gets the statistics of training.
            has_states: whether those of global states are needed: not to act.

        Raises:
            AlgorithmProblem: the statistics cannot be read.
        """
        seats = self.seating.make_seats(plan, observing)
        if observing.normalizes:
            try:
                statistics = self._checkpoint.read_normalization()["observations"]
                names = self.names_of(plan)
                observing.set_state(statistics, names=names, has_states=has_states)
            except (OSError, KeyError, ValueError) as error:
                raise AlgorithmProblem(
                    f"the statistics of checkpoint {str(self._checkpoint.path)!r} cannot be read: "
                    f"{error}"
                ) from error
        return seats

    def find_problems(self, plan: ServerPlan) -> Iterator[str]:
        """Yields a sentence for each reason why the policies cannot act for a server's agents."""
        ours = {agent.policy_id for agent in plan.agents.values()}
        unknown = [policy_id for policy_id in self._names if policy_id not in ours]
        if unknown:
            yield (
                f"FROZEN's setting 'policies' names the policy {unknown[0]!r}, which the server "
                f"does not have: it has {', '.join(sorted(ours))}"
            )
            return
        try:
            names = self.names_of(plan)
            seats = self.seating.make_seats(plan, self.observing(plan))
        except ValueError as error:
            yield str(error)
            return
        yield from self._unlike_readings(plan, names)
        refused: set[str] = set()
        for seat_id, seat in seats.items():
            if seat.policy_id in refused:
                continue
            observation_space, action_space = self.spaces[names[seat.policy_id]]
            sees, acts = spaces_of(seat)
            unread = self.seating.unread(self._checkpoint.about)
            seen = _observed(sees, unread)
            expected = _observed(observation_space, unread)
            if seen != expected:
                verb = "observes"
            elif acts != action_space:
                verb, seen, expected = "acts in", acts, action_space
            else:
                continue
            refused.add(seat.policy_id)
            cause = (
                "are the groups as they were" if self.seating.forms_teams else "is it the same task"
            )
            path = str(self._checkpoint.path)
            yield (
                f"policy {names[seat.policy_id]!r} of checkpoint {path!r} {verb} "
                f"{_shown(expected)}, but {seat_id!r} {verb} {_shown(seen)}; {cause}?"
            )

    def _unlike_readings(self, plan: ServerPlan, names: Mapping[str, str]) -> Iterator[str]:
        """Yields a sentence for each agent whose observations were read differently in training."""
        about = self._checkpoint.about
        scales = about["scale_observations"] != "none"
        if not scales and not about["normalize_observations"]:
            return
        theirs: dict[str, set[str]] = {}
        for agent in plan_of(about).agents.values():
            theirs.setdefault(agent.policy_id, set()).add(_kind(agent, with_bounds=scales))
        for agent_id, agent in plan.agents.items():
            name, kind = names[agent.policy_id], _kind(agent, with_bounds=scales)
            if kind not in theirs[name]:
                yield (
                    f"policy {name!r} of checkpoint {str(self._checkpoint.path)!r} has learned "
                    f"to read {min(theirs[name])}, scaled or normalised, but {agent_id!r} observes "
                    f"{kind}; is it the same task?"
                )

    def names_of(self, plan: ServerPlan) -> dict[str, str]:
        """Returns the name in the checkpoint of each policy of a server."""
        names: dict[str, str] = {}
        for policy_id in dict.fromkeys(agent.policy_id for agent in plan.agents.values()):
            name = self._names.get(policy_id, policy_id)
            if name not in self.spaces and len(self.spaces) == 1:
                name = next(iter(self.spaces))  # no other policy can be meant
            if name not in self.spaces:
                raise AlgorithmProblem(self._no_policy(policy_id, name))
            names[policy_id] = name
        return names

    def _no_policy(self, policy_id: str, name: str) -> str:
        return (
            f"checkpoint {str(self._checkpoint.path)!r} has no policy {name!r}, only "
            f"{', '.join(self.spaces)}; name the right one in the setting 'policies', as in "
            f"{{{policy_id}: {next(iter(self.spaces), '...')}}}"
        )


def open_policies(checkpoint: Checkpoint, names: Mapping[str, str]) -> FrozenPolicies:
    """Returns the policies of a checkpoint, loaded by its algorithm.

    Args:
        checkpoint, names: see `FrozenPolicies`.

    Raises:
        AlgorithmProblem: as for `FrozenPolicies`; or the trainer's class cannot be imported.
    """
    # If an external process wrote the checkpoint, its note names the class.
    name = checkpoint.about.get("trainer") or checkpoint.algorithm
    try:
        entry = find_trainer(name)
    except AlgorithmProblem as error:
        raise AlgorithmProblem(f"checkpoint {str(checkpoint.path)!r}: {error}") from error
    if entry is None:
        raise AlgorithmProblem(
            f"the {ABOUT_FILE} of checkpoint {str(checkpoint.path)!r} names "
            f"{name or 'no algorithm'}, which does not learn or is not known; was it edited?"
        )
    return FrozenPolicies(entry, checkpoint, names)


def _kind(agent: AgentPlan, *, with_bounds: bool) -> str:
    space = split_state(agent.observation_space)[0]
    return repr(space) if with_bounds else str(without_bounds(space))


def _observed(space: gymnasium.Space, unread: Collection[str]) -> Any:
    """Returns what a network must match to act, of an observation space: shapes, not bounds."""
    if isinstance(space, gymnasium.spaces.Dict):
        parts = space.spaces.items()
        return {key: _observed(sub, unread) for key, sub in parts if key not in unread}
    return space.shape if isinstance(space, gymnasium.spaces.Box) else space


def _shown(space: Any) -> str:
    if isinstance(space, dict):
        return "{" + ", ".join(f"{key}: {_shown(sub)}" for key, sub in space.items()) + "}"
    return f"shape {space}" if isinstance(space, tuple) else str(space)


@contextlib.contextmanager
def understood(checkpoint: Checkpoint) -> Iterator[None]:
    """Turns exceptions over a checkpoint's note into an `AlgorithmProblem` that says so."""
    try:
        yield
    except (KeyError, TypeError, ValueError, AttributeError) as error:  # maybe edited
        raise AlgorithmProblem(
            f"the {ABOUT_FILE} of checkpoint {str(checkpoint.path)!r} cannot be understood: "
            f"{type(error).__name__}: {error}; was it edited?"
        ) from error


def plan_of(about: Mapping[str, Any]) -> ServerPlan:
    """Returns the plan of the server that was saved, as far as seats depend on it.

    What the note leaves out can change the global state at most, on which no policy acts.

    Raises:
        KeyError, TypeError, ValueError, AttributeError: the note cannot be understood.
    """
    return ServerPlan(
        server_id=about["server_id"],
        algorithm=about["algorithm"],
        agents={
            agent_id: AgentPlan(
                agent["policy"],
                msgspec.convert(agent["observation_space"], Space),
                msgspec.convert(agent["action_space"], Space),
                agent["group"],
            )
            for agent_id, agent in about["agents"].items()
        },
        groups={group: tuple(members) for group, members in about["groups"].items()},
        state_size=about["state_size"],
        **{part: about[part] for part in READ_ALIKE},
    )
