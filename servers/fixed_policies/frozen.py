"""The policies of a checkpoint, acting as they were saved.

The note beside them says how they were used, so that the config of the run that trained them is not
needed: for a team, with an action mask apart, beside a global state.
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
"""Parts of a note that say what a central critic reads."""
_OF_TRAINERS = ("settings", "model", "rl_module", "state_size")
"""Parts of a note that trainers are made by, as a plan has them."""


class Critics(NamedTuple):
    """Whole trainers, with which states are valued."""

    actors: Actors
    seats: Mapping[str, Seat]
    """By id; they observe what critics read."""


class FrozenPolicies:
    """The policies of a checkpoint, and how agents are seated for them.

    Attributes:
        name: of the algorithm.
        seating: the one that they were trained with.
        spaces: by policy, what it observes and does.

    Args:
        entry: the algorithm.
        checkpoint: where they are.
        names: what a server's policies are called in the checkpoint, where that differs.

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
        """Returns what acts for a server.

        Args:
            plan: the server.
            should_explore: whether actions are drawn as in training, at the point where it ended;
                else the likeliest one, or the one of the highest value, is taken. So an opponent is
                the same in training and in evaluation. None: as each episode asks.

        Raises:
            AlgorithmProblem: the policies cannot be loaded, or are not what the note says.
        """
        seats = self.seating.make_seats(plan, self.observing(plan))
        actors = self._load(plan, seats, only_acting=True)
        actors.should_explore = should_explore
        return actors

    def load_critics(self, plan: ServerPlan) -> Critics:
        """Returns the critics of a server's policies.

        Raises:
            AlgorithmProblem: they cannot be loaded.
        """
        with_states = self._as_noted(plan, _OF_STATES)  # as agents saw it in training
        seats = self.make_seats(with_states, self.observing(with_states), has_states=True)
        actors = self._load(with_states, seats, only_acting=False)
        read = [getattr(one, "value_keys", ()) for one in actors.learners.values()]
        if not any(STATE in keys for keys in read):
            alone = replace(plan, late_members="allow", state_size=None)
            seats = self.make_seats(alone, self.observing(alone))
        return Critics(actors, seats)

    def _load(self, plan: ServerPlan, seats: Mapping[str, Seat], *, only_acting: bool) -> Actors:
        """Returns trainers for a server.

        Args:
            plan: the server.
            seats: its own.
            only_acting: whether critics are left out where trainers tell them apart: they need not
                fit then.

        Raises:
            AlgorithmProblem: they cannot be loaded.
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
            else:  # live, among others
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
        """Returns what reads a server's observations as they were read in training, without the
        statistics."""
        return Observing(self._as_noted(plan, READ_ALIKE))

    @property
    def state_size(self) -> int | None:
        """Length of the simulation's global state in training; None: it sent none."""
        return self._checkpoint.about["state_size"]

    def reward_deviation(self, plan: ServerPlan, policy_id: str) -> float:
        """Returns what a policy's rewards were divided by in the end, 1 if they were not."""
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
            observing: its own; gets the statistics of training.
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
        """Yields a sentence for each reason why they cannot act for a server's agents."""
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
        """Yields a sentence for each agent whose observations were read in another way."""
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
        """Returns what each of a server's policies is called in the checkpoint."""
        names: dict[str, str] = {}
        for policy_id in dict.fromkeys(agent.policy_id for agent in plan.agents.values()):
            name = self._names.get(policy_id, policy_id)
            if name not in self.spaces and len(self.spaces) == 1:
                name = next(iter(self.spaces))  # only one can be meant
            if name not in self.spaces:
                raise AlgorithmProblem(self._no_policy(policy_id, name))
            names[policy_id] = name
        return names

    def _no_policy(self, policy_id: str, name: str) -> str:
        return (
            f"checkpoint {str(self._checkpoint.path)!r} has no policy {name!r}, it has "
            f"{', '.join(self.spaces)}; say which is which with the setting 'policies', as "
            f"{{{policy_id}: {next(iter(self.spaces), '...')}}}"
        )


def open_policies(checkpoint: Checkpoint, names: Mapping[str, str]) -> FrozenPolicies:
    """Returns the policies of a checkpoint, which its algorithm loads.

    Args:
        checkpoint, names: see `FrozenPolicies`.

    Raises:
        AlgorithmProblem: as `FrozenPolicies`; or the trainer's class cannot be imported.
    """
    # Of a process of its own the note names the class.
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
    """The part of an observation space that a network must match to act: shapes, not bounds."""
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
    """Makes what is raised over a checkpoint's note an `AlgorithmProblem` that says so."""
    try:
        yield
    except (KeyError, TypeError, ValueError, AttributeError) as error:  # it may have been edited
        raise AlgorithmProblem(
            f"the {ABOUT_FILE} of checkpoint {str(checkpoint.path)!r} cannot be understood: "
            f"{type(error).__name__}: {error}; was it edited?"
        ) from error


def plan_of(about: Mapping[str, Any]) -> ServerPlan:
    """Returns the plan of the server that was saved, as far as its seats depend on it.

    What the note leaves out makes a difference to the global state at most, which no policy acts
    on.

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
