"""All episodes of a server, the answers of ended ones, and the batches cut from them.

Time is an argument.
"""

from __future__ import annotations

import contextlib
import math
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence

import numpy as np

from muxrl.protocol.episode import check_episode_id
from muxrl.protocol.errors import (
    EpisodeGone,
    NotServing,
    OutOfOrder,
    ProtocolError,
    TooManyEpisodes,
    ValueMismatch,
)
from muxrl.protocol.messages import (
    Aborted,
    AbortEpisode,
    Actions,
    AnyItem,
    AnyReply,
    Ended,
    EndEpisode,
    PlayedSteps,
    Recorded,
    Started,
    StartEpisode,
    Step,
    StepRows,
)
from muxrl.servers.agents.observing import Observing
from muxrl.servers.agents.seats import Seat
from muxrl.servers.config import ServerPlan
from muxrl.servers.episodes.counts import EpisodeCounts
from muxrl.servers.episodes.episode import Member, PendingStep, ServedEpisode
from muxrl.servers.episodes.far_values import FarValues
from muxrl.servers.episodes.feed import Feed
from muxrl.servers.episodes.lockstep import Lockstep
from muxrl.servers.episodes.played import PlayedCheck, seat_action
from muxrl.servers.episodes.recorder import Recorder
from muxrl.servers.episodes.reward_scale import RewardScale
from muxrl.servers.episodes.row_reader import RowReader
from muxrl.servers.episodes.rows import RowOfStep, RowStep, StepOfMembers
from muxrl.servers.episodes.step_check import StepCheck
from muxrl.servers.episodes.tombstones import Tombstones
from muxrl.servers.episodes.trajectories import Chunk
from muxrl.servers.episodes.untrained import untrained_seats
from muxrl.servers.episodes.warnings import Warnings

BROKEN = "episodes that cannot be processed"
_PAID_LATE = (
    "{who!r} was paid after its end, in episode {episode_id} for the first time: that counts in "
    "its return, and no action learns from it; did its end come too early?"
)
_STALE = "a client has played with weights too old for the loss, which leaves its actions out"


