"""Acting with a server's networks in its place, in numpy.

Actions are drawn as the server draws them: from the logits of all agents that share a policy, in
one pass.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from muxrl.client.errors import ServerUnavailable
from muxrl.protocol.dense import UNAVAILABLE, flat_reader, forward
from muxrl.protocol.messages import DenseLayer, PolicyWeights, ServerSpec
from muxrl.protocol.spaces import ACTION_MASK_KEY, DictSpace, Discrete, Space


class Asked(NamedTuple):
    """An agent that is to act, and its conforming observation."""

    agent_id: str
    observation: Any
    should_explore: bool


class Drawn(NamedTuple):
    """The action as the simulation takes it, and what it was drawn from, float32 ``[n]``."""

    action: int
    logits: np.ndarray


class LocalPolicies:
    """The policies of one server.

    Args:
        spec: the server's.
        weights: its first ones.
        seed: of exploration; None: any.

    Raises:
        ServerUnavailable: the server has no policies that can be acted with elsewhere.
    """

    def __init__(self, spec: ServerSpec, weights: PolicyWeights, seed: int | None) -> None:
        if weights.problem:
            raise ServerUnavailable(
                f"server {spec.server_id!r} ({spec.algorithm}) has no policies for local "
                f"inference: {weights.problem}; leave it at inference_mode='remote'",
                server_id=spec.server_id,
            )
        self.version = 0
        self._layers: Mapping[str, list[DenseLayer]] = {}
        self._rng = np.random.default_rng(seed)
        self._policy_of = {a: agent.policy_id for a, agent in spec.agents.items()}
        self._readers: dict[str, Callable[[Any], np.ndarray]] = {}
        self._is_masked: dict[str, bool] = {}
        self._first_action: dict[str, int] = {}
        for agent_id, agent in spec.agents.items():
            space = agent.observation_space
            is_masked = (
                weights.follows_masks
                and isinstance(space, DictSpace)
                and ACTION_MASK_KEY in space.spaces
            )
            self._readers[agent_id] = _without_mask(space) if is_masked else flat_reader(space)
            self._is_masked[agent_id] = is_masked
            assert isinstance(agent.action_space, Discrete)
            self._first_action[agent_id] = agent.action_space.start
        self.load(weights)

    def load(self, weights: PolicyWeights) -> None:
        """Acts with other weights from now on."""
        self._layers, self.version = weights.policies, weights.weights_seq_no

    def act(self, asked: Sequence[Asked]) -> list[Drawn]:
        """Returns an action for each that is asked."""
        rows_of: dict[str, list[int]] = {}
        for row, one in enumerate(asked):
            rows_of.setdefault(self._policy_of[one.agent_id], []).append(row)
        drawn: list[Drawn | None] = [None] * len(asked)
        for policy_id, rows in rows_of.items():
            logits = self._logits(policy_id, [asked[row] for row in rows])
            chosen = self._draw(logits, [asked[row].should_explore for row in rows])
            for row, action, scores in zip(rows, chosen.tolist(), logits, strict=True):
                drawn[row] = Drawn(action + self._first_action[asked[row].agent_id], scores)
        return drawn  # type: ignore[return-value]

    def _logits(self, policy_id: str, asked: Sequence[Asked]) -> np.ndarray:
        readers = self._readers
        observations = [readers[one.agent_id](one.observation) for one in asked]
        logits = forward(self._layers[policy_id], np.array(observations))
        if self._is_masked[asked[0].agent_id]:  # agents that share a policy are alike
            masks = [one.observation[ACTION_MASK_KEY] for one in asked]
            logits[np.array(masks) <= 0] = UNAVAILABLE
        return logits

    def _draw(self, logits: np.ndarray, should_explore: Sequence[bool]) -> np.ndarray:
        """Returns the numbers of actions ``[B]``: by Gumbel-max, or the likeliest ones."""
        if not any(should_explore):
            return logits.argmax(axis=-1)
        noise = np.log(self._rng.standard_exponential(logits.shape))
        if not all(should_explore):
            noise[~np.array(should_explore)] = 0.0
        return (logits - noise).argmax(axis=-1)


def _without_mask(space: Space) -> Callable[[Any], np.ndarray]:
    """Returns a `flat_reader` that leaves out the action mask."""
    assert isinstance(space, DictSpace)
    rest = {key: sub for key, sub in space.spaces.items() if key != ACTION_MASK_KEY}
    return flat_reader(DictSpace(rest))
