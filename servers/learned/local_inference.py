"""What a server gives to clients that act in its place: its networks as plain arrays.

It does so for Discrete actions alone, of networks that the algorithm's entry knows, whose
observations the client can read as the server does. Everything else is refused by name, by the
server as by `muxrl check`.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from muxrl.protocol.codec import encode
from muxrl.protocol.messages import PolicyNetwork, PolicyWeights
from muxrl.protocol.spaces import Discrete
from muxrl.servers.agents.observing import Observing
from muxrl.servers.agents.seat_actions import TeamChoices
from muxrl.servers.agents.seats import Seat
from muxrl.servers.agents.spaces import split_mask
from muxrl.servers.algorithms.entry import AlgorithmEntry
from muxrl.servers.algorithms.registry import get_algorithm
from muxrl.servers.config import ServerPlan
from muxrl.servers.episodes.played import StateShape
from muxrl.servers.fixed_names import no_weights
from muxrl.servers.fixed_policies.entry import find_fixed
from muxrl.servers.learned.algorithm_config import build_networks
from muxrl.servers.rllib.inference import Inference
from muxrl.servers.trainers.lookup import find_trainer


class LocalInference:
    """The networks of one server, for its clients.

    Args:
        plan: the server.
        entry: its algorithm.
        seats: its agents.
        observing: how it reads observations.
        inference: has the networks.
    """

    def __init__(
        self,
        plan: ServerPlan,
        entry: AlgorithmEntry,
        seats: Collection[Seat],
        observing: Observing,
        inference: Inference,
    ) -> None:
        self._server_id = plan.server_id
        self._entry = entry
        self._inference = inference
        self._policy_ids = {seat.policy_id for seat in seats}
        self._newest: tuple[int, float | None, bytes] | None = None
        self.problem = _problem_of_agents(plan, entry, seats, observing) or _problem_of_modules(
            entry, inference.modules
        )
        """Why clients cannot act in this server's place; "" if they can."""
        self.states: dict[str, StateShape] = {}
        """By seat id, what a client says of its recurrent state."""
        if not self.problem:
            for seat in seats:
                module = inference.modules[seat.policy_id]
                for key, value in module.get_initial_state().items():
                    self.states[seat.seat_id] = StateShape(key, tuple(value.shape), seat.members)

    @property
    def version(self) -> int:
        """Of the weights in use."""
        return self._inference.weights_seq_no

    def epsilon(self) -> float | None:
        """Returns the probability of an action at random; None: actions are drawn from logits."""
        if self._entry.samples_actions or self.problem:
            return None
        return self._inference.epsilon_of(next(iter(self._policy_ids)))  # it is the same of all

    def weights(self) -> bytes:
        """Returns the newest `PolicyWeights` in msgpack; encoded once for each version."""
        if self.problem:
            return encode(PolicyWeights(self._server_id, problem=self.problem))
        now = self.version, self.epsilon()
        if self._newest is None or self._newest[:2] != now:
            self._newest = self._inference.read(self._encode)
        return self._newest[2]

    def _encode(self) -> tuple[int, float | None, bytes]:
        modules, epsilon = self._inference.modules, self.epsilon()
        policies: dict[str, PolicyNetwork] = {}
        for policy_id in self._policy_ids:
            network = self._entry.acting_network(modules[policy_id])
            assert network is not None, "or there would be a problem"
            policies[policy_id] = network
        message = PolicyWeights(
            self._server_id,
            self.version,
            policies,
            self._entry.seating.follows_masks,
            epsilon,
            self._entry.needs_log_probabilities,
        )
        return self.version, epsilon, encode(message)


def find_local_problem(plan: ServerPlan) -> str:
    """Says why clients could not act in a server's place; "" if they could.

    It builds the server's networks, nothing else of it. The plan must be one without problems.
    """
    if find_fixed(plan.algorithm) is not None:
        return no_weights(plan.algorithm)
    if find_trainer(plan.algorithm) is not None:
        return f"only the server can act with a trainer of one's own ({plan.algorithm})"
    entry, observing = get_algorithm(plan.algorithm), Observing.of(plan)
    seats = entry.seating.make_seats(plan, observing)
    problem = _problem_of_agents(plan, entry, seats.values(), observing)
    if problem:
        return problem
    try:
        modules = build_networks(plan, entry, seats, inference_only=True)
    except Exception as error:  # noqa: BLE001  # RLlib and the user's module may raise anything
        return f"its networks cannot be built: {type(error).__name__}: {error}"
    return _problem_of_modules(entry, modules)


def _problem_of_agents(
    plan: ServerPlan, entry: AlgorithmEntry, seats: Collection[Seat], observing: Observing
) -> str:
    is_team = entry.seating.forms_teams
    if not (entry.seating.reads_no_others or entry.seating.actions is TeamChoices):
        return f"{entry.name} acts for agents by more than what each of them observes"
    if is_team and plan.agents_return:
        return "the server alone knows when a team's next life begins (simulation.respawn)"
    if plan.frame_stack > 1:
        return f"its networks read {plan.frame_stack} observations at once (frame_stack)"
    for agent_id, agent in plan.agents.items():
        if not isinstance(agent.action_space, Discrete):
            return f"agent {agent_id!r} acts {agent.action_space}, not Discrete"
        if is_team and agent.action_space.start:
            return f"agent {agent_id!r} counts its actions from {agent.action_space.start}, not 0"
        if observing.reading(agent_id, entry.seating.own_space(agent)) is not None:
            return f"what agent {agent_id!r} observes is scaled or normalised on the server"
        if split_mask(agent.observation_space)[1] and not entry.seating.follows_masks:
            return f"agent {agent_id!r} observes an action mask, which {entry.name} does not follow"
    return ""


def _problem_of_modules(entry: AlgorithmEntry, modules: Mapping[str, Any]) -> str:
    for policy_id, module in modules.items():
        if entry.acting_network(module) is None:
            return (
                f"policy {policy_id!r} is not one of {entry.name}'s default small networks on the "
                f"CPU ({type(module).__name__}: a network of one's own, with an LSTM or atoms, or "
                "one for images)"
            )
    return ""
