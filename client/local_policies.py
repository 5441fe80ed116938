"""Acting with a server's networks in its place, in numpy.

Actions are chosen as the server chooses them: drawn from logits, or the highest value but for
exploration; all agents that share a policy in one pass. An agent alone is read as a team of one.
What a member reads is made as the server makes it (`muxrl.servers.agents.teams`), and its recurrent
state is kept here. The server is sent that state with what was played, and continues from it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np

from muxrl.protocol.dense import UNAVAILABLE, flat_reader, forward_recurrent
from muxrl.protocol.messages import (
    DenseLayer,
    GruLayer,
    PolicyNetwork,
    PolicyWeights,
    ServerSpec,
)
from muxrl.protocol.spaces import ACTION_MASK_KEY, STATE_KEY, DictSpace, Discrete


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


class LocalPolicies:
    """The policies of one server.

    Args:
        spec: the server's.
        weights: its first ones.
        seed: of exploration; None: any.
    """

    def __init__(self, spec: ServerSpec, weights: PolicyWeights, seed: int | None) -> None:
        self._rng = np.random.default_rng(seed)
        self._wants_logits = weights.wants_logits
        self._members = {name: tuple(members) for name, members in spec.groups.items()}
        """Of each team; of an agent alone, itself."""
        if not self._members:
            self._members = {agent_id: (agent_id,) for agent_id in spec.agents}
        self._team_of = {a: name for name, members in self._members.items() for a in members}
        self._policy_of = {n: spec.agents[m[0]].policy_id for n, m in self._members.items()}
        self.has_memory = bool(spec.groups)
        """Whether `follow` has to be called with steps."""
        self._readers: dict[str, Callable[[Any], np.ndarray]] = {}
        self._masks: dict[str, np.ndarray | None] = {}
        """Of agents that may not do all that their network knows; None: as they observe."""
        self._starts: dict[str, int] = {}
        for agent_id, agent in spec.agents.items():
            space, acts = agent.observation_space, agent.action_space
            assert isinstance(acts, Discrete)
            self._starts[agent_id] = acts.start
            if spec.groups:
                self._masks[agent_id] = np.ones(acts.n)
            if weights.follows_masks and isinstance(space, DictSpace):
                if ACTION_MASK_KEY in space.spaces:
                    self._masks[agent_id] = None
                unread = (ACTION_MASK_KEY, STATE_KEY) if spec.groups else (ACTION_MASK_KEY,)
                parts = space.spaces.items()
                space = DictSpace({k: sub for k, sub in parts if k not in unread})
            self._readers[agent_id] = flat_reader(space)
        self.load(weights)

    def load(self, weights: PolicyWeights) -> None:
        """Acts with other weights from now on."""
        self._networks: Mapping[str, PolicyNetwork] = weights.policies
        self.version = weights.weights_seq_no
        self.epsilon = weights.epsilon
        """The probability of an action at random; None: actions are drawn from logits."""

    def act(self, asked: Sequence[Asked]) -> list[Chosen]:
        """Returns the actions of each step; their memories have moved on."""
        chosen = [Chosen({}, {}) for _ in asked]
        rows_of: dict[str, list[tuple[str, Asked, Chosen]]] = {}
        for step, result in zip(asked, chosen, strict=True):
            for team in self._acting(step):
                rows_of.setdefault(self._policy_of[team], []).append((team, step, result))
        for policy_id, rows in rows_of.items():
            values, cells = self._values(policy_id, rows)
            size = len(values) // len(rows)
            explores = [step.should_explore for _, step, _ in rows for _ in range(size)]
            actions = self._choose(values, np.array(explores)).tolist()
            for cell, (member, result) in cells.items():
                result.actions[member] = actions[cell] + self._starts[member]
                if self._wants_logits:
                    result.logits[member] = values[cell]
        if self.has_memory:
            for step, result in zip(asked, chosen, strict=True):
                step.memory.last_actions.update(result.actions)
        return chosen

    def follow(self, step: Asked, actions: Mapping[str, int]) -> None:
        """Receives a step whose actions were chosen elsewhere, if it `has_memory`."""
        for team in self._acting(step):
            self._values(self._policy_of[team], [(team, step, Chosen({}, {}))])
        step.memory.last_actions.update(actions)

    def _acting(self, step: Asked) -> Iterable[str]:
        """Returns the teams of which a member observes."""
        if not self.has_memory:
            return step.observations
        return dict.fromkeys(self._team_of[agent_id] for agent_id in step.observations)

    def _values(
        self, policy_id: str, rows: Sequence[tuple[str, Asked, Chosen]]
    ) -> tuple[np.ndarray, dict[int, tuple[str, Chosen]]]:
        """Returns a number for each action, `UNAVAILABLE` of one that a mask forbids.

        Args:
            policy_id: which.
            rows: ``B`` teams of one size at a step; their recurrent states move on.

        Returns:
            ``[B * members, actions]``, and who observes, by the index there.
        """
        network = self._networks[policy_id]
        first, last = network.layers[0], network.layers[-1]
        assert isinstance(first, DenseLayer)
        assert isinstance(last, DenseLayer)
        num_members, num_actions = len(self._members[rows[0][0]]), last.weight.shape[1]
        x = np.zeros((len(rows) * num_members, len(first.weight)), np.float32)
        end = x.shape[1] - num_members * network.reads_member_id
        width = end - num_actions * network.reads_last_action
        cells: dict[int, tuple[str, Chosen]] = {}
        reads, masked, masks, readers, masks_of = [], [], [], self._readers, self._masks
        for row, (team, (observations, _, memory), result) in enumerate(rows):
            for cell, member in enumerate(self._members[team], row * num_members):
                if member not in observations:
                    continue
                seen = observations[member]
                read = readers[member](seen)
                cells[cell] = member, result
                reads.append(read if len(read) == width else _padded(read, width))
                if member in masks_of:
                    mask = masks_of[member]
                    masked.append(cell)
                    masks.append(
                        _padded(seen[ACTION_MASK_KEY] if mask is None else mask, num_actions)
                    )
                if network.reads_last_action and member in memory.last_actions:
                    x[cell, width + memory.last_actions[member]] = 1.0
        if len(reads) == len(x) and width == x.shape[1]:
            x = np.array(reads)
        else:
            x[list(cells), :width] = reads
        if network.reads_member_id:
            x[:, end:] = np.tile(np.eye(num_members), (len(rows), 1))
        size = _recurrent_size(network)
        h = np.zeros((len(rows), num_members, size), np.float32)
        if size:
            for row, (team, step, _) in enumerate(rows):
                h[row] = step.memory.states.get(team, 0.0)
        values, h = forward_recurrent(network.layers, x, h.reshape(len(x), size))
        if size:
            for (team, step, _), state in zip(
                rows, h.reshape(len(rows), num_members, size), strict=True
            ):
                step.memory.states[team] = state
        if masked:
            is_forbidden = np.zeros(values.shape, bool)
            is_forbidden[masked] = np.array(masks) <= 0
            values[is_forbidden] = UNAVAILABLE
        return values, cells

    def _choose(self, values: np.ndarray, should_explore: np.ndarray) -> np.ndarray:
        """Returns the numbers of actions ``[...]``.

        Args:
            values: ``[..., n]``; of unavailable actions `UNAVAILABLE`.
            should_explore: whether to, ``[...]``.
        """
        if not should_explore.any():
            return values.argmax(axis=-1)
        if self.epsilon is None:  # Gumbel-max
            noise = np.log(self._rng.standard_exponential(values.shape))
            noise[~should_explore] = 0.0
            return (values - noise).argmax(axis=-1)
        # + 1 keeps available actions above the others
        draws = (self._rng.random(values.shape) + 1.0) * (values > UNAVAILABLE)
        is_random = should_explore & (self._rng.random(values.shape[:-1]) < self.epsilon)
        return np.where(is_random, draws.argmax(axis=-1), values.argmax(axis=-1))


def _padded(row: np.ndarray, size: int) -> np.ndarray:
    return row if len(row) == size else np.concatenate([row, np.zeros(size - len(row))])


def _recurrent_size(network: PolicyNetwork) -> int:
    return sum(len(layer.weight_h) for layer in network.layers if isinstance(layer, GruLayer))
