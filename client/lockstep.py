"""Episodes in lockstep in which the same agents act, and nothing ends: their steps go in rows.

A `JointEpisode` that goes in rows is not told of its steps one by one: what they added is kept here
in arrays, for all such episodes at once, until something happens in the episode (`settle`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from muxrl.client.joint_episode import JointEpisode
from muxrl.client.lineups import Lineups
from muxrl.client.multiplexer import MultiplexingClient
from muxrl.client.outbox import Outbox
from muxrl.client.rows import LEAST_ROWS, actions_by_row, rows_of_steps
from muxrl.protocol.errors import MalformedMessage
from muxrl.protocol.messages import ActionRows, Refused, ServerSpec
from muxrl.protocol.rows import Lineup, NotInRows


class PlainStep(NamedTuple):
    """A step at which agents act, nobody is done, and of which rewards alone are to be told."""

    episode: JointEpisode
    observations: Mapping[str, Any]
    rewards: Mapping[str, float]
    state: Any


@dataclass(frozen=True)
class _Side:
    """What one server has of each step."""

    spec: ServerSpec
    lineup: Lineup
    columns: NDArray[np.int64]
    """Of its agents among all that act."""


class Lockstep:
    """The episodes of a loop whose steps go in rows.

    Args:
        client: of the servers.
    """

    def __init__(self, client: MultiplexingClient) -> None:
        self._client = client
        self._least_rows = LEAST_ROWS * len(client.specs)
        self._lineups = Lineups(self._sides_of)
        self._has_missed = False
        self._agents: tuple[str, ...] = ()
        self._sides: dict[str, _Side] = {}
        self._episodes: list[JointEpisode] = []
        """By row."""
        self._row_of: dict[JointEpisode, int] = {}
        """Of those that have not been settled."""
        self._returns = np.zeros((0, 0))
        """``[episodes, agents]``."""
        self._t: dict[str, NDArray[np.int64]] = {}
        """By server, the step of each episode that it awaits."""
        self._num_steps: NDArray[np.int64] = np.zeros(0, np.int64)
        """Of each episode, since it goes in rows."""

    def settle(self, episode: JointEpisode) -> None:
        """Tells an episode what its steps in rows have added: it goes on by itself."""
        row = self._row_of.pop(episode, None)
        if row is not None:
            returns = dict(zip(self._agents, self._returns[row].tolist(), strict=True))
            episode.played(self._sides, int(self._num_steps[row]), {}, returns)

    def pack(self, steps: Sequence[PlainStep], outbox: Outbox) -> Sequence[PlainStep]:
        """Adds steps to an outbox, in rows; returns those that have to go one by one.

        Args:
            steps: one of an episode, all of whose steps before have been answered.
            outbox: nothing else may add rows to it.
        """
        if not steps or len(steps) * len(steps[0].observations) < self._least_rows:
            return self._settled(steps)
        named = [tuple(step.observations) for step in steps]
        agents = named[0]
        if named.count(agents) < len(named):
            agents = Counter(named).most_common(1)[0][0]
        sides = self._lineups.find(agents) if self._client.takes_rows else None
        if sides is None:
            return self._settled(steps)
        mine: list[PlainStep] = []
        others: list[PlainStep] = []
        for step, its_agents in zip(steps, named, strict=True):
            is_alike = its_agents == agents and step.rewards.keys() == step.observations.keys()
            is_in = step.episode in self._row_of and agents == self._agents
            can_go = is_alike and (is_in or step.episode.may_go_in_rows(agents))
            (mine if can_go else others).append(step)
        if len(mine) * len(agents) < self._least_rows:
            return self._settled(steps)
        episodes = [step.episode for step in mine]
        if (
            agents != self._agents
            or episodes != self._episodes
            or len(episodes) > len(self._row_of)
        ):
            self._enter(agents, sides, episodes)
        try:
            rewards = np.array([[step.rewards[a] for a in agents] for step in mine])
            if rewards.dtype != np.float64:
                raise NotInRows
            rows = {
                server_id: rows_of_steps(
                    side.spec,
                    side.lineup,
                    [episode.episode_id for episode in episodes],
                    self._t[server_id].copy(),
                    [step.observations for step in mine],
                    np.ascontiguousarray(rewards[:, side.columns]),
                    [step.state for step in mine],
                )
                for server_id, side in sides.items()
            }
        except (NotInRows, ValueError, TypeError):  # whose it is, its server says
            self._lineups.note(agents, were_read=False)
            return self._settled(steps)
        for server_id, one in rows.items():
            outbox.add_rows(self, server_id, one)
        self._returns += rewards
        self._num_steps += 1
        for t in self._t.values():
            t += 1
        if not self._has_missed:
            self._lineups.note(agents, were_read=True)
        self._has_missed = False
        return others

    def episode_at(self, row: int) -> JointEpisode:
        """See `RowsOwner`."""
        return self._episodes[row]

    def hear_rows(self, server_id: str, reply: ActionRows) -> Mapping[int, Refused]:
        """See `RowsOwner`."""
        refused: dict[int, Refused] = {}
        side = self._sides[server_id]
        if not reply.replies:
            for kind, values in actions_by_row(side.lineup, reply, len(self._episodes)):
                for row, own in enumerate(values):
                    self.episode_at(row).acted(zip(kind.agents, own, strict=True))
            return refused
        if len(reply.replies) != len(self._episodes):
            raise MalformedMessage(f"{len(reply.replies)} replies came to {len(self._episodes)}")
        if not self._has_missed:  # once, however many servers read them so
            self._lineups.note(self._agents, were_read=False)
        self._has_missed = True
        for row, one in enumerate(reply.replies):
            if isinstance(one, Refused):
                refused[row] = one
            else:
                self.episode_at(row).acted(one.actions)
        return refused

    def _settled(self, steps: Sequence[PlainStep]) -> Sequence[PlainStep]:
        if self._row_of:
            for step in steps:
                self.settle(step.episode)
        return steps

    def _enter(
        self, agents: tuple[str, ...], sides: dict[str, _Side], episodes: list[JointEpisode]
    ) -> None:
        """Has these episodes, and no others, go in rows."""
        stay = set(episodes) if agents == self._agents else set()
        for episode in self._row_of.keys() - stay:
            self.settle(episode)
        num = len(episodes)
        returns, num_steps = np.zeros((num, len(agents))), np.zeros(num, np.int64)
        of_servers = {server_id: np.zeros(num, np.int64) for server_id in sides}
        for row, episode in enumerate(episodes):
            before = self._row_of.get(episode)
            if before is not None:
                returns[row], num_steps[row] = self._returns[before], self._num_steps[before]
                for server_id, t in of_servers.items():
                    t[row] = self._t[server_id][before]
            else:
                so_far = episode.returns
                returns[row] = [so_far.get(agent, 0.0) for agent in agents]
                for server_id, t in of_servers.items():
                    t[row] = episode.t_of(server_id)
        self._agents, self._sides, self._episodes = agents, sides, episodes
        self._row_of = {episode: row for row, episode in enumerate(episodes)}
        self._returns, self._num_steps, self._t = returns, num_steps, of_servers

    def _sides_of(self, agents: tuple[str, ...]) -> dict[str, _Side] | None:
        """Returns what each server has of a step of these agents; None: they go one by one.

        So it is where an agent is of no server, or a server has none: it has to be told now and
        then that the episode is still played.
        """
        specs = self._client.specs
        found = {
            server_id: tuple(a for a in agents if a in spec.agents)
            for server_id, spec in specs.items()
        }
        if not all(found.values()) or sum(map(len, found.values())) < len(agents):
            return None
        return {
            server_id: _Side(
                specs[server_id],
                Lineup(mine, specs[server_id].agents),
                np.array([agents.index(a) for a in mine]),
            )
            for server_id, mine in found.items()
        }
