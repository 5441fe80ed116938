"""The open episodes of one server: what comes in is checked, recorded, and answered once.

A step is checked as a whole before any of it is recorded, so a refused step leaves the episode
as it was and the same `t` can be sent again, mended. Time is an argument everywhere.
"""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from protocol import spaces as plain
from protocol.episode import EpisodeEvent, EpisodeLaw, EpisodeState
from protocol.errors import EpisodeGone, NotServing, OutOfOrder, TooManyEpisodes, ValueMismatch
from protocol.messages import (
    Aborted,
    AbortEpisode,
    Actions,
    Ended,
    EndEpisode,
    Mode,
    Reply,
    Started,
    StartEpisode,
    Step,
)
from servers.config import ServerPlan
from servers.feed import Chunk, Feed
from servers.recorder import Recorder
from servers.seats import Seat, SeatRecord


@dataclass
class SeatRequest:
    """One seat of one step that waits for its action."""

    seat: Seat
    record: SeatRecord
    observation: Any
    logged_action: Any = None


@dataclass
class PendingStep:
    """A step that is recorded and waits for its actions."""

    episode: ServedEpisode
    t: int
    requests: list[SeatRequest]
    acting: Mapping[str, Any]
    is_gated: bool
    should_explore: bool
    weights_seq_no: int = 0
    answer: Actions | None = None

    def finish(self, weights_seq_no: int) -> Actions:
        """Makes the answer, once every request has its action in its record."""
        actions: dict[str, Any] = {}
        for request in self.requests:
            actions |= request.seat.act(request.record.action, self.acting, request.record)
        self.weights_seq_no = weights_seq_no
        self.answer = self.episode.answer(self, actions)
        return self.answer


@dataclass
class EpisodeCounts:
    """What a server counts over all of its episodes; returns are of raw rewards."""

    num_env_steps: int = 0
    num_agent_steps: int = 0
    num_episodes: int = 0
    num_aborted: int = 0
    num_expired: int = 0
    recent_returns: list[float] = field(default_factory=list)

    def add_return(self, value: float) -> None:
        self.recent_returns.append(value)
        del self.recent_returns[:-100]

    @property
    def episode_return_mean(self) -> float | None:
        """Mean over the last 100 training episodes of the sum over this server's agents."""
        if not self.recent_returns:
            return None
        return sum(self.recent_returns) / len(self.recent_returns)


