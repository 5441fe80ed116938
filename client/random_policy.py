"""A transport without a server: acts uniformly at random, as a baseline for comparisons."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from muxrl.client.transport import Transport
from muxrl.protocol import PROTOCOL_VERSION
from muxrl.protocol.messages import (
    Aborted,
    AbortEpisode,
    Actions,
    AgentInfo,
    AnyItem,
    AnyReply,
    Ended,
    EndEpisode,
    ServerSpec,
    Started,
    StartEpisode,
    Step,
)
from muxrl.protocol.spaces import Space
from muxrl.protocol.values import sample_action


def action_generator(seed: int) -> np.random.Generator:
    """Returns a generator for random actions.

    It differs from that of an environment reset with the same seed. Otherwise actions would repeat
    the environment's own draws, and guess a number that it has drawn.
    """
    return np.random.default_rng((seed, 1))


class RandomTransport(Transport):
    """Acts at random in place of the server that `spec` describes.

    Action masks in observations (key ``action_mask``) are respected.

    Args:
        spec: of the server whose agents act at random.
        seed: of the actions.
    """

    def __init__(self, spec: ServerSpec, seed: int = 0) -> None:
        self._spec = spec
        self._rng = action_generator(seed)
        self._replies: list[AnyReply] = []
        self._returns: dict[str, dict[str, float]] = {}

    @classmethod
    def for_agents(
        cls, agents: Mapping[str, tuple[Space, Space]], seed: int = 0
    ) -> RandomTransport:
        """Returns a transport for agents that have no server.

        Args:
            agents: by agent id: its observation and action space.
            seed: of the actions.
        """
        infos = {agent_id: AgentInfo("", *spaces) for agent_id, spaces in agents.items()}
        return cls(ServerSpec(PROTOCOL_VERSION, "random", "random", infos), seed)

    def fetch_spec(self) -> ServerSpec:
        return self._spec

    def send(self, items: Sequence[AnyItem]) -> None:
        self._replies = [self._answer(item) for item in items]

    def receive(self, patience_s: float | None = None) -> list[AnyReply]:
        return self._replies

    def _answer(self, item: AnyItem) -> AnyReply:
        if isinstance(item, StartEpisode):
            self._returns[item.episode_id] = {}
            return Started(item.episode_id)
        if isinstance(item, AbortEpisode):
            self._returns.pop(item.episode_id, None)
            return Aborted(item.episode_id)
        assert isinstance(item, Step | EndEpisode)
        returns = self._returns[item.episode_id]
        for rewards in (item.rewards, item.late_rewards):
            for agent_id, reward in rewards.items():
                returns[agent_id] = returns.get(agent_id, 0.0) + reward
        if isinstance(item, EndEpisode):
            return Ended(item.episode_id, item.t, self._returns.pop(item.episode_id))
        actions = {
            agent_id: sample_action(self._spec.agents[agent_id].action_space, seen, self._rng)
            for agent_id, seen in item.observations.items()
        }
        return Actions(item.episode_id, item.t, actions)
