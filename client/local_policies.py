"""Acts with a server's networks in the client, in numpy.

Actions are chosen as the server chooses them: drawn from logits, or the one with the highest value
unless the agent explores. One pass serves all agents that share a policy, in all episodes that step
together. An agent without a team is treated as a team of one. A network's input is composed as the
server composes it (`muxrl.servers.agents.inputs`), and recurrent states are kept here. These states
are sent to the server with the played steps, and the server continues from them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from muxrl.protocol.dense import UNAVAILABLE, flat_reader, forward, forward_recurrent
from muxrl.protocol.messages import (
    DenseLayer,
    GruLayer,
    Layer,
    PolicyNetwork,
    PolicyWeights,
    ServerSpec,
)
from muxrl.protocol.rows import Kind, Layout, columns_by_kind, grown, pick_columns
from muxrl.protocol.spaces import ACTION_MASK_KEY, STATE_KEY, DictSpace, Discrete, Space

_MAX_LAYOUTS = 256
"""Most layouts to remember: agents that come and go make many."""
_NO_ACTION = -1
"""The last action of a member that has not acted yet."""


def no_local_inference(server_id: str, algorithm: str, problem: str) -> str:
    """Returns the sentence that refuses local inference for a server."""
    return (
        f"server {server_id!r} ({algorithm}) has no policies for local inference: {problem}; "
        "leave it at inference_mode='remote'"
    )


class LocalPolicies:
    """The policies of one server, and their memory of open episodes, one slot for each episode.

    Args:
        spec: the server's spec.
        weights: the first weights of the policies.
        seed: of exploration; None: any.
    """

    def __init__(self, spec: ServerSpec, weights: PolicyWeights, seed: int | None) -> None:
        self._rng = np.random.default_rng(seed)
        self._wants_logits = weights.wants_logits
        self.members = {name: tuple(members) for name, members in spec.groups.items()}
        """By team: its agents. Without teams, each agent is the only member of one of its name."""
        if not self.members:
            self.members = {agent_id: (agent_id,) for agent_id in spec.agents}
        self._team_of = {a: name for name, members in self.members.items() for a in members}
        self._policy_of = {n: spec.agents[m[0]].policy_id for n, m in self.members.items()}
        self.place_of = {agent_id: place for place, agent_id in enumerate(spec.agents)}
        self.forms_teams = bool(spec.groups)
        self.follows_masks = weights.follows_masks
        """Whether actions that a mask forbids are never chosen."""
        self._parts: dict[tuple[str, ...], list[_Part]] = {}
        self._free: list[int] = []
        self._last_actions = np.zeros((0, len(spec.agents)), np.int64)
        """By slot and agent: the last action, or `_NO_ACTION`."""
        self._states: dict[str, np.ndarray] = {}
        """By team, of recurrent networks: states, float32 ``[slots, members, hidden]``."""
        self.load(weights)
        for team, members in self.members.items():
            for layer in self._networks[self._policy_of[team]].layers:
                if isinstance(layer, GruLayer):
                    shape = 0, len(members), len(layer.weight_h)
                    self._states[team] = np.zeros(shape, np.float32)

    @property
    def num_state_bytes(self) -> int:
        """Bytes of the recurrent states of one episode."""
        return sum(4 * int(np.prod(states.shape[1:])) for states in self._states.values())

    def load(self, weights: PolicyWeights) -> None:
        """Replaces the weights."""
        self._networks: Mapping[str, PolicyNetwork] = weights.policies
        self.version = weights.weights_seq_no
        self.epsilon = weights.epsilon
        """The probability of a random action; None: actions are drawn from logits."""

    def begin(self) -> int:
        """Returns a slot for a new episode, with an empty memory."""
        if not self._free:
            num = len(self._last_actions)
            more = num + max(8, num)
            self._free = list(range(num, more))
            self._last_actions, self._states = grown((self._last_actions, self._states), more)
        slot = self._free.pop()
        self._last_actions[slot] = _NO_ACTION
        for states in self._states.values():
            states[slot] = 0.0
        return slot

    def end(self, slot: int) -> None:
        """Frees the slot of an episode."""
        self._free.append(slot)

    def act(
        self,
        layout: Layout,
        observations: Sequence[Any],
        slots: Sequence[int],
        should_explore: Sequence[bool],
    ) -> tuple[list[np.ndarray], list[np.ndarray]]:
        """Acts in a step of ``E`` episodes, and updates their memories.

        Args:
            layout: of the agents that act.
            observations: rows of each kind, which conform to their spaces.
            slots: of the episodes.
            should_explore: whether to explore, for each episode.

        Returns:
            The actions as the simulation takes them, as rows of each kind; and the logits that they
            were drawn from, float32 ``[E, A, n]`` of each kind, [] unless the server wants them.
        """
        num, explores = len(slots), np.array(should_explore)
        shapes = [(num, len(kind.agents), _size(kind)) for kind in layout.acted]
        actions = [np.empty(shape[:2], np.int64) for shape in shapes]
        logits = [np.empty(shape, np.float32) for shape in shapes if self._wants_logits]
        for part in self._parts_of(layout):
            values = self._values(part, observations, slots)
            chosen = self._choose(values, explores)
            for kind, columns, cells in part.acted:
                start = layout.acted[kind].space.start  # type: ignore[union-attr]
                actions[kind][:, columns] = chosen[:, cells] + start
                if self._wants_logits:
                    logits[kind][:, columns] = values[:, cells]
        self._remember(layout, slots, actions)
        return actions, logits

    def follow(
        self,
        layout: Layout,
        observations: Sequence[Any],
        slots: Sequence[int],
        actions: Sequence[np.ndarray],
    ) -> None:
        """Updates the memories with a step whose actions were chosen elsewhere."""
        if self.forms_teams:
            for part in self._parts_of(layout):
                self._values(part, observations, slots)
            self._remember(layout, slots, actions)

    def states(self, layout: Layout, slots: Sequence[int]) -> dict[str, np.ndarray]:
        """Returns the recurrent states of the teams that act, float32 ``[E, members, hidden]``."""
        if not self._states:
            return {}
        acting = {self._team_of[agent_id] for agent_id in layout.agents}
        return {team: states[slots] for team, states in self._states.items() if team in acting}

    def _remember(
        self, layout: Layout, slots: Sequence[int], actions: Sequence[np.ndarray]
    ) -> None:
        if self.forms_teams:
            for kind, own in zip(layout.acted, actions, strict=True):
                places = [self.place_of[agent_id] for agent_id in kind.agents]
                self._last_actions[np.ix_(slots, places)] = own

    def _parts_of(self, layout: Layout) -> list[_Part]:
        found = self._parts.get(layout.agents)
        if found is None:
            teams_of: dict[str, list[str]] = {}
            for team in dict.fromkeys(self._team_of[agent_id] for agent_id in layout.agents):
                teams_of.setdefault(self._policy_of[team], []).append(team)
            if len(self._parts) >= _MAX_LAYOUTS:
                self._parts.clear()
            found = [_Part(self, *one, layout) for one in teams_of.items()]
            self._parts[layout.agents] = found
        return found

    def _values(self, part: _Part, observations: Sequence[Any], slots: Sequence[int]) -> np.ndarray:
        """Returns a value for each action of all members of a part's teams, ``[E, members, n]``.

        An action that a mask forbids has the value `UNAVAILABLE`. Recurrent states are updated.
        """
        network = self._networks[part.policy_id]
        first, last = network.layers[0], network.layers[-1]
        assert isinstance(first, DenseLayer)
        assert isinstance(last, DenseLayer)
        num, num_actions = len(slots), last.weight.shape[1]
        x = part.read(observations, num, len(first.weight))
        end = x.shape[-1] - part.team_size * network.reads_member_id
        if network.reads_last_action:
            done = self._last_actions[slots][:, part.places]
            at = np.nonzero((done != _NO_ACTION) & part.is_here)
            x[(*at, end - num_actions + done[at])] = 1.0
        if network.reads_member_id:
            x[..., end:] = np.tile(np.eye(part.team_size), (len(part.teams), 1))
        x = x.reshape(-1, x.shape[-1])
        if part.teams[0] in self._states:
            flat = self._step_recurrent(part, network.layers, x, slots)
        else:
            flat = forward(network.layers, x)  # type: ignore[arg-type]
        values = flat.reshape(num, -1, num_actions)
        part.mask(observations, values)
        return values

    def _step_recurrent(
        self, part: _Part, layers: Sequence[Layer], x: np.ndarray, slots: Sequence[int]
    ) -> np.ndarray:
        """Returns the output of a recurrent network for ``x``, and keeps its next states."""
        states = [self._states[team] for team in part.teams]
        before = np.stack([of_team[slots] for of_team in states], axis=1)
        values, after = forward_recurrent(layers, x, before.reshape(len(x), -1))
        for i, of_team in enumerate(states):
            of_team[slots] = after.reshape(before.shape)[:, i]
        return values

    def _choose(self, values: np.ndarray, should_explore: np.ndarray) -> np.ndarray:
        """Returns the indices of the chosen actions, ``[E, members]``.

        Args:
            values: ``[E, members, n]``; `UNAVAILABLE` for unavailable actions.
            should_explore: whether to explore, ``[E]``.
        """
        if not should_explore.any():
            return values.argmax(axis=-1)
        if self.epsilon is None:  # Gumbel-max
            noise = np.log(self._rng.standard_exponential(values.shape))
            noise[~should_explore] = 0.0
            return (values - noise).argmax(axis=-1)
        # + 1 keeps available actions above the others
        draws = (self._rng.random(values.shape) + 1.0) * (values > UNAVAILABLE)
        is_random = self._rng.random(values.shape[:-1]) < self.epsilon
        is_random &= should_explore[:, None]
        return np.where(is_random, draws.argmax(axis=-1), values.argmax(axis=-1))


class _Part:
    """The teams that share one policy, in a step of the agents of a layout.

    Args:
        policies: the server's policies.
        policy_id: the teams' policy.
        teams: names of the teams with an acting member.
        layout: of the agents that act.
    """

    def __init__(
        self, policies: LocalPolicies, policy_id: str, teams: Sequence[str], layout: Layout
    ) -> None:
        self.policy_id, self.teams = policy_id, teams
        members = [m for team in teams for m in policies.members[team]]
        self.team_size = len(members) // len(teams)
        self.is_here = np.isin(members, layout.agents)
        self.places = [policies.place_of[m] for m in members]
        self._num_members, self._sizes = len(members), np.zeros((len(members), 1))
        self._reads, self._masked = [], []
        for kind, columns, cells in columns_by_kind(members, layout.observed):
            space, is_masked = layout.observed[kind].space, False
            if policies.follows_masks and isinstance(space, DictSpace):
                is_masked = ACTION_MASK_KEY in space.spaces
                unread = {ACTION_MASK_KEY} | ({STATE_KEY} if policies.forms_teams else set())
                space = DictSpace({k: sub for k, sub in space.spaces.items() if k not in unread})
            self._reads.append((kind, columns, cells, flat_reader(space)))
            if is_masked:
                self._masked.append((kind, columns, cells))
        self.acted = list(columns_by_kind(members, layout.acted))
        """By kind of action space: its index, columns of its rows, and places of their members."""
        for kind, _, cells in self.acted:
            self._sizes[cells] = _size(layout.acted[kind])
        self._forms_teams = policies.forms_teams

    def read(self, observations: Sequence[Any], num: int, width: int) -> np.ndarray:
        """Returns the networks' input from observations, ``[E, members, width]``; the rest is 0."""
        x = np.zeros((num, self._num_members, width), np.float32)
        for kind, columns, cells, reader in self._reads:
            read = reader(pick_columns(observations[kind], columns))
            if read.shape == x.shape:  # nearly always
                return read
            x[:, cells, : read.shape[-1]] = read
        return x

    def mask(self, observations: Sequence[Any], values: np.ndarray) -> None:
        """Sets the values of actions that a member lacks, or may not take, to `UNAVAILABLE`."""
        if self._forms_teams:
            is_other = np.arange(values.shape[-1]) >= self._sizes
            values[:, is_other] = UNAVAILABLE
        for kind, columns, cells in self._masked:
            masks = pick_columns(observations[kind][ACTION_MASK_KEY], columns)
            own = values[:, cells, : masks.shape[-1]]
            values[:, cells, : masks.shape[-1]] = np.where(masks > 0, own, UNAVAILABLE)


def _size(kind: Kind) -> int:
    """Returns how many actions each agent of a kind has."""
    space: Space = kind.space
    assert isinstance(space, Discrete)
    return space.n
