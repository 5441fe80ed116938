"""Acting with a server's networks in its place, in numpy.

Actions are chosen as the server chooses them: drawn from logits, or the highest value but for
exploration; all agents that share a policy in one pass. `SoloPolicies` are for agents alone,
`muxrl.client.local_teams` has those of teams.
"""

from __future__ import annotations

import abc
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, NamedTuple

import numpy as np

from muxrl.protocol.dense import UNAVAILABLE, flat_reader, forward
from muxrl.protocol.messages import DenseLayer, PolicyNetwork, PolicyWeights, ServerSpec
from muxrl.protocol.spaces import ACTION_MASK_KEY, DictSpace, Discrete


@dataclass(slots=True)
class Memory:
    """What is remembered of an open episode."""

    last_actions: dict[str, int] = field(default_factory=dict)
    """By agent."""
    states: dict[str, np.ndarray] = field(default_factory=dict)
    """Of recurrent networks, by group: float32 ``[members, hidden]``."""


class Asked(NamedTuple):
    """A step of an episode, with conforming observations by agent."""

    observations: Mapping[str, Any]
    should_explore: bool
    memory: Memory


class Chosen(NamedTuple):
    """The actions of a step as the simulation takes them, and what each was drawn from, float32
    ``[n]``, if the server wants to know."""

    actions: dict[str, int]
    logits: dict[str, np.ndarray]


def no_local_inference(server_id: str, algorithm: str, problem: str) -> str:
    """Returns the sentence that refuses local inference for a server."""
    return (
        f"server {server_id!r} ({algorithm}) has no policies for local inference: {problem}; "
        "leave it at inference_mode='remote'"
    )


class LocalPolicies(abc.ABC):
    """The policies of one server.

    Args:
        spec: the server's.
        weights: its first ones.
        seed: of exploration; None: any.
    """

    _unread: ClassVar[tuple[str, ...]] = (ACTION_MASK_KEY,)
    """Parts of an observation that networks which follow masks do not read."""

    def __init__(self, spec: ServerSpec, weights: PolicyWeights, seed: int | None) -> None:
        self.version = 0
        self.epsilon: float | None = None
        """The probability of an action at random; None: actions are drawn from logits."""
        self._networks: Mapping[str, PolicyNetwork] = {}
        self._rng = np.random.default_rng(seed)
        self._wants_logits = weights.wants_logits
        self._readers: dict[str, Callable[[Any], np.ndarray]] = {}
        self._masked: set[str] = set()
        self._action_spaces: dict[str, Discrete] = {}
        for agent_id, agent in spec.agents.items():
            space = agent.observation_space
            if weights.follows_masks and isinstance(space, DictSpace):
                if ACTION_MASK_KEY in space.spaces:
                    self._masked.add(agent_id)
                parts = space.spaces.items()
                space = DictSpace({k: sub for k, sub in parts if k not in self._unread})
            self._readers[agent_id] = flat_reader(space)
            assert isinstance(agent.action_space, Discrete)
            self._action_spaces[agent_id] = agent.action_space
        self.load(weights)

    def load(self, weights: PolicyWeights) -> None:
        """Acts with other weights from now on."""
        self._networks, self.version = weights.policies, weights.weights_seq_no
        self.epsilon = weights.epsilon

    @abc.abstractmethod
    def act(self, asked: Sequence[Asked]) -> list[Chosen]:
        """Returns the actions of each step; their memories have moved on."""

    @property
    def has_memory(self) -> bool:
        """Whether `follow` has to be told of steps."""
        return False

    def follow(
        self, observations: Mapping[str, Any], actions: Mapping[str, int], memory: Memory
    ) -> None:
        """Takes in a step whose actions were chosen elsewhere; observations conform."""
        return

    def _choose(
        self, values: np.ndarray, masks: np.ndarray | None, should_explore: np.ndarray
    ) -> np.ndarray:
        """Returns the numbers of actions ``[...]``.

        Args:
            values: ``[..., n]``; of unavailable actions `UNAVAILABLE`.
            masks: ``[..., n]``, above 0 for available actions; None: all are.
            should_explore: whether to, ``[...]``.
        """
        if not should_explore.any():
            return values.argmax(axis=-1)
        if self.epsilon is None:  # Gumbel-max
            noise = np.log(self._rng.standard_exponential(values.shape))
            noise[~should_explore] = 0.0
            return (values - noise).argmax(axis=-1)
        draws = self._rng.random(values.shape)
        if masks is not None:  # + 1 keeps available actions above the others
            draws = (draws + 1.0) * (masks > 0)
        is_random = should_explore & (self._rng.random(values.shape[:-1]) < self.epsilon)
        return np.where(is_random, draws.argmax(axis=-1), values.argmax(axis=-1))


class SoloPolicies(LocalPolicies):
    """Policies of agents that each act alone."""

    def __init__(self, spec: ServerSpec, weights: PolicyWeights, seed: int | None) -> None:
        super().__init__(spec, weights, seed)
        self._policy_of = {a: agent.policy_id for a, agent in spec.agents.items()}

    def act(self, asked: Sequence[Asked]) -> list[Chosen]:
        rows_of: dict[str, list[tuple[str, Any, Chosen]]] = {}
        explores_of: dict[str, list[bool]] = {}
        chosen = [Chosen({}, {}) for _ in asked]
        for step, result in zip(asked, chosen, strict=True):
            for agent_id, observation in step.observations.items():
                policy_id = self._policy_of[agent_id]
                rows_of.setdefault(policy_id, []).append((agent_id, observation, result))
                explores_of.setdefault(policy_id, []).append(step.should_explore)
        for policy_id, rows in rows_of.items():
            readers, masks = self._readers, None
            read = np.array([readers[agent_id](seen) for agent_id, seen, _ in rows])
            values = forward(self._layers(policy_id), read)
            if rows[0][0] in self._masked:  # agents that share a policy are alike
                masks = np.array([seen[ACTION_MASK_KEY] for _, seen, _ in rows])
                values[masks <= 0] = UNAVAILABLE
            actions = self._choose(values, masks, np.array(explores_of[policy_id]))
            for (agent_id, _, result), action, row in zip(
                rows, actions.tolist(), values, strict=True
            ):
                result.actions[agent_id] = action + self._action_spaces[agent_id].start
                if self._wants_logits:
                    result.logits[agent_id] = row
        return chosen

    def _layers(self, policy_id: str) -> Sequence[DenseLayer]:
        return self._networks[policy_id].layers  # type: ignore[return-value]  # none is recurrent