class ServedEpisode:
    """One episode as one server sees it."""

    def __init__(
        self,
        message: StartEpisode,
        plan: ServerPlan,
        seats: dict[str, Seat],
        recorder: Recorder,
        now: float,
    ) -> None:
        self.episode_id = message.episode_id
        self.mode: Mode = message.mode
        self.should_explore = (
            message.mode == "train" if message.should_explore is None else message.should_explore
        )
        self.law = EpisodeLaw(message.episode_id)
        self.law.handle(EpisodeEvent.START)
        self.last_seen = now
        self.returns: dict[str, float] = {}
        self.recorder = recorder
        self.pending: PendingStep | None = None
        self._plan = plan
        self._seats = seats
        self._records = {seat_id: SeatRecord() for seat_id in seats}
        self._acted: list[SeatRequest] = []
        self._weights_seq_no = 0
        self._last_reply: Actions | None = None
        self._agents_done: set[str] = set()

    @property
    def is_training(self) -> bool:
        return self.mode == "train"

    # --- steps --------------------------------------------------------------------------

    def step(self, message: Step) -> Actions | PendingStep:
        """Records what came and returns what is to be computed; a repeat gets its old answer.

        Raises:
            OutOfOrder: not the step awaited.
            ValueMismatch: something in it is not as declared; nothing was recorded.
        """
        if self.law.is_repeat(message.t):
            if self.law.state is EpisodeState.AWAITING_ACTION:
                assert self.pending is not None
                return self.pending
            assert self._last_reply is not None
            return self._last_reply
        self.law.check(EpisodeEvent.OBSERVE)
        observations = self._conform(message.observations, "observation")
        finals = self._conform(message.final_observations, "final observation")
        logged = self._conform_actions(message.logged_actions, observations)
        self._check_rewards(message.rewards)
        done = self._check_done(message.terminations, message.truncations)
        back = observations.keys() & (done | self._agents_done)
        if back:
            agent_id = min(back)
            raise ValueMismatch(
                f"agent {agent_id!r} is done in this episode and cannot observe again; "
                "one that comes back needs a new agent id or a new episode",
                agent_id=agent_id,
                expected="observations of agents that are not done",
                got=f"an observation of {agent_id!r}",
            )
        seen = self._observe(observations, message.state)
        if message.t == 0:
            self._begin(seen)
            self._note_before_first_action(message.rewards, done)
        else:
            self._record_transition(
                seen,
                finals,
                message.rewards,
                self._flagged(message.terminations),
                self._flagged(message.truncations),
                message.state,
            )
        self._agents_done |= done
        requests = []
        for seat_id, observation in seen.items():
            record = self._records[seat_id]
            record.has_begun = True
            seat = self._seats[seat_id]
            requests.append(
                SeatRequest(seat, record, observation, seat.read_logged(logged) if logged else None)
            )
        self.law.handle(EpisodeEvent.OBSERVE)
        self.pending = PendingStep(
            self, message.t, requests, observations, self.is_training, self.should_explore
        )
        return self.pending

    def answer(self, pending: PendingStep, actions: dict[str, Any]) -> Actions:
        """Keeps and returns the answer to the pending step."""
        reply = Actions(self.episode_id, pending.t, actions, pending.weights_seq_no)
        if self.law.is_over:  # aborted while it waited: nothing follows from these actions
            return reply
        self.law.handle(EpisodeEvent.ACT)
        self._acted = pending.requests
        self._weights_seq_no = pending.weights_seq_no
        self._last_reply = reply
        self.pending = None
        return reply

    # --- ends ---------------------------------------------------------------------------

    def end(self, message: EndEpisode) -> Ended:
        """Records the last transition and closes the episode.

        Raises:
            OutOfOrder, ValueMismatch: as for `step`.
        """
        if message.t != self.law.t:
            raise OutOfOrder(
                f"episode {self.episode_id} has seen {self.law.t} steps on server "
                f"{self._plan.server_id!r}, the end says {message.t}; was a step lost?",
                expected=f"t={self.law.t}",
                got=f"t={message.t}",
            )
        self.law.check(EpisodeEvent.END)
        finals = self._conform(message.final_observations, "final observation")
        self._check_rewards(message.rewards)
        self._check_done(message.terminations, message.truncations)
        terminated = self._flagged(message.terminations)
        truncated = self._flagged(message.truncations)
        rest = self._plan.agents.keys() - self._agents_done - terminated - truncated
        if message.is_truncated:
            truncated |= rest
        else:
            terminated |= rest
        if message.t > 0:
            self._record_transition(
                {}, finals, message.rewards, terminated, truncated, message.state
            )
        else:
            self._note_before_first_action(message.rewards, terminated | truncated)
        self.law.handle(EpisodeEvent.END)
        return Ended(self.episode_id, self.law.t, dict(self.returns))

    def abort(self) -> None:
        """Closes the episode as truncated at its last full step."""
        self.law.handle(EpisodeEvent.ABORT)

    # --- checks -------------------------------------------------------------------------

    def _conform(self, values: Mapping[str, Any], what: str) -> dict[str, Any]:
        agents = self._plan.agents
        conformed = {}
        for agent_id, value in values.items():
            agent = agents.get(agent_id)
            if agent is None:
                raise self._unknown_agent(agent_id, what)
            try:
                conformed[agent_id] = plain.conform(agent.observation_space, value)
            except plain.Mismatch as error:
                raise self._mismatch(agent_id, what, error) from None
        return conformed

    def _conform_actions(
        self, logged: Mapping[str, Any], observations: Mapping[str, Any]
    ) -> dict[str, Any]:
        conformed = {}
        for agent_id, value in logged.items():
            if agent_id not in observations:
                raise ValueMismatch(
                    f"an action of agent {agent_id!r} was logged without its observation",
                    agent_id=agent_id,
                )
            try:
                space = self._plan.agents[agent_id].action_space
                conformed[agent_id] = plain.conform(space, value)
            except plain.Mismatch as error:
                raise self._mismatch(agent_id, "logged action", error) from None
        return conformed

    def _check_rewards(self, rewards: Mapping[str, float]) -> None:
        for agent_id, reward in rewards.items():
            if agent_id not in self._plan.agents:
                raise self._unknown_agent(agent_id, "reward")
            if not math.isfinite(reward):
                raise ValueMismatch(
                    f"the reward of agent {agent_id!r} is {reward}",
                    agent_id=agent_id,
                    expected="a finite number",
                    got=str(reward),
                )

    def _check_done(
        self, terminations: Mapping[str, bool], truncations: Mapping[str, bool]
    ) -> set[str]:
        done = self._flagged(terminations) | self._flagged(truncations)
        for agent_id in done:
            if agent_id not in self._plan.agents:
                raise self._unknown_agent(agent_id, "termination or truncation")
        return done

    def _unknown_agent(self, agent_id: str, what: str) -> ValueMismatch:
        return ValueMismatch(
            f"there is no agent {agent_id!r} here, but its {what} came",
            agent_id=agent_id,
            expected=f"one of {list(self._plan.agents)}",
            got=repr(agent_id),
        )

    def _mismatch(self, agent_id: str, what: str, error: plain.Mismatch) -> ValueMismatch:
        return ValueMismatch(
            f"{what} of agent {agent_id!r}: {error}",
            agent_id=agent_id,
            expected=error.expected,
            got=error.got,
        )

    # --- recording ----------------------------------------------------------------------

    def _observe(self, observations: Mapping[str, Any], state: Any) -> dict[str, Any]:
        seen = {}
        if self._plan.state_size is not None and self._plan.groups:
            state = self._conform_state(state)
        for seat_id, seat in self._seats.items():
            record = self._records[seat_id]
            if not record.is_done:
                observation = seat.observe(observations, state, record)
                if observation is not None:
                    seen[seat_id] = observation
        return seen

    def _conform_state(self, state: Any) -> Any:
        assert self._plan.state_size is not None
        try:
            return plain.conform(plain.Box((self._plan.state_size,)), state)
        except plain.Mismatch as error:
            raise ValueMismatch(
                f"the global state of the simulation: {error}",
                expected=error.expected,
                got=error.got,
            ) from None

    def _begin(self, seen: dict[str, Any]) -> None:
        if self.is_training:
            self.recorder.begin(seen)

    def _note_before_first_action(self, rewards: Mapping[str, float], done: set[str]) -> None:
        """Counts what other servers' agents brought about before ours acted for the first time.

        No action of ours is to be credited with it, so it is in the returns and nowhere else.
        """
        for agent_id, reward in rewards.items():
            self.returns[agent_id] = self.returns.get(agent_id, 0.0) + reward
        for seat_id, seat in self._seats.items():
            record = self._records[seat_id]
            record.members_done |= done.intersection(seat.members)
            record.is_done = len(record.members_done) == len(seat.members)

    def _record_transition(
        self,
        seen: dict[str, Any],
        finals: Mapping[str, Any],
        rewards: Mapping[str, float],
        terminated_agents: set[str],
        truncated_agents: set[str],
        state: Any,
    ) -> None:
        observations = dict(seen)
        if finals and self._plan.state_size is not None and self._plan.groups:
            state = self._conform_state(state)
        terminated: set[str] = set()
        truncated: set[str] = set()
        newly_done = terminated_agents | truncated_agents
        ending: list[SeatRecord] = []
        for seat_id, seat in self._seats.items():
            record = self._records[seat_id]
            if record.is_done:
                continue
            now_done = newly_done.intersection(seat.members)
            if not now_done:
                continue
            all_done = record.members_done | now_done
            if len(all_done) < len(seat.members):
                continue
            ending.append(record)
            if not record.has_begun:
                continue
            is_truncated = bool(now_done & truncated_agents)
            (truncated if is_truncated else terminated).add(seat_id)
            if seat_id not in observations:
                final = seat.observe(finals, state, record) if finals else None
                if final is None and is_truncated:
                    final = self._last_known(seat, min(now_done & truncated_agents))
                if final is not None:
                    observations[seat_id] = final
        # Nothing above has changed anything: a refusal leaves the episode as it was.
        for agent_id, reward in rewards.items():
            self.returns[agent_id] = self.returns.get(agent_id, 0.0) + reward
        if self.is_training and any(not record.is_done for record in self._records.values()):
            self._write(observations, rewards, terminated, truncated, ending)
        for record in ending:
            record.is_done = True
        for seat_id, seat in self._seats.items():
            self._records[seat_id].members_done |= newly_done.intersection(seat.members)

    def _last_known(self, seat: Seat, agent_id: str) -> Any:
        if self._was_last_to_act(seat) and self.is_training:
            raise ValueMismatch(
                f"agent {agent_id!r} was truncated without its final observation, which its "
                "value is bootstrapped from",
                agent_id=agent_id,
                expected=f"final_observations[{agent_id!r}]",
                got="none",
            )
        return self.recorder.last_observation(seat.seat_id) if self.is_training else None

    def _was_last_to_act(self, seat: Seat) -> bool:
        return any(request.seat is seat for request in self._acted)

    def _write(
        self,
        observations: dict[str, Any],
        rewards: Mapping[str, float],
        terminated: set[str],
        truncated: set[str],
        ending: list[SeatRecord],
    ) -> None:
        actions = {r.seat.seat_id: r.record.action for r in self._acted}
        extras = {
            r.seat.seat_id: r.record.extra_outputs for r in self._acted if r.record.extra_outputs
        }
        seat_rewards = {}
        is_last = True
        for seat_id, seat in self._seats.items():
            record = self._records[seat_id]
            if record.is_done:
                continue
            if record.has_begun and any(m in rewards for m in seat.members):
                seat_rewards[seat_id] = seat.reward(rewards)
            if not any(record is over for over in ending):
                is_last = False
        self.recorder.add(
            actions=actions,
            extra_outputs=extras,
            observations=observations,
            rewards=seat_rewards,
            terminated=terminated,
            truncated=truncated,
            is_last=is_last,
            weights_seq_no=self._weights_seq_no,
        )
        self._acted = []

    @staticmethod
    def _flagged(flags: Mapping[str, bool]) -> set[str]:
        return {agent_id for agent_id, is_set in flags.items() if is_set}


