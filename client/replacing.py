"""Transports that replace the policies of some of a server's agents, for evaluations.

The server is sent everything, and acts for its other agents with what they have learned.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

import msgspec

from muxrl.client.random_policy import action_generator
from muxrl.client.transport import Around, Transport
from muxrl.protocol.messages import AnyItem, ServerSpec, StartEpisode, Step
from muxrl.protocol.values import sample_action


class RandomAgents(Around):
    """Lets some agents act uniformly at random: the server takes their actions as given.

    Action masks in observations (key ``action_mask``) are respected.

    Args:
        server: the transport to the server.
        agents: the agents that act at random.
        seed: of their actions.
    """

    def __init__(self, server: Transport, agents: Collection[str], seed: int = 0) -> None:
        super().__init__(server)
        self._agents = frozenset(agents)
        self._rng = action_generator(seed)
        self._spec: ServerSpec | None = None

    takes_rows = False

    def send(self, items: Sequence[AnyItem]) -> None:
        super().send([self._changed(item) for item in items])

    def _changed(self, item: AnyItem) -> AnyItem:
        if not isinstance(item, Step):
            return item
        if self._spec is None:
            self._spec = self.fetch_spec()
        drawn = {
            agent_id: sample_action(self._spec.agents[agent_id].action_space, seen, self._rng)
            for agent_id, seen in item.observations.items()
            if agent_id in self._agents
        }
        if not drawn:
            return item
        return msgspec.structs.replace(item, logged_actions={**item.logged_actions, **drawn})


class UntrainedAgents(Around):
    """Lets some agents act with the first weights of the server, which it has kept.

    Args:
        server: the transport to the server.
        agents: the agents that act untrained; (): all agents of the server.
    """

    def __init__(self, server: Transport, agents: Collection[str] = ()) -> None:
        super().__init__(server)
        self._agents = tuple(agents)

    def send(self, items: Sequence[AnyItem]) -> None:
        untrained = list(self._agents or self.fetch_spec().agents)
        super().send(
            [
                msgspec.structs.replace(item, untrained=untrained)
                if isinstance(item, StartEpisode)
                else item
                for item in items
            ]
        )
