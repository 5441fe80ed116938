"""One episode across all servers: splits observations by server, and merges the actions.

It sends nothing. Rewards and ends are kept here until the server of their agents is asked for
actions again, and go with that message.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterable, Mapping
from typing import Any

from muxrl.client.errors import AssignmentError, EpisodeMisuse
from muxrl.client.server_side import ServerSide
from muxrl.protocol.episode import (
    ACT,
    OBSERVE,
    EpisodeEvent,
    EpisodeState,
)
from muxrl.protocol.errors import OutOfOrder
from muxrl.protocol.messages import (
    Aborted,
    AbortEpisode,
    Actions,
    AnyItem,
    AnyReply,
    Ended,
    EndEpisode,
    Flag,
    Mode,
    ServerSpec,
    Started,
    StartEpisode,
    Step,
)
from muxrl.protocol.values import Mismatch, number

RETURN_AGAINST = "return_against_"
"""Begins the name of a metric by opponent."""
_TOLD_PER_TIMEOUT = 3
"""How often a server is told of an open episode, at least, in its `episode_timeout_s`."""

_ABORTED, _AWAITING_OBSERVATION = EpisodeState.ABORTED, EpisodeState.AWAITING_OBSERVATION

Items = dict[str, AnyItem]
"""An item for each server that is told something, by server id."""


class JointEpisode:
    """One episode on every server that takes part.

    Args:
        episode_id: the same on every server.
        server_of: agent id to server id.
        specs: of the servers that take part, by server id.
        wanting_state: those of them that are sent the global state.
        mode: "train" or "eval".
        should_explore: None: in mode "train" only; a dict: by server id.
        seed: of what servers draw for the whole episode, see `StartEpisode`.
    """

    def __init__(
        self,
        episode_id: str,
        server_of: Mapping[str, str],
        specs: Mapping[str, ServerSpec],
        wanting_state: frozenset[str],
        mode: Mode,
        should_explore: bool | Mapping[str, bool] | None,
        seed: int | None = None,
    ) -> None:
        self.episode_id = episode_id
        self.num_steps = 0
        self.mismatches: list[str] = []
        self.members: dict[str, str] = {}
        """Who plays it on a server that draws from several, by server id."""
        self.is_open = False
        self._server_of = server_of
        self._wanting_state = wanting_state
        self._mode: Mode = mode
        self._should_explore = should_explore
        self._seed = seed
        self._sides = {server_id: ServerSide(episode_id) for server_id in specs}
        self._longest_silence_s = {
            server_id: spec.episode_timeout_s / _TOLD_PER_TIMEOUT or math.inf
            for server_id, spec in specs.items()
        }
        self._side_of = {a: self._sides[server_id] for a, server_id in server_of.items()}
        self._specs = specs
        self._actions: dict[str, Any] = {}
        self.parameters: dict[str, float] = {}
        """With which it is to be played, if the gateway of a run gives any."""
        self.is_evaluation = False
        """Whether that gateway plays it as an evaluation, though it was to be training."""

    @property
    def returns(self) -> dict[str, float]:
        """The sum of each agent's rewards so far, 0 of one that has acted and earned nothing."""
        return {a: value for side in self._sides.values() for a, value in side.all_returns.items()}

    @property
    def returns_against(self) -> dict[str, dict[str, float]]:
        """By server and entry that played there, as a metric: the returns of all others' agents."""
        against = {
            f"{RETURN_AGAINST}{server_id}.{member.partition('@')[0]}": {
                agent: value
                for other, side in self._sides.items()
                if other != server_id
                for agent, value in side.all_returns.items()
            }
            for server_id, member in self.members.items()
        }
        return {name: returns for name, returns in against.items() if returns}

    @property
    def wants_state_at_end(self) -> bool:
        """Whether an end now is to have the global state: for values that are bootstrapped."""
        return any(
            side.truncations.keys() - side.terminations.keys()
            for server_id, side in self._sides.items()
            if server_id in self._wanting_state
        )

    def may_go_in_rows(self, agents: Iterable[str]) -> bool:
        """Whether nothing waits until its server is asked again, and these agents acted last.

        Servers read rows one by one where one episode's agents are others than in its last step.
        """
        return self._actions.keys() == set(agents) and not any(
            side.rewards
            or side.terminations
            or side.truncations
            or side.final_observations
            or side.late_rewards
            for side in self._sides.values()
        )

    def t_of(self, server_id: str) -> int:
        """Returns how many steps a server has been told."""
        return self._sides[server_id].machine.t

    # --- what the servers are told ------------------------------------------------------

    def start(self) -> Items:
        """Returns a start for every server."""
        self.is_open = True
        now = time.monotonic()
        for side in self._sides.values():
            side.machine.handle(EpisodeEvent.START)
            side.told_at = now
        return {server_id: self._start_of(server_id) for server_id in self._sides}

    def _start_of(self, server_id: str) -> StartEpisode:
        explore = self._should_explore
        return StartEpisode(
            self.episode_id,
            self._mode,
            explore.get(server_id) if isinstance(explore, Mapping) else explore,
            seed=self._seed if self._specs[server_id].takes_seed else None,
        )

    def step(
        self,
        observations: Mapping[str, Any],
        state: Any = None,
        logged_actions: Mapping[str, Any] | None = None,
        logged_log_probs: Mapping[str, float] | None = None,
    ) -> Items:
        """Returns one step for every server that has an acting agent.

        A server that had none for long is told its last item once more, which changes nothing but
        that the episode does not expire there.

        Raises:
            AssignmentError, EpisodeMisuse: as `split`; nothing has changed.
        """
        split = self.split(observations)
        items: Items = {}
        now = time.monotonic()
        for server_id, mine in split.items():
            side = self._sides[server_id]
            side.told_at = now
            side.acted.update(mine)
            if side.done:
                side.done.difference_update(mine)
            item = Step(
                self.episode_id,
                side.machine.t,
                mine,
                side.rewards,
                side.terminations,
                side.truncations,
                side.final_observations,
                state=state if server_id in self._wanting_state else None,
                late_rewards=side.late_rewards,
            )
            if logged_actions:
                item.logged_actions = {
                    str(a): action for a, action in logged_actions.items() if str(a) in mine
                }
            if logged_log_probs:
                item.logged_log_probs = {
                    str(a): one for a, one in logged_log_probs.items() if str(a) in mine
                }
            side.machine.observe()
            side.clear()
            items[server_id] = item
        if len(split) < len(self._sides):
            items |= self.keep_alive()
        self._actions = {}
        self.num_steps += 1
        return items

    def split(self, observations: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
        """Returns what each server is to be told of a step's observations.

        Raises:
            AssignmentError: an agent belongs to no server.
            EpisodeMisuse: a server has not answered the last step; or they are no dict.
        """
        check_by_agent("observations", observations)
        split: dict[str, dict[str, Any]] = {}
        server_of = self._server_of
        for agent_id, observation in observations.items():
            server_id = server_of.get(agent_id)
            if server_id is None:
                agent_id = self._name(agent_id)
                if agent_id in observations:
                    raise EpisodeMisuse(f"two agents that observe are called {agent_id!r}")
                server_id = server_of[agent_id]
            split.setdefault(server_id, {})[agent_id] = observation
        try:
            for server_id in split:
                self._sides[server_id].machine.check(OBSERVE)
        except OutOfOrder as error:
            raise _misuse(error) from None
        return split

    def keep_alive(self, server_ids: Iterable[str] | None = None) -> Items:
        """Returns a repeat of the last item for servers that were told nothing for too long.

        Args:
            server_ids: of these; None: of all.
        """
        items: Items = {}
        now = time.monotonic()
        for server_id in self._sides if server_ids is None else server_ids:
            side = self._sides[server_id]
            if now - side.told_at > self._longest_silence_s[server_id]:
                side.told_at = now
                t = side.machine.t
                items[server_id] = (
                    Step(self.episode_id, t - 1, {}) if t else self._start_of(server_id)
                )
        return items

    def log(
        self,
        rewards: Mapping[str, Any],
        terminations: Mapping[str, Flag],
        truncations: Mapping[str, Flag],
        final_observations: Mapping[str, Any],
    ) -> None:
        """Keeps what followed from the last actions until its server is told.

        A reward that is no number is kept as it is: its server refuses it, as any wrong value.

        Raises:
            AssignmentError: an agent belongs to no server.
            EpisodeMisuse: rewards are no dict.
        """
        check_by_agent("rewards", rewards)
        for agent_id, reward in rewards.items():
            side = self._side_of.get(agent_id)
            if side is None:
                agent_id, side = self._side(agent_id)
            # A server that knew of the end would not credit it to an action either.
            is_late = side.ended_at and side.is_late(agent_id, self.num_steps)
            kept = side.late_rewards if is_late else side.rewards
            value = kept.get(agent_id, 0.0)
            try:
                reward = reward if type(reward) is float else number(reward)
                kept[agent_id] = value + reward
            except (Mismatch, TypeError):  # of an earlier one
                kept[agent_id] = reward if type(value) is float else value
                continue
            side.returns[agent_id] = side.returns.get(agent_id, 0.0) + reward
        for flags, is_truncation in ((terminations, False), (truncations, True)):
            for agent_id, is_set in flags.items():
                if is_set and agent_id != "__all__":
                    agent_id, side = self._side(agent_id)
                    if not side.is_late(agent_id, self.num_steps):
                        (side.truncations if is_truncation else side.terminations)[agent_id] = True
                        self._note_end(side, agent_id)
        for agent_id, observation in final_observations.items():
            agent_id, side = self._side(agent_id)
            # The first one given is that of the agent's end, as a server that knew of it would say.
            is_over = agent_id in side.terminations or agent_id in side.truncations
            if not (is_over and agent_id in side.final_observations):
                side.final_observations[agent_id] = observation

    def log_late(self, rewards: Mapping[str, float]) -> None:
        """Keeps rewards that the simulation's own client says to be late, see `Step`."""
        for agent_id, reward in rewards.items():
            side = self._side_of[agent_id]
            for kept in (side.late_rewards, side.returns):
                kept[agent_id] = kept.get(agent_id, 0.0) + reward

    def _note_end(self, side: ServerSide, agent_id: str) -> None:
        spec = self._specs[self._server_of[agent_id]]
        info = spec.agents.get(agent_id)
        members = [agent_id]
        if info is not None and info.group is not None:  # which earns until its last member ends
            side.done.add(agent_id)
            members = spec.groups.get(info.group, members)
            if not side.done.issuperset(members):
                return
        for member in members:
            side.ended_at.setdefault(member, self.num_steps)

    def played(
        self,
        server_ids: Iterable[str],
        num_steps: int,
        rewards: Mapping[str, float],
        returns: Mapping[str, float],
    ) -> None:
        """Takes in steps that went in rows.

        Args:
            server_ids: who has answered each of them.
            num_steps: how many they are.
            rewards: what followed from the last one, by agent id, if no server was told.
            returns: of all, these included.
        """
        self.num_steps += num_steps
        now = time.monotonic()
        for server_id in server_ids:
            side = self._sides[server_id]
            side.machine.t += num_steps
            side.told_at = now
        for agent_id, reward in rewards.items():
            self._side_of[agent_id].rewards[agent_id] = reward
        for agent_id, value in returns.items():
            self._side_of[agent_id].returns[agent_id] = value

    def end(
        self,
        observations: Mapping[str, Any],
        *,
        is_truncated: bool,
        state: Any = None,
        metrics: Mapping[str, Any] | None = None,
    ) -> Items:
        """Returns an end for every server, even if all of its agents are done already.

        Raises:
            AssignmentError, EpisodeMisuse: as `step`.
        """
        self.log({}, {}, {}, observations)
        told = {
            name: {str(a): n for a, n in one.items()} if isinstance(one, Mapping) else one
            for name, one in (metrics or {}).items()
        }
        items: Items = {}
        for server_id, side in self._sides.items():
            items[server_id] = EndEpisode(
                self.episode_id,
                side.machine.t,
                is_truncated,
                side.rewards,
                side.terminations,
                side.truncations,
                side.final_observations,
                state if server_id in self._wanting_state else None,
                told,
                side.late_rewards,
            )
            try:
                side.machine.check(EpisodeEvent.END)  # it is ended when the server has answered
            except OutOfOrder as error:
                raise _misuse(error) from None
            side.clear()
        self.is_open = False
        return items

    def abort(self, reason: str) -> Items:
        """Returns an abort for every server that may hold the episode open."""
        self.is_open = False
        items: Items = {}
        for server_id, side in self._sides.items():
            if side.machine.state not in (EpisodeState.ENDED, EpisodeState.ABORTED):
                side.machine.handle(EpisodeEvent.ABORT)
                items[server_id] = AbortEpisode(self.episode_id, reason)
        return items

    # --- what the servers answer --------------------------------------------------------

    def leave(self, server_id: str) -> None:
        """Takes in that a start was refused: what is open there may be another client's."""
        self._sides[server_id].machine.handle(EpisodeEvent.ABORT)

    def hear(self, server_id: str, reply: AnyReply) -> None:
        """Takes in a reply that is not a refusal."""
        side = self._sides[server_id]
        state = side.machine.state
        if state is _ABORTED:
            return  # its start was refused
        if isinstance(reply, Actions):
            if state is _AWAITING_OBSERVATION:
                return  # the answer to a repeat
            side.machine.handle(ACT)
            self._actions |= reply.actions
        elif isinstance(reply, Started):
            self.parameters |= reply.parameters
            self.is_evaluation |= reply.is_evaluation
            if reply.member:
                self.members[server_id] = reply.member
        elif isinstance(reply, Ended):
            side.machine.handle(EpisodeEvent.END)
            self._compare(server_id, side, reply)
        elif isinstance(reply, Aborted):  # the answer to an end that came too late
            side.machine.handle(EpisodeEvent.ABORT)
            self.mismatches.append(
                f"server {server_id!r} had closed episode {self.episode_id} early when the client "
                "ended it, so its last steps are not recorded there; was it idle for more than "
                "limits.episode_timeout_s, or is training over?"
            )

    def acted(self, actions: Mapping[str, Any] | Iterable[tuple[str, Any]]) -> None:
        """Takes in actions of a step that went in rows."""
        self._actions.update(actions)

    def take_actions(self, observations: Mapping[str, Any]) -> dict[str, Any]:
        """Returns the merged actions, by the observations' own ids and in their order."""
        actions = self._actions
        try:
            return {agent_id: actions[agent_id] for agent_id in observations}
        except KeyError:
            return {agent_id: actions[str(agent_id)] for agent_id in observations}

    def _compare(self, server_id: str, side: ServerSide, ended: Ended) -> None:
        if ended.num_steps != side.machine.t:
            self.mismatches.append(
                f"server {server_id!r} counted {ended.num_steps} steps of episode "
                f"{self.episode_id}, the client {side.machine.t}"
            )
        for agent_id, value in side.returns.items():
            theirs = ended.returns.get(agent_id, 0.0)
            if abs(theirs - value) > 1e-6 * max(1.0, abs(value)):
                self.mismatches.append(
                    f"server {server_id!r} summed {theirs} for agent {agent_id!r} of episode "
                    f"{self.episode_id}, the client {value}"
                )

    # --- looking up ---------------------------------------------------------------------

    def _side(self, agent_id: str) -> tuple[str, ServerSide]:
        """Returns an agent's name, and its side."""
        side = self._side_of.get(agent_id)
        if side is None:
            agent_id = self._name(agent_id)
            side = self._side_of[agent_id]
        return agent_id, side

    def _name(self, agent_id: object) -> str:
        """Returns the name of an agent whose id is a number, say; see `AdaptedEnv`."""
        name = str(agent_id)
        if name not in self._server_of:
            known = ", ".join(f"{a} ({s})" for a, s in self._server_of.items())
            raise AssignmentError(
                f"agent {agent_id!r} belongs to no server; assigned are: {known or 'none'}"
            )
        return name


def check_by_agent(what: str, value: Any) -> None:
    """Raises `EpisodeMisuse` unless a value is a mapping: RLlib's verbs took one of one agent."""
    if type(value) is not dict and not isinstance(value, Mapping):
        raise EpisodeMisuse(
            f'{what} are a dict by agent, {{"agent": ...}}, also if there is one agent; got '
            f"{repr(value)[:100]}"
            + ("; where all are done, call end_episode()" if value is True else "")
        )


def given_by_agent(what: str, value: Mapping[str, Any] | None) -> Mapping[str, Any]:
    """Returns what may be left out; raises as `check_by_agent`."""
    if value is None:
        return {}
    check_by_agent(what, value)
    return value


def _misuse(error: OutOfOrder) -> EpisodeMisuse:
    return EpisodeMisuse(
        f"{error}; was its last step interrupted? abort_episode() closes it on every server"
    )
