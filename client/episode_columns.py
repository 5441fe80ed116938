"""Keeps what open episodes have earned, and what their servers have still to be sent, by slot."""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from muxrl.client.assignment import Assignment, check_by_agent
from muxrl.client.episode import Episode, Pending
from muxrl.client.errors import EpisodeMisuse
from muxrl.client.step_values import as_text, got
from muxrl.protocol.rows import Index
from muxrl.protocol.values import Mismatch, number

NONE: Mapping[Any, Any] = {}
_PLAIN = Pending()


class EpisodeColumns:
    """The step counts, rewards and ends of the episodes in ``N`` slots.

    There are ``A`` agents on ``S`` servers.

    Args:
        assignment: which server serves which agents.
    """

    def __init__(self, assignment: Assignment) -> None:
        self._assignment = assignment
        self._servers = list(assignment.specs.items())
        num_servers, num_agents = len(self._servers), len(assignment.agents)
        self.by_slot: list[Episode | None] = []
        self.is_open: NDArray[np.bool_] = np.zeros(0, bool)
        """``[N]``: which slots have an episode."""
        self.t: NDArray[np.int64] = np.zeros((num_servers, 0), np.int64)
        """``[S, N]``: how many steps of the episode the server has been sent."""
        self._sent_at: NDArray[np.float64] = np.zeros((num_servers, 0))
        """``[S, N]``: when the server was last sent something of the episode (monotonic)."""
        self._rewards: NDArray[np.float64] = np.zeros((0, num_agents))
        """``[N, A]``: sums of the rewards that the agent's server has not been sent yet."""
        self._is_paid: NDArray[np.bool_] = np.zeros((0, num_agents), bool)
        """``[N, A]``: whether there is any reward in that sum."""
        self._returns: NDArray[np.float64] = np.zeros((0, num_agents))
        """``[N, A]``: sums of all rewards of the episode."""
        self._is_known: NDArray[np.bool_] = np.zeros((0, num_agents), bool)
        """``[N, A]``: whether the agent has acted or got a reward, so that it has a return."""
        self._fresh: dict[int, Mapping[str, Any] | None] = {}
        """By slot: rewards that followed from the last step, and are in no column yet; None: they
        are in the columns, and more may follow."""
        self._pending: dict[int, defaultdict[int, Pending]] = {}
        """By slot, then by place of the server: what else the server has not been sent yet."""
        self._done: dict[int, set[str]] = {}
        """By slot: agents that belong to a team, have ended, and have not come back."""
        self._agents_in_arrays: tuple[str, ...] = ()
        """The agents of the simulation whose copies are in these slots, for steps in arrays."""
        self._acts_in_arrays: NDArray[np.bool_] = np.zeros((0, num_agents), bool)
        """``[N, A]``: which agents acted in arrays since rewards were logged last."""

    def _grow(self, num_more: int) -> None:
        """Adds slots."""
        slots, columns = (0, num_more), ((0, num_more), (0, 0))
        self.by_slot += [None] * num_more
        self.is_open = np.pad(self.is_open, slots)
        self.t = np.pad(self.t, ((0, 0), slots))
        self._sent_at = np.pad(self._sent_at, ((0, 0), slots))
        self._rewards = np.pad(self._rewards, columns)
        self._is_paid = np.pad(self._is_paid, columns)
        self._returns = np.pad(self._returns, columns)
        self._is_known = np.pad(self._is_known, columns)
        self._acts_in_arrays = np.pad(self._acts_in_arrays, columns)
        # Memoryviews read and write single elements in a fraction of the time that arrays need.
        self._reward_at, self._reward_bytes = _elements(self._rewards), _bytes(self._rewards)
        self._is_paid_at, self._is_paid_bytes = _elements(self._is_paid), _bytes(self._is_paid)
        self._return_at = _elements(self._returns)
        self._t_at, self._sent_at_at = _elements(self.t), _elements(self._sent_at)

    def _clear_rewards(self, slots: Sequence[int], where: Index, columns: Sequence[slice]) -> None:
        """Sets rewards that a server has been sent back to 0."""
        if len(slots) == 1:
            first = slots[0] * len(self._assignment.agents)
            for some in columns:
                begin, end = first + some.start, first + some.stop
                self._reward_bytes[8 * begin : 8 * end] = bytes(8 * (end - begin))
                self._is_paid_bytes[begin:end] = bytes(end - begin)
        else:
            for some in columns:
                self._rewards[where, some] = 0.0
                self._is_paid[where, some] = False

    def _clear(self, slot: int, now: float) -> None:
        """Resets the columns of a slot for a new episode."""
        self._fresh.pop(slot, None)
        self.t[:, slot] = 0
        self._sent_at[:, slot] = now
        self._rewards[slot] = self._returns[slot] = 0.0
        self._is_paid[slot] = self._is_known[slot] = False

    def log(
        self,
        slot: int,
        rewards: Mapping[str, Any],
        terminations: Mapping[str, Any] = NONE,
        truncations: Mapping[str, Any] = NONE,
        final_observations: Mapping[str, Any] = NONE,
    ) -> None:
        """Keeps the rewards and ends that followed from the last actions, until they are sent.

        A reward that is no number is kept unchanged: the agent's server refuses it like any other
        wrong value.

        Raises:
            AssignmentError: an agent belongs to no server.
            EpisodeMisuse: rewards are no dict.
        """
        if type(rewards) is not dict:
            check_by_agent("rewards", rewards)
        if not (terminations or truncations or final_observations):
            is_first = slot not in self._fresh and slot not in self._pending
            if is_first and tuple(rewards) in self._assignment.known:
                self._fresh[slot] = dict(rewards)
                return
        self._settle(slot)
        self._fresh[slot] = None
        self._add_rewards(slot, rewards)
        for flags, is_truncation in ((terminations, False), (truncations, True)):
            for agent_id, is_set in flags.items():
                if is_set and agent_id != "__all__":
                    self._log_end(slot, self._assignment.name(agent_id), is_truncation)
        for agent_id, observation in final_observations.items():
            agent_id = self._assignment.name(agent_id)
            mine = self._pending_of(slot, agent_id)
            # Keeps the first one, as a server would that knew of the agent's end.
            is_over = agent_id in mine.terminations or agent_id in mine.truncations
            if not (is_over and agent_id in mine.final_observations):
                mine.final_observations[agent_id] = observation

    def _settle(self, slot: int) -> None:
        """Adds the rewards of an episode's last step to its columns."""
        rewards = self._fresh.get(slot)
        if rewards is not None:
            self._fresh[slot] = None
            self._add_rewards(slot, rewards)

    def _add_rewards(self, slot: int, rewards: Mapping[str, Any]) -> None:
        column_of = self._assignment.column_of
        first = slot * len(column_of)
        pending = self._pending.get(slot)
        reward_at, is_paid_at, return_at = self._reward_at, self._is_paid_at, self._return_at
        for agent_id, reward in rewards.items():
            column = column_of.get(agent_id)
            if column is None:
                agent_id = self._assignment.name(agent_id)
                column = column_of[agent_id]
            if pending is not None or type(reward) is not float:
                reward = self._log_rare(slot, agent_id, reward)
                if reward is None:
                    continue
            cell = first + column
            reward_at[cell] += reward
            return_at[cell] += reward
            is_paid_at[cell] = True

    def log_late(self, slot: int, rewards: Mapping[str, float]) -> None:
        """Keeps rewards that came after their agent had ended; see `late_rewards` of `Step`."""
        for agent_id, reward in rewards.items():
            late = self._pending_of(slot, agent_id).late_rewards
            column = self._assignment.column_of[agent_id]
            late[agent_id] = late.get(agent_id, 0.0) + reward
            self._returns[slot, column] += reward
            self._is_known[slot, column] = True

    def log_in_arrays(self, rewards: Mapping[str, NDArray[Any]]) -> None:
        """Adds the rewards that followed from the last actions in the copies of a simulation.

        Args:
            rewards: by agent id float ``[N]``; rows of an agent that did not act, or of a closed
                episode, are ignored. An agent that is left out gets 0.

        Raises:
            EpisodeMisuse: rewards are of another shape, or of an unknown agent.
        """
        num_copies = len(self.is_open)
        earned = np.zeros_like(self._rewards)
        for agent_id, given in rewards.items():
            mine = np.asarray(given)
            if agent_id not in self._agents_in_arrays:
                unknown = sorted(rewards.keys() - set(self._agents_in_arrays))
                raise EpisodeMisuse(f"rewards came of {unknown}, which are not among the agents")
            if mine.shape != (num_copies,) or mine.dtype.kind not in "fiub":
                raise EpisodeMisuse(
                    f"rewards of agent {agent_id!r} must be {as_text((num_copies,), 'float64')}"
                    f"{got(mine)}"
                )
            earned[:, self._assignment.column_of[agent_id]] = mine
        acts = self._acts_in_arrays
        if np.count_nonzero(self.is_open) < num_copies:
            acts &= self.is_open[:, None]
        if np.count_nonzero(acts) < num_copies * len(self._agents_in_arrays):
            earned[~acts] = 0.0
        self._rewards += earned
        self._returns += earned
        self._is_paid |= acts
        acts[:] = False

    def _log_rare(self, slot: int, agent_id: str, reward: Any) -> float | None:
        """Returns a reward as a number; None: it is late or no number, and is kept in `Pending`."""
        place = self._assignment.place_of[agent_id]
        pending = self._pending.get(slot, NONE).get(place)
        is_late = pending is not None and agent_id in pending.late
        try:
            value = reward if type(reward) is float else number(reward)
            if is_late:
                # A server that knew of the end would not credit the reward to an action either.
                self.log_late(slot, {agent_id: value})
        except (Mismatch, TypeError):
            pending = self._pending_of(slot, agent_id)
            (pending.late_rewards if is_late else pending.rewards)[agent_id] = reward
            return None
        return None if is_late else value

    def _log_end(self, slot: int, agent_id: str, is_truncation: bool) -> None:
        pending = self._pending_of(slot, agent_id)
        if agent_id in pending.late:
            return
        (pending.truncations if is_truncation else pending.terminations)[agent_id] = True
        if is_truncation and agent_id not in pending.terminations and (one := self.by_slot[slot]):
            one.is_truncated = True
        _, spec = self._servers[self._assignment.place_of[agent_id]]
        group = spec.agents[agent_id].group
        members = [agent_id]
        if group is not None:  # a team earns rewards until its last member ends
            done = self._done.setdefault(slot, set())
            done.add(agent_id)
            members = spec.groups.get(group, members)
            if not done.issuperset(members):
                return
        pending.ended.update(members)

    def _pending_of(self, slot: int, agent_id: str) -> Pending:
        of_servers = self._pending.setdefault(slot, defaultdict(Pending))
        return of_servers[self._assignment.place_of[agent_id]]

    def wants_state_at_end(self, slot: int) -> bool:
        """Whether an end now needs the global state: a truncated agent's value is bootstrapped."""
        return any(
            self._servers[place][1].state_size is not None
            and one.truncations.keys() - one.terminations.keys()
            for place, one in self._pending.get(slot, NONE).items()
        )

    def _pop_pending(self, slot: int, place: int) -> tuple[dict[str, Any], Pending]:
        """Returns the rewards and the `Pending` that a server is to be sent of an episode."""
        self._settle(slot)
        whole, first = self._assignment.wholes[place], slot * len(self._assignment.agents)
        mine = slice(first + whole.start, first + whole.stop)
        is_paid = self._is_paid_at[mine].tolist()
        agents, of_all = self._assignment.agents[whole], self._reward_at[mine].tolist()
        if all(is_paid):
            rewards = dict(zip(agents, of_all, strict=True))
        else:
            rewards = dict(itertools.compress(zip(agents, of_all, strict=True), is_paid))
        of_servers = self._pending.get(slot)
        pending = of_servers.pop(place, None) if of_servers else None
        if pending is None:
            return rewards, _PLAIN
        if not of_servers:
            del self._pending[slot]
        return rewards | pending.rewards, pending

    def returns_of(self, slot: int) -> dict[str, float]:
        """Returns the sum of rewards so far, by agent that has acted or got a reward."""
        self._settle(slot)
        is_known = (self._is_known[slot] | self._is_paid[slot]).tolist()
        of_all = zip(self._assignment.agents, self._returns[slot].tolist(), is_known, strict=True)
        return {agent_id: value for agent_id, value, is_there in of_all if is_there}


def _elements(array: Any) -> Any:
    return memoryview(array.reshape(-1))


def _bytes(array: Any) -> Any:
    return memoryview(array.reshape(-1).view(np.uint8))