class EpisodeStore:
    """All episodes of one server, and the batches cut from them.

    Args:
        plan: the server.
        seats: by seat id.
        feed: where complete batches go.
        batch_env_steps: recorded env steps that make a batch.
        needs_whole_episodes: batches hold ended episodes only (QMIX), else whatever there is.
        lookback: see `Recorder`.
        policy_for: RLlib's agent-to-module mapping function.
    """

    def __init__(
        self,
        plan: ServerPlan,
        seats: dict[str, Seat],
        feed: Feed,
        *,
        batch_env_steps: int,
        needs_whole_episodes: bool,
        lookback: int,
        policy_for: Callable[..., str],
    ) -> None:
        self.plan = plan
        self.counts = EpisodeCounts()
        self.is_accepting = True
        self._seats = seats
        self._feed = feed
        self._batch_env_steps = batch_env_steps
        self._needs_whole_episodes = needs_whole_episodes
        self._lookback = lookback
        self._policy_for = policy_for
        self._open: dict[str, ServedEpisode] = {}
        self._tombstones: OrderedDict[str, tuple[float, Ended | Aborted]] = OrderedDict()
        self._chunks: list[Chunk] = []
        self._num_uncut_steps = 0

    @property
    def num_open(self) -> int:
        return len(self._open)

    def accept(
        self, item: StartEpisode | Step | EndEpisode | AbortEpisode, now: float
    ) -> Reply | PendingStep:
        """Takes one item of a client.

        Raises:
            ProtocolError: it is refused, and nothing of it was recorded.
        """
        if isinstance(item, Step):
            return self._step(item, now)
        if isinstance(item, StartEpisode):
            return self._start(item, now)
        if isinstance(item, EndEpisode):
            return self._end(item, now)
        return self._abort(item, now)

    def expire(self, now: float) -> list[str]:
        """Closes idle episodes as truncated, forgets old tombstones; returns who expired."""
        limits = self.plan.limits
        expired = [
            episode_id
            for episode_id, episode in self._open.items()
            # One that waits for its actions is not idle: it is us who are slow.
            if episode.pending is None and now - episode.last_seen > limits.episode_timeout_s
        ]
        for episode_id in expired:
            self._close(self._open[episode_id], Aborted(episode_id), now, is_aborted=True)
            self.counts.num_expired += 1
        while self._tombstones:
            episode_id, (buried_at, _) = next(iter(self._tombstones.items()))
            if now - buried_at <= limits.tombstone_s:
                break
            del self._tombstones[episode_id]
        return expired

    # --- items --------------------------------------------------------------------------

    def _start(self, item: StartEpisode, now: float) -> Started:
        if not self.is_accepting:
            raise NotServing(f"server {self.plan.server_id!r} is stopping")
        episode_id = item.episode_id
        known = self._open.get(episode_id)
        if known is not None and known.law.t == 0 and known.pending is None:
            return Started(episode_id)  # a repeat: its answer was lost
        if known is not None or episode_id in self._tombstones:
            state = "already open" if known is not None else "already over"
            raise OutOfOrder(
                f"episode {episode_id} is {state} on server {self.plan.server_id!r}; "
                "every episode needs an id of its own"
            )
        limit = self.plan.limits.max_episodes
        if len(self._open) >= limit:
            raise TooManyEpisodes(
                f"server {self.plan.server_id!r} holds {limit} open episodes, its limit "
                "(limits.max_episodes); are episodes started and never ended?",
                expected=f"at most {limit} open episodes",
                got=f"{len(self._open)} open",
            )
        recorder = Recorder(episode_id, self._seats, self._policy_for, self._lookback)
        self._open[episode_id] = ServedEpisode(item, self.plan, self._seats, recorder, now)
        return Started(episode_id)

    def _step(self, item: Step, now: float) -> Actions | PendingStep:
        episode = self._find(item.episode_id)
        episode.last_seen = now
        is_new = item.t == episode.law.t
        before = episode.recorder.num_uncut_steps
        outcome = episode.step(item)
        if is_new:
            self._count(episode, before, len(item.observations))
        return outcome

    def _end(self, item: EndEpisode, now: float) -> Ended | Aborted:
        buried = self._tombstones.get(item.episode_id)
        if buried is not None:
            return buried[1]
        episode = self._find(item.episode_id)
        before = episode.recorder.num_uncut_steps
        reply = episode.end(item)
        self._close(episode, reply, now, is_aborted=False, uncut_before=before)
        return reply

    def _abort(self, item: AbortEpisode, now: float) -> Ended | Aborted:
        buried = self._tombstones.get(item.episode_id)
        if buried is not None:
            return buried[1]
        reply = Aborted(item.episode_id)
        episode = self._open.get(item.episode_id)
        if episode is not None:
            episode.abort()
            self._close(episode, reply, now, is_aborted=True)
        return reply

    def _find(self, episode_id: str) -> ServedEpisode:
        episode = self._open.get(episode_id)
        if episode is not None:
            return episode
        if episode_id in self._tombstones:
            raise EpisodeGone(
                f"episode {episode_id} is over on server {self.plan.server_id!r}: it ended, was "
                f"aborted, or was idle for more than {self.plan.limits.episode_timeout_s:g} s"
            )
        raise EpisodeGone(
            f"server {self.plan.server_id!r} does not know episode {episode_id}: it was never "
            "started here, or the server was restarted since"
        )

    # --- batches ------------------------------------------------------------------------

    def _count(self, episode: ServedEpisode, before: int, num_agents: int) -> None:
        if not episode.is_training:
            return
        recorded = episode.recorder.num_uncut_steps - before
        self.counts.num_env_steps += recorded
        self.counts.num_agent_steps += num_agents
        if not self._needs_whole_episodes:
            self._num_uncut_steps += recorded
            if self._num_uncut_steps >= self._batch_env_steps:
                for open_episode in self._open.values():
                    if open_episode.is_training:
                        self._keep(open_episode.recorder.cut())
                self._deliver()

    def _close(
        self,
        episode: ServedEpisode,
        reply: Ended | Aborted,
        now: float,
        *,
        is_aborted: bool,
        uncut_before: int | None = None,
    ) -> None:
        if episode.is_training:
            if uncut_before is not None:
                recorded = episode.recorder.num_uncut_steps - uncut_before
                self.counts.num_env_steps += recorded
                self._num_uncut_steps += 0 if self._needs_whole_episodes else recorded
            chunk = episode.recorder.finish(is_aborted=is_aborted)
            self._keep(chunk)
            if self._needs_whole_episodes and chunk is not None:
                self._num_uncut_steps += chunk.num_env_steps
            if is_aborted:
                self.counts.num_aborted += 1
            else:
                self.counts.num_episodes += 1
                self.counts.add_return(sum(episode.returns.values()))
        del self._open[episode.episode_id]
        self._tombstones[episode.episode_id] = (now, reply)
        if self._num_uncut_steps >= self._batch_env_steps:
            if not self._needs_whole_episodes:
                for open_episode in self._open.values():
                    if open_episode.is_training:
                        self._keep(open_episode.recorder.cut())
            self._deliver()

    def _keep(self, chunk: Chunk | None) -> None:
        if chunk is not None:
            self._chunks.append(chunk)

    def _deliver(self) -> None:
        batch, self._chunks = self._chunks, []
        self._num_uncut_steps = 0
        if batch:
            self._feed.put(batch)
