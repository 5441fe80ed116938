"""One episode as its client sees it: how it was started, and on which servers it is over."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from muxrl.client.errors import EpisodeLost
from muxrl.protocol.messages import (
    Aborted,
    AbortEpisode,
    AnyItem,
    AnyReply,
    Ended,
    EndEpisode,
    Flag,
    Mode,
    Refused,
    ServerSpec,
    Started,
    StartEpisode,
)

RETURN_AGAINST = "return_against_"
"""Prefix of the metrics that hold returns by opponent."""


@dataclass
class Pending:
    """What a server is still to be sent of an episode, besides ordinary rewards; mostly empty."""

    rewards: dict[str, Any] = field(default_factory=dict)
    """Rewards that are no numbers, which the server will refuse."""
    terminations: dict[str, Flag] = field(default_factory=dict)
    truncations: dict[str, Flag] = field(default_factory=dict)
    final_observations: dict[str, Any] = field(default_factory=dict)
    late_rewards: dict[str, Any] = field(default_factory=dict)
    ended: set[str] = field(default_factory=set)
    """Agents whose end is to be sent: of a team, only once its last member has ended."""
    late: set[str] = field(default_factory=set)
    """Agents in `ended` whose end was in an earlier env step, so that their rewards come late."""


class Slots(Protocol):
    """The table that counts rewards of open episodes; see `Episodes`."""

    def returns_of(self, slot: int) -> dict[str, float]: ...

    def free(self, slot: int) -> None: ...


@dataclass(eq=False)
class Episode:
    """One episode on every server that takes part.

    Args:
        table: counts its rewards while it is open.
        slot: its slot in the table.
        episode_id: the same on every server.
        specs: by server id.
        mode, should_explore, seed: see `Episodes.begin`.
    """

    _table: Slots
    slot: int
    episode_id: str
    _specs: Mapping[str, ServerSpec]
    _mode: Mode
    _should_explore: bool | Mapping[str, bool] | None
    seed: int | None
    is_open: bool = True
    members: dict[str, str] = field(default_factory=dict)
    """By server id, of servers that draw from several policies: the one that plays here."""
    parameters: dict[str, float] = field(default_factory=dict)
    """The parameters for this episode, if a run's gateway gives any."""
    is_evaluation: bool = False
    """Whether the gateway plays it as an evaluation, although training was asked for."""
    is_truncated: bool = False
    """Whether an agent was truncated rather than terminated, as far as is known yet."""
    mismatches: list[str] = field(default_factory=list)
    closed_early: EpisodeLost | None = None
    """The error for a server that had closed the episode when its end came; the other servers
        have recorded the end."""
    _returns: dict[str, float] = field(default_factory=dict)
    _over_on: set[str] = field(default_factory=set)
    """Servers on which the episode is over, or never began."""

    @property
    def returns(self) -> dict[str, float]:
        """By agent: the sum of rewards so far, 0 for an agent that has acted and earned nothing."""
        return self._table.returns_of(self.slot) if self.is_open else self._returns

    @property
    def returns_against(self) -> dict[str, dict[str, float]]:
        """By metric, named after a server and the policy it drew: returns of all other agents."""
        against = {
            f"{RETURN_AGAINST}{server_id}.{member.partition('@')[0]}": {
                agent_id: value
                for agent_id, value in self.returns.items()
                if agent_id not in self._specs[server_id].agents
            }
            for server_id, member in self.members.items()
        }
        return {name: returns for name, returns in against.items() if returns}

    def start_on(self, server_id: str) -> StartEpisode:
        """Returns the item that starts the episode on a server."""
        explore = self._should_explore
        return StartEpisode(
            self.episode_id,
            self._mode,
            explore.get(server_id) if isinstance(explore, Mapping) else explore,
            seed=self.seed if self._specs[server_id].takes_seed else None,
        )

    def leave(self) -> None:
        """Frees its slot for another episode, and keeps its returns."""
        if self.is_open:
            self._returns, self.is_open = self.returns, False
            self._table.free(self.slot)

    def aborts(self, reason: str) -> dict[str, AbortEpisode]:
        """Frees its slot, and returns an abort for every server that may hold it open."""
        self.leave()
        abort = AbortEpisode(self.episode_id, reason)
        sent = {server_id: abort for server_id in self._specs if server_id not in self._over_on}
        self._over_on.update(sent)
        return sent

    def handle(
        self, server_id: str, item: AnyItem, reply: AnyReply
    ) -> Mapping[int, Refused] | None:
        """Receives the answer to a start, an end, or an item that was repeated to keep it alive."""
        if isinstance(reply, Refused):
            if isinstance(item, StartEpisode):  # the open episode there may be another client's
                self._over_on.add(server_id)
            return {0: reply}
        if server_id in self._over_on:
            return None  # its start was refused
        if isinstance(reply, Started):
            self.parameters |= reply.parameters
            self.is_evaluation |= reply.is_evaluation
            if reply.member:
                self.members[server_id] = reply.member
        elif isinstance(reply, Ended) and isinstance(item, EndEpisode):
            self._over_on.add(server_id)
            self._compare(server_id, item.t, reply)
        elif isinstance(reply, Aborted):  # the answer to an end that came too late
            self._over_on.add(server_id)
            self.closed_early = EpisodeLost(
                f"server {server_id!r} had already closed episode {self.episode_id} when the "
                "client ended it, so its last steps are not recorded there; was the episode idle "
                "for more than limits.episode_timeout_s, or is training over?",
                episode_id=self.episode_id,
                server_id=server_id,
            )
        return None

    def _compare(self, server_id: str, num_steps: int, ended: Ended) -> None:
        if ended.num_steps != num_steps:
            self.mismatches.append(
                f"server {server_id!r} counted {ended.num_steps} steps of episode "
                f"{self.episode_id}, the client {num_steps}"
            )
        returns = self.returns
        for agent_id in returns.keys() & self._specs[server_id].agents.keys():
            value, theirs = returns[agent_id], ended.returns.get(agent_id, 0.0)
            if abs(theirs - value) > 1e-6 * max(1.0, abs(value)):
                self.mismatches.append(
                    f"server {server_id!r} has the return {theirs} for agent {agent_id!r} of "
                    f"episode {self.episode_id}, the client {value}"
                )