class EpisodeStore:
    """All episodes of one server, and the batches cut from them.

    Args:
        plan: the server.
        seats: by seat id.
        feed: where complete batches go.
        batch_env_steps: recorded env steps that make a batch.
        needs_whole_episodes: batches hold ended episodes only (QMIX), else whatever there is.
        max_sequence_steps: longer ones come in pieces of so many env steps; None: they are whole.
        cuts_after_frames: a batch holds all that its last frame has brought, of however many
            episodes, be it more than `batch_env_steps`.
        lookback: see `Recorder`.
        recorder: records one episode.
        observing: has statistics of training episodes; None: there are none.
        played: reads steps in which clients acted by themselves; None: none are taken.
        reward_scales: by policy; None: rewards are recorded as they come.
    """

    def __init__(
        self,
        plan: ServerPlan,
        seats: dict[str, Seat],
        feed: Feed,
        *,
        batch_env_steps: int,
        needs_whole_episodes: bool,
        max_sequence_steps: int | None = None,
        cuts_after_frames: bool = False,
        lookback: int,
        recorder: Callable[..., Recorder] = Recorder,
        observing: Observing | None = None,
        played: PlayedCheck | None = None,
        reward_scales: Mapping[str, RewardScale] | None = None,
    ) -> None:
        self.plan = plan
        self.counts = EpisodeCounts()
        self.warnings = Warnings(lambda: self.counts.num_env_steps)
        self.ended: deque[Ended] | None = None
        """Where training episodes go that have ended, if somebody wants to know."""
        self.draw: Callable[[StartEpisode], Member] | None = None
        """Says who plays an episode; None: there is no choice."""
        self.is_accepting = True
        self.problem = ""
        """Why idle episodes were not closed when that was due last; "": they were."""
        self._check = StepCheck(
            plan.agents,
            plan.state_size,
            max_abs_reward=plan.limits.max_abs_reward,
            max_abs_observation=plan.limits.max_abs_observation,
            agents_return=plan.agents_return,
        )
        self._seats = seats
        self._feed = feed
        self._batch_env_steps = batch_env_steps
        self._needs_whole_episodes = needs_whole_episodes
        self._max_sequence_steps = max_sequence_steps or math.inf
        self._cuts_after_frames = cuts_after_frames
        self._lookback = lookback
        self._make_recorder = recorder
        self._observing = observing
        self._played_check = played
        self._reward_scales = reward_scales or {}
        self._row_reader = RowReader(plan, seats, self._reward_scales)
        self._open: dict[str, ServedEpisode] = {}
        self._tombstones = Tombstones()
        self._chunks: list[Chunk] = []
        self._num_uncut_steps = 0
        self.far_values = FarValues(self.warnings)
        self._has_told_late = False
        """That somebody was paid after its end."""
        feed.share_collected = self._share_collected

    @property
    def num_open(self) -> int:
        return len(self._open)

    @property
    def pending(self) -> list[Chunk]:
        """Chunks of ended episodes that wait for their batch to be complete."""
        return list(self._chunks)

    def restore(self, counts: EpisodeCounts, pending: Sequence[Chunk] = ()) -> None:
        """Goes on with what a store had counted, and with its pending chunks."""
        vars(self.counts).update(vars(counts))  # others hold the object
        self._chunks = list(pending)
        self._num_uncut_steps = sum(chunk.num_env_steps for chunk in self._chunks)

    def accept(self, item: AnyItem, now: float) -> AnyReply | PendingStep | RowOfStep:
        """Handles one item of a client.

        Raises:
            ProtocolError: it is refused, and nothing of it was recorded.
        """
        if isinstance(item, Step):
            return self._step(item, now)
        if isinstance(item, StartEpisode):
            return self._start(item, now)
        if isinstance(item, PlayedSteps):
            return self._play(item, now)
        buried = self._tombstones.answer_of(item.episode_id)
        if buried is not None:
            return buried
        assert isinstance(item, EndEpisode | AbortEpisode)
        return self._end(item, now) if isinstance(item, EndEpisode) else self._abort(item, now)

    def expire(self, now: float) -> list[str]:
        """Closes idle episodes as truncated, and forgets old tombstones; returns the closed ids."""
        limits = self.plan.limits
        expired = [
            episode_id
            for episode_id, episode in self._open.items()
            # An episode that waits for its actions is not idle: the server is slow.
            if (episode.pending is None or episode.pending.has_failed)
            and now - episode.last_seen > limits.episode_timeout_s
        ]
        for episode_id in expired:
            with self._dropping(episode_id):
                self._close(self._open[episode_id], Aborted(episode_id), now, is_aborted=True)
            self.counts.num_expired += 1
        self.finish_frame()
        self._tombstones.expire(now - limits.tombstone_s)
        return expired

    def abort_all(self, prefix: str, now: float) -> int:
        """Closes the episodes whose ids begin so as truncated; returns how many there were."""
        lost = [episode_id for episode_id in self._open if episode_id.startswith(prefix)]
        for episode_id in lost:
            with self._dropping(episode_id):
                self._abort(AbortEpisode(episode_id, "its simulation was lost"), now)
        self.finish_frame()
        return len(lost)

    def drop(self, episode_id: str, error: Exception) -> None:
        """Closes an episode that cannot be processed, which would fail for others, too.

        What it has recorded since it was cut last is lost.
        """
        episode = self._open.pop(episode_id, None)
        if episode is None:
            return
        episode.drop()
        self.counts.num_aborted += episode.is_training
        self._tombstones.bury(episode_id, Aborted(episode_id), episode.last_seen, self.plan)
        text = f"episode {episode_id} cannot be processed and is closed, by an error in the server"
        self.warnings.add(BROKEN, f"{text} itself: {error!r}", error=error)

    @contextlib.contextmanager
    def _dropping(self, episode_id: str) -> Iterator[None]:
        """Drops an episode with which something fails, so that the others go on."""
        try:
            yield
        except Exception as error:  # noqa: BLE001, it is logged
            self.drop(episode_id, error)

    # --- items --------------------------------------------------------------------------

    def _start(self, item: StartEpisode, now: float) -> Started:
        if not self.is_accepting:
            raise NotServing(f"server {self.plan.server_id!r} is stopping")
        episode_id = item.episode_id
        check_episode_id(episode_id)
        known = self._open.get(episode_id)
        # A repeat: its answer was lost, perhaps with that of the first step in the same frame.
        if known is not None and known.t <= 1 and known.started_by == item:
            known.last_seen = now
            return Started(episode_id, member=known.member.name if known.member else "")
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
        untrained = untrained_seats(item, self.plan, self._seats) if item.untrained else frozenset()
        member = self.draw(item) if self.draw else None
        seats = member.seats if member else self._seats
        recorder = self._make_recorder(episode_id, seats, self._lookback, self._reward_scales)
        episode = self._open[episode_id] = ServedEpisode(
            item, self.plan, self._check, seats, recorder, now, self._observing, untrained
        )
        episode.member = member
        episode.row_reader = member.row_reader if member else self._row_reader
        return Started(episode_id, member=member.name if member else "")

    def _step(
        self, item: Step, now: float, *, was_played: bool = False
    ) -> Actions | PendingStep | RowOfStep:
        episode = self._find(item.episode_id)
        if not episode.is_training:
            return episode.step(item, now)
        is_repeat = item.t != episode.t
        num_before = episode.num_uncut_steps
        outcome = episode.step(item, now)
        if not is_repeat:
            self.counts.num_logged_actions += 0 if was_played else len(item.logged_actions)
            num = episode.num_uncut_steps - num_before
            self._count_step(episode, len(item.observations), num)
        return outcome

    def _count_step(self, episode: ServedEpisode, num_agent_steps: int, num_env_steps: int) -> None:
        """Counts a step of a training episode, and cuts what is long enough."""
        self.counts.num_agent_steps += num_agent_steps
        self._count_env_steps(num_env_steps)
        self._cut_if_due()
        if self._needs_whole_episodes and episode.num_uncut_steps >= self._max_sequence_steps:
            self._keep_whole(episode.cut())

    # --- rows ---------------------------------------------------------------------------

    @property
    def takes_rows(self) -> bool:
        """Whether steps may come in rows."""
        return self._row_reader.can_read_all

    def accept_rows(self, item: StepRows, now: float) -> RowStep | StepOfMembers | list[Step]:
        """Records a step of many episodes; what is not plain comes back as single steps.

        Raises:
            MalformedMessage: its arrays do not hang together.
        """
        reader = self._row_reader
        reader.check(item)
        step = self._next_in_lockstep(item, now) or self._begin_lockstep(item, now)
        if step is None:
            return reader.singles(item)
        if step.is_training and self._observing is not None:
            lineup = step.parts[0].benches.lineup
            self._observing.add_rows(lineup.observed, item.observations, item.state)
        return step

    def _next_in_lockstep(self, item: StepRows, now: float) -> RowStep | None:
        """Records the next step of episodes that stay together; None: they do not."""
        ends = (self._open.get(item.episode_ids[place]) for place in (0, -1))
        lockstep = next((e.lockstep for e in ends if e is not None and e.lockstep), None)
        if lockstep is None:
            return None
        lockstep.make_room(self._dropping)
        num_env_steps = int(np.count_nonzero(item.t))
        if lockstep.last.is_training and self._may_cut(num_env_steps, int(item.t.max())):
            return None  # in the middle of these rows, perhaps
        found = self._row_reader.read_next(item, lockstep, self._open)
        if found is None:
            return None
        step, changed = found
        lockstep.take(step, item, changed, now)
        if step.is_training:
            self.counts.num_agent_steps += len(step.episodes) * len(step.benches.agents)
            self._count_env_steps(num_env_steps)
        return step

    def _may_cut(self, num_env_steps: int, longest: int) -> bool:
        """Whether so many env steps more may complete a batch, or an episode's piece."""
        if self._needs_whole_episodes:
            return longest >= self._max_sequence_steps
        if self._cuts_after_frames:
            return False
        return self._num_uncut_steps + num_env_steps >= self._batch_env_steps

    def _begin_lockstep(self, item: StepRows, now: float) -> RowStep | StepOfMembers | None:
        """Records a step of episodes as they come; None: it has to be read one by one."""
        episodes = [self._open.get(episode_id) for episode_id in item.episode_ids]
        step = self._row_reader.read(item, episodes)
        for part in () if step is None else step.parts:
            ids = [episode.episode_id for episode in part.episodes]
            lockstep = Lockstep(part, ids, np.array(part.t), now)
            for row, episode in enumerate(part.episodes):
                assert isinstance(episode, ServedEpisode)
                episode.join(lockstep, row)
                if part.is_training:
                    num_agent_steps = len(part.benches.agents)
                    self._count_step(episode, num_agent_steps, int(part.t[row] > 0))
        return step

    def _play(self, item: PlayedSteps, now: float) -> Recorded:
        """Records the steps that are new, one by one: a refusal leaves those before it recorded."""
        if self._played_check is None:
            raise ValueMismatch(
                f"it takes no steps in which a client acted by itself: {self.plan.algorithm} has "
                "no networks to give"
            )
        reply = Recorded(item.episode_id, 0, self._played_check.version())
        buried = self._tombstones.answer_of(item.episode_id)
        if isinstance(buried, Ended) and all(step.t < buried.num_steps for step in item.steps):
            reply.num_steps = buried.num_steps  # a repeat: its end was in the same frame
            return reply
        episode = self._find(item.episode_id)
        episode.last_seen = now
        check = self._played_check
        is_stale, states, steps = check.read(item)
        for step, rows in steps:
            if step.t < episode.t:
                continue
            try:
                pending = self._step(step, now, was_played=True)
            except ProtocolError as error:
                error.message = f"step t={step.t}: {error.message}"
                raise
            assert isinstance(pending, PendingStep)  # of a new step
            chosen = [seat_action(r, rows, states) for r in pending.requests]
            pending.finish(chosen, item.weights_seq_no)
            if is_stale and episode.is_training:
                text = "" if self.counts.num_stale_steps else _STALE
                self.warnings.add("stale steps", text, num=len(chosen))
                self.counts.num_stale_steps += len(chosen)
        reply.num_steps = episode.t
        if episode.is_training:
            self.refresh(reply)
        return reply

    def refresh(self, reply: Recorded, num_clients: int = 1) -> None:
        """Says in a reply how the server stands now, and this client's share of the next batch."""
        check = self._played_check
        assert check is not None
        reply.weights_seq_no, reply.epsilon = check.version(), check.epsilon()
        missing = self._batch_env_steps - self._num_uncut_steps
        reply.num_wanted = max(check.min_wanted, -(-missing // num_clients))

    def _end(self, item: EndEpisode, now: float) -> Ended:
        episode = self._find(item.episode_id)
        num_before = episode.num_uncut_steps
        reply = episode.end(item)
        if episode.is_training:
            self._count_env_steps(episode.num_uncut_steps - num_before)
        self._close(episode, reply, now, is_aborted=False)
        return reply

    def _abort(self, item: AbortEpisode, now: float) -> Aborted:
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

    def _count_env_steps(self, recorded: int) -> None:
        self.counts.num_env_steps += recorded
        if not self._needs_whole_episodes:
            self._num_uncut_steps += recorded

    def _close(
        self, episode: ServedEpisode, reply: Ended | Aborted, now: float, *, is_aborted: bool
    ) -> None:
        if episode.is_training:
            chunk = episode.finish(is_aborted=is_aborted)
            self._keep_whole(chunk)
            if is_aborted:
                self.counts.num_aborted += 1
            else:
                self.counts.num_episodes += 1
                self.counts.add_returns(episode.returns)
                if episode.member:
                    episode.member.end(episode.returns)
                if self.ended is not None and isinstance(reply, Ended):
                    self.ended.append(reply)
                if who := episode.paid_late:
                    text = _PAID_LATE.format(who=who, episode_id=episode.episode_id)
                    self.warnings.add("rewards after an end", "" if self._has_told_late else text)
                    self._has_told_late = True
        del self._open[episode.episode_id]
        self._tombstones.bury(episode.episode_id, reply, now, self.plan)
        self._cut_if_due()

    def _cut_if_due(self, *, is_after_frame: bool = False) -> None:
        """Delivers all that has been recorded, of open episodes too, if it makes a batch."""
        if self._needs_whole_episodes or self._num_uncut_steps < self._batch_env_steps:
            return
        if self._cuts_after_frames and not is_after_frame:
            return
        for episode_id, episode in list(self._open.items()):
            if episode.is_training:
                with self._dropping(episode_id):
                    self._keep(episode.cut())
        for lockstep in {e.lockstep for e in self._open.values() if e.is_training}:
            if lockstep is not None:  # whose rows would be held until many more have come
                lockstep.forget()
        self._deliver()

    def finish_frame(self) -> None:
        """Delivers what waits for the end of a frame; to be called when one was taken in.

        Simulations in lockstep end their episodes in one frame. Delivered one by one, these would
        hold the simulations at the gate until all but the last batch had been learned.
        """
        if self._cuts_after_frames:
            self._cut_if_due(is_after_frame=True)
        if self._needs_whole_episodes and self._num_uncut_steps >= self._batch_env_steps:
            self._deliver()

    def _share_collected(self) -> float:
        return self._num_uncut_steps / self._batch_env_steps

    def _keep(self, chunk: Chunk | None) -> None:
        if chunk is not None:
            self._chunks.append(chunk)

    def _keep_whole(self, chunk: Chunk | None) -> None:
        """Keeps an episode, or the piece of one that is learned like an episode."""
        self._keep(chunk)
        if self._needs_whole_episodes and chunk is not None:
            self._num_uncut_steps += chunk.num_env_steps

    def _deliver(self) -> None:
        batch, self._chunks = self._chunks, []
        self._num_uncut_steps = 0
        if batch:
            self.far_values.look_at(batch)
            self._feed.put(batch)
