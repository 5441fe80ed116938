"""What a server gives to clients that act in its place: its networks as plain arrays.

It does so for agents alone that draw Discrete actions from RLlib's default MLPs, whose observations
the client can read as the server does. Everything else is refused by name.
"""

from __future__ import annotations

from collections.abc import Collection

from muxrl.protocol.codec import encode
from muxrl.protocol.messages import PolicyWeights
from muxrl.protocol.spaces import Discrete
from muxrl.servers.algorithms.action_masks import OBS
from muxrl.servers.algorithms.entry import AlgorithmEntry
from muxrl.servers.config import ServerPlan
from muxrl.servers.inference import Inference
from muxrl.servers.numpy_mlp import dense_layers
from muxrl.servers.observing import Observing
from muxrl.servers.seats import Seat, SoloSeat
from muxrl.servers.spaces import split_mask


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
        self._follows_masks = entry.seating.follows_masks
        self._inference = inference
        self._policy_ids = {seat.policy_id for seat in seats}
        self._newest: tuple[int, bytes] | None = None
        self.problem = _find_problem(plan, entry, seats, observing, inference)
        """Why clients cannot act in this server's place; "" if they can."""

    @property
    def version(self) -> int:
        """Of the weights in use."""
        return self._inference.weights_seq_no

    def weights(self) -> bytes:
        """Returns the newest `PolicyWeights` in msgpack; encoded once for each version."""
        if self.problem:
            return encode(PolicyWeights(self._server_id, problem=self.problem))
        if self._newest is None or self._newest[0] != self.version:
            self._newest = self._inference.read(self._encode)
        return self._newest[1]

    def _encode(self) -> tuple[int, bytes]:
        modules = self._inference.modules
        policies = {
            policy_id: dense_layers(modules[policy_id]) or [] for policy_id in self._policy_ids
        }
        message = PolicyWeights(self._server_id, self.version, policies, self._follows_masks)
        return self.version, encode(message)


def _find_problem(
    plan: ServerPlan,
    entry: AlgorithmEntry,
    seats: Collection[Seat],
    observing: Observing,
    inference: Inference,
) -> str:
    if not entry.needs_log_probabilities:
        return f"{entry.name} takes the action of the highest value and explores around it"
    if not all(type(seat) is SoloSeat for seat in seats):
        return f"{entry.name} acts for agents by more than what each of them observes"
    if plan.frame_stack > 1:
        return f"its networks read {plan.frame_stack} observations at once (frame_stack)"
    for agent_id, agent in plan.agents.items():
        if not isinstance(agent.action_space, Discrete):
            return f"agent {agent_id!r} acts {agent.action_space}, not Discrete"
        if observing.reading(agent_id, entry.seating.network_space(agent)) is not None:
            return f"what agent {agent_id!r} observes is scaled or normalised on the server"
        if split_mask(agent.observation_space)[1] and not entry.seating.follows_masks:
            return f"agent {agent_id!r} observes an action mask, which {entry.name} does not follow"
    for policy_id, module in inference.modules.items():
        keys = getattr(module, "acting_keys", None)
        if dense_layers(module) is None or (keys is not None and keys[0] != OBS):
            return (
                f"policy {policy_id!r} is not one of RLlib's default MLPs on the CPU "
                f"({type(module).__name__}: a network of one's own, a recurrent one, or one for "
                "images)"
            )
    return ""
