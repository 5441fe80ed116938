"""Acting for teams in their server's place: all members at once, with the network that they share.

What a member reads is made as the server makes it (`muxrl.servers.agents.teams`), and its recurrent
state is kept here. The server is told that state with what was played, and goes on from it.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

import numpy as np

from muxrl.client.local_policies import Asked, Chosen, LocalPolicies, Memory
from muxrl.protocol.dense import UNAVAILABLE, forward_recurrent
from muxrl.protocol.messages import DenseLayer, GruLayer, PolicyWeights, ServerSpec
from muxrl.protocol.spaces import ACTION_MASK_KEY, STATE_KEY

_NO_STATE = np.empty((0, 0), np.float32)


class TeamPolicies(LocalPolicies):
    """Policies of teams; see `LocalPolicies`."""

    _unread = (STATE_KEY, ACTION_MASK_KEY)

    def __init__(self, spec: ServerSpec, weights: PolicyWeights, seed: int | None) -> None:
        super().__init__(spec, weights, seed)
        self._teams = {g: tuple(members) for g, members in spec.groups.items()}
        self._policy_of = {g: spec.agents[m[0]].policy_id for g, m in self._teams.items()}

    def act(self, asked: Sequence[Asked]) -> list[Chosen]:
        rows_of: dict[str, list[tuple[str, Asked, Chosen]]] = {}
        chosen = [Chosen({}, {}) for _ in asked]
        for step, result in zip(asked, chosen, strict=True):
            for group in self._acting(step.observations):
                rows_of.setdefault(self._policy_of[group], []).append((group, step, result))
        for policy_id, rows in rows_of.items():
            values = self._values(policy_id, [(g, s.observations, s.memory) for g, s, _ in rows])
            masks = np.stack([self._mask(g, s.observations, values.shape[-1]) for g, s, _ in rows])
            values[masks <= 0] = UNAVAILABLE
            explores = np.array([step.should_explore for _, step, _ in rows])
            actions = self._choose(
                values, masks, np.broadcast_to(explores[:, None], (len(rows), values.shape[1]))
            )
            for (group, step, result), row in zip(rows, actions.tolist(), strict=True):
                for member, action in zip(self._teams[group], row, strict=True):
                    if member in step.observations:
                        result.actions[member] = action
        for step, result in zip(asked, chosen, strict=True):
            step.memory.last_actions.update(result.actions)
        return chosen

    @property
    def has_memory(self) -> bool:
        return True

    def follow(
        self, observations: Mapping[str, Any], actions: Mapping[str, int], memory: Memory
    ) -> None:
        for group in self._acting(observations):
            if self._recurrent_size(self._policy_of[group]):
                self._values(self._policy_of[group], [(group, observations, memory)])
        memory.last_actions.update(actions)

    def _acting(self, observations: Collection[str]) -> list[str]:
        """Returns the teams of which a member observes."""
        return [g for g, members in self._teams.items() if any(m in observations for m in members)]

    def _recurrent_size(self, policy_id: str) -> int:
        layers = self._networks[policy_id].layers
        return sum(len(layer.weight_h) for layer in layers if isinstance(layer, GruLayer))

    def _values(
        self, policy_id: str, rows: Sequence[tuple[str, Mapping[str, Any], Memory]]
    ) -> np.ndarray:
        """Returns values ``[B, n, n_actions]`` of teams at a step; recurrent states move on."""
        network = self._networks[policy_id]
        layers, num_members = network.layers, len(self._teams[rows[0][0]])
        first, last = layers[0], layers[-1]
        assert isinstance(first, DenseLayer)
        assert isinstance(last, DenseLayer)
        num_actions, width = last.weight.shape[1], len(first.weight)
        x = np.zeros((len(rows), num_members, width), np.float32)
        end = width
        if network.reads_member_id:
            end -= num_members
            x[:, np.arange(num_members), end + np.arange(num_members)] = 1.0
        begin_of_actions = end - num_actions
        for row, (group, observations, memory) in enumerate(rows):
            for place, member in enumerate(self._teams[group]):
                if member not in observations:
                    continue
                seen = self._readers[member](observations[member])
                x[row, place, : len(seen)] = seen
                if network.reads_last_action and member in memory.last_actions:
                    x[row, place, begin_of_actions + memory.last_actions[member]] = 1.0
        size = self._recurrent_size(policy_id)
        h = _NO_STATE
        if size:
            h = np.zeros((len(rows), num_members, size), np.float32)
            for row, (group, _, memory) in enumerate(rows):
                if group in memory.states:
                    h[row] = memory.states[group]
            h = h.reshape(-1, size)
        values, h = forward_recurrent(layers, x.reshape(-1, width), h)
        if size:
            for (group, _, memory), state in zip(
                rows, h.reshape(len(rows), num_members, size), strict=True
            ):
                memory.states[group] = state
        return values.reshape(len(rows), num_members, num_actions)

    def _mask(self, group: str, observations: Mapping[str, Any], num_actions: int) -> np.ndarray:
        """Returns ``[n, n_actions]``: what each member may do, padded."""
        masks = np.zeros((len(self._teams[group]), num_actions), np.float32)
        for place, member in enumerate(self._teams[group]):
            if member in observations:
                size, mask = self._action_spaces[member].n, 1.0
                if member in self._masked:
                    mask = observations[member][ACTION_MASK_KEY]
                masks[place, :size] = mask
        return masks
