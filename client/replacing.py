"""Transports to a server that has some of its agents act otherwise, for evaluations.

The server is told everything and acts for all the others, as they have learned.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

import msgspec

from muxrl.client.random_policy import action_generator
from muxrl.client.transport import Transport
from muxrl.protocol.messages import AnyItem, AnyReply, ServerSpec, StartEpisode, Step
from muxrl.protocol.values import sample_action


class _Replacing(Transport):
    """Hands on to `server` what `_changed` makes of each item."""

    def __init__(self, server: Transport) -> None:
        self._server = server
        self._spec: ServerSpec | None = None

    @property
    def spec(self) -> ServerSpec:
        """The server's; asked for once."""
        if self._spec is None:
            self._spec = self._server.fetch_spec()
        return self._spec

    def fetch_spec(self) -> ServerSpec:
        return self.spec

    def send(self, items: Sequence[AnyItem]) -> None:
        self._server.send([self._changed(item) for item in items])

    def receive(self, patience_s: float | None = None) -> list[AnyReply]:
        return self._server.receive(patience_s)

    def give_up(self) -> None:
        self._server.give_up()

    def close(self) -> None:
        self._server.close()

    def _changed(self, item: AnyItem) -> AnyItem:
        raise NotImplementedError


class RandomAgents(_Replacing):
    """Has some agents act uniformly at random: the server takes their actions as given.

    Action masks in observations (key ``action_mask``) are respected.

    Args:
        server: how it is reached.
        agents: that act at random.
        seed: of their actions.
    """

    def __init__(self, server: Transport, agents: Collection[str], seed: int = 0) -> None:
        super().__init__(server)
        self._agents = frozenset(agents)
        self._rng = action_generator(seed)

    def _changed(self, item: AnyItem) -> AnyItem:
        if not isinstance(item, Step):
            return item
        drawn = {
            agent_id: sample_action(self.spec.agents[agent_id].action_space, seen, self._rng)
            for agent_id, seen in item.observations.items()
            if agent_id in self._agents
        }
        if not drawn:
            return item
        return msgspec.structs.replace(item, logged_actions={**item.logged_actions, **drawn})


class UntrainedAgents(_Replacing):
    """Has some agents act with the weights that the server began with, which it has kept.

    Args:
        server: how it is reached.
        agents: that act so; (): all of the server's.
    """

    def __init__(self, server: Transport, agents: Collection[str] = ()) -> None:
        super().__init__(server)
        self._agents = tuple(agents)

    def _changed(self, item: AnyItem) -> AnyItem:
        if not isinstance(item, StartEpisode):
            return item
        untrained = list(self._agents or self.spec.agents)
        return msgspec.structs.replace(item, untrained=untrained)
