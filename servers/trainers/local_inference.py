"""Gives a server's networks, as plain arrays, to clients that act in the server's place.

This works only for Discrete actions and networks of plain layers, if the client can read their
observations as the server does. Anything else is refused with the reason, by the server and by
`muxrl check`.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

import numpy as np

from muxrl.protocol.codec import encode
from muxrl.protocol.messages import PolicyNetwork, PolicyWeights
from muxrl.protocol.spaces import Discrete
from muxrl.servers.agents.observing import Observing
from muxrl.servers.agents.seat_actions import TeamChoices
from muxrl.servers.agents.seats import Seat
from muxrl.servers.agents.spaces import split_mask
from muxrl.servers.config import ServerPlan
from muxrl.servers.episodes.feed import Feed
from muxrl.servers.episodes.played import PlayedCheck, StateShape
from muxrl.servers.fixed_names import no_weights
from muxrl.servers.trainers.acting import Actors
from muxrl.servers.trainers.entry import TrainerEntry
from muxrl.servers.trainers.lookup import find_trainer


@dataclass
class LocalInference:
    """The networks of one server, for its clients.

    Attributes:
        plan: the server.
        entry: its algorithm.
        seats: of its agents.
        observing: reads observations for it.
        actors: its trainers.
        problem: why clients cannot act in its place; "" if they can.
    """

    plan: ServerPlan
    entry: TrainerEntry
    seats: Collection[Seat]
    observing: Observing
    actors: Actors

    def __post_init__(self) -> None:
        self._policy_ids = tuple(dict.fromkeys(seat.policy_id for seat in self.seats))
        self._newest: tuple[int, float | None, bytes] | None = None
        self.problem = self._find_problem()
        self._states: dict[str, StateShape] = {}
        """By seat id: the recurrent state that a client sends with its steps."""
        if not self.problem:
            for seat in self.seats:
                for key, value in self.actors.initial_state(seat.policy_id).items():
                    self._states[seat.seat_id] = StateShape(key, np.shape(value), seat.members)

    @property
    def _reads_log_probs(self) -> bool:
        """Whether the learner reads the log-probabilities of actions."""
        return self.entry.learns_from != "replay"

    def epsilon(self) -> float | None:
        """Returns the current probability of a random action; None: there is no epsilon."""
        if self.problem:
            return None
        return self.actors.epsilon(self._policy_ids[0])  # equal for all policies

    def check(self, feed: Feed, *, reports_logged: bool = False) -> PlayedCheck:
        """Returns the reader of steps in which clients acted by themselves.

        Args:
            feed: of the server; limits how old its own actions can be.
            reports_logged: see `PlayedCheck`.
        """
        return PlayedCheck(
            self.plan.agents,
            self.problem,
            lambda: self.actors.weights_seq_no,
            max_lag=feed.max_ahead + 1 if self._reads_log_probs else None,
            states=self._states,
            epsilon=self.epsilon,
            reports_logged=reports_logged,
        )

    def weights(self) -> bytes:
        """Returns the newest `PolicyWeights` in msgpack; each version is encoded only once."""
        if self.problem:
            return encode(PolicyWeights(self.plan.server_id, problem=self.problem))
        now = self.actors.weights_seq_no, self.epsilon()
        if self._newest is None or self._newest[:2] != now:
            with self.actors.lock:  # no weights are loaded meanwhile
                self._newest = self._encode()
        return self._newest[2]

    def _encode(self) -> tuple[int, float | None, bytes]:
        version, epsilon = self.actors.weights_seq_no, self.epsilon()
        policies: dict[str, PolicyNetwork] = {}
        for policy_id in self._policy_ids:
            network = self.actors.acting_network(policy_id)
            assert network is not None, "or there would be a problem"
            policies[policy_id] = network
        message = PolicyWeights(
            self.plan.server_id,
            version,
            policies,
            self.entry.seating.follows_masks,
            epsilon,
            self._reads_log_probs,
        )
        return version, epsilon, encode(message)

    def _find_problem(self) -> str:
        plan, actors, entry = self.plan, self.actors, self.entry
        name, seating = entry.name, entry.seating
        if not hasattr(next(iter(actors.learners.values())), "acting_network"):
            return of_one_s_own(actors.name)
        is_team = seating.forms_teams
        if not (seating.reads_no_others or seating.actions is TeamChoices):
            return f"{name} acts for agents by more than what each of them observes"
        if is_team and plan.agents_return:
            return "the server alone knows when a team's next life begins (simulation.respawn)"
        if plan.frame_stack > 1:
            return f"its networks read {plan.frame_stack} observations at once (frame_stack)"
        for agent_id, agent in plan.agents.items():
            acts = agent.action_space
            if not isinstance(acts, Discrete):
                return f"agent {agent_id!r} acts {acts}, not Discrete"
            if is_team and acts.start:
                return f"agent {agent_id!r} counts its actions from {acts.start}, not 0"
            if self.observing.reading(agent_id, seating.own_space(agent)) is not None:
                return f"what agent {agent_id!r} observes is scaled or normalised on the server"
            if split_mask(agent.observation_space)[1] and not seating.follows_masks:
                return f"agent {agent_id!r} observes an action mask, which {name} does not follow"
        for policy_id in self._policy_ids:
            if actors.acting_network(policy_id) is None:
                kind = type(actors.acting(policy_id)).__name__
                return (
                    f"policy {policy_id!r} is not one of {actors.name}'s default small networks on "
                    f"the CPU ({kind}: with an LSTM or atoms, or for images)"
                )
        return ""


def of_one_s_own(name: str) -> str:
    """Returns why clients cannot act in the place of a trainer without `acting_network`."""
    return f"only the server can act with a trainer of one's own ({name})"


def find_local_problem(plan: ServerPlan) -> str:
    """Returns why clients could not act in a server's place; "" if they could.

    This makes the server's trainers. The plan must have no problems.
    """
    entry, observing = find_trainer(plan.algorithm), Observing(plan)
    if entry is None:
        return no_weights(plan.algorithm)
    if entry.make is None:  # the server is another process
        return of_one_s_own(entry.name)
    seats = entry.seating.make_seats(plan, observing)
    actors = entry.make_actors(plan, seats)
    return LocalInference(plan, entry, seats.values(), observing, actors).problem
