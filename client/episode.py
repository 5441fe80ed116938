"""An open episode, as far as it is no number in a table: who plays it, and where it is over."""

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
"""Begins the name of a metric by opponent."""


@dataclass
class Pending:
    """What one server has not been sent of an episode, besides rewards; it is rare."""

    rewards: dict[str, Any] = field(default_factory=dict)
    """Those that are no numbers: the server refuses them."""
    terminations: dict[str, Flag] = field(default_factory=dict)
    truncations: dict[str, Flag] = field(default_factory=dict)
    final_observations: dict[str, Any] = field(default_factory=dict)
    late_rewards: dict[str, Any] = field(default_factory=dict)
    ended: set[str] = field(default_factory=set)
    """Agents whose end, or that of the last of their team, is among this."""
    late: set[str] = field(default_factory=set)
    """Those of them that had ended in an env step before: their rewards come late."""


class Slots(Protocol):
    """Has what is counted of open episodes; see `Episodes`."""

    def returns_of(self, slot: int) -> dict[str, float]: ...

    def free(self, slot: int) -> None: ...


@dataclass(eq=False)
class Episode:
    """One episode on every server that takes part.

    Args:
        table: has what is counted of it while it is open.
        slot: there.
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
    """Who plays it on a server that draws from several, by server id."""
    parameters: dict[str, float] = field(default_factory=dict)
    """With which it is to be played, if the gateway of a run gives any."""
    is_evaluation: bool = False
    """Whether that gateway plays it as an evaluation, though it was to be training."""
    is_truncated: bool = False
    """Whether an agent was truncated, rather than terminated; its end may say more."""
    mismatches: list[str] = field(default_factory=list)
    closed_early: EpisodeLost | None = None
    """Of a server that had closed it when its end came; others have recorded that end."""
    _returns: dict[str, float] = field(default_factory=dict)
    _over_on: set[str] = field(default_factory=set)
    """Servers on which it is over, or never began."""

    @property
    def returns(self) -> dict[str, float]:
        """The sum of each agent's rewards so far, 0 of one that has acted and earned nothing."""
        return self._table.returns_of(self.slot) if self.is_open else self._returns

    @property
    def returns_against(self) -> dict[str, dict[str, float]]:
        """By server and entry that played there, as a metric: the returns of all others' agents."""
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
        """Returns the start that a server is sent."""
        explore = self._should_explore
        return StartEpisode(
            self.episode_id,
            self._mode,
            explore.get(server_id) if isinstance(explore, Mapping) else explore,
            seed=self.seed if self._specs[server_id].takes_seed else None,
        )

    def leave(self) -> None:
        """Leaves its slot to another one, and keeps its returns."""
        if self.is_open:
            self._returns, self.is_open = self.returns, False
            self._table.free(self.slot)

    def aborts(self, reason: str) -> dict[str, AbortEpisode]:
        """Leaves it, and returns an abort for every server that may hold it open."""
        self.leave()
        abort = AbortEpisode(self.episode_id, reason)
        sent = {server_id: abort for server_id in self._specs if server_id not in self._over_on}
        self._over_on.update(sent)
        return sent

    def handle(
        self, server_id: str, item: AnyItem, reply: AnyReply
    ) -> Mapping[int, Refused] | None:
        """Receives the answer to a start, an end, or to what is repeated to keep it alive."""
        if isinstance(reply, Refused):
            if isinstance(item, StartEpisode):  # what is open there may be another client's
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
                f"server {server_id!r} had closed episode {self.episode_id} before its end came, "
                "so its last steps are not recorded there; was it idle for more than "
                "limits.episode_timeout_s, or is training over?",
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
                    f"server {server_id!r} summed {theirs} for agent {agent_id!r} of episode "
                    f"{self.episode_id}, the client {value}"
                )
