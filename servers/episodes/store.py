"""Keeps all episodes of a server: open ones, and the answers of ended ones; and cuts batches.

Nothing here reads a clock: times are arguments.
"""

from __future__ import annotations

import contextlib
import itertools
import logging
import math
import sys
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from types import MappingProxyType
from typing import Any

import numpy as np

from muxrl.protocol.errors import NotServing, ProtocolError, TooManyEpisodes
from muxrl.protocol.messages import (
    Aborted,
    AbortEpisode,
    AnyItem,
    AnyReply,
    Ended,
    EndEpisode,
    PlayedRows,
    PlayedSteps,
    Recorded,
    Started,
    StartEpisode,
    Step,
    StepRows,
)
from muxrl.protocol.rows import pick
from muxrl.servers.agents.observing import Observing
from muxrl.servers.agents.seats import Seat
from muxrl.servers.config import ServerPlan
from muxrl.servers.episodes.batches import Batches, BatchRule
from muxrl.servers.episodes.blocks import Awaited, Block, Mode, Seats, answer_to_rows
from muxrl.servers.episodes.counts import EpisodeCounts
from muxrl.servers.episodes.far_values import FarValues
from muxrl.servers.episodes.feed import Feed
from muxrl.servers.episodes.ledger import Ledger
from muxrl.servers.episodes.played import Drawn, PlayedCheck, chosen_by_client
from muxrl.servers.episodes.reading import rows_where
from muxrl.servers.episodes.record import Record
from muxrl.servers.episodes.reward_scale import RewardScale
from muxrl.servers.episodes.steps import Rows, Steps
from muxrl.servers.episodes.table import EpisodeTable, Player
from muxrl.servers.episodes.trajectories import Chunk
from muxrl.servers.episodes.untrained import untrained_seats
from muxrl.servers.episodes.warnings import Warnings

logger = logging.getLogger(__name__)

MOST_OVER, _MOST_RETURNS = 100_000, 1_000_000
"""Most ended episodes to remember, and most returns of agents in their answers, some 65 MB. A
client that lost an answer asks again before so many more episodes have ended: of episodes with a
few steps a thousand end each second."""
BROKEN = "episodes that cannot be processed"
_PAID_LATE = (
    "{who!r} got a reward after its end, for the first time in episode {episode_id}: the reward "
    "counts in its return, but no action learns from it; was the agent ended too early?"
)
_REASON_CHARS = 200
"""Most characters to remember of the reason why an episode was aborted."""
_ABORT_LOG_S = 10.0
"""Least time between two aborts that are logged, as for refusals."""
_STALE = "a client has played with weights that are too old, so the loss leaves its actions out"


class EpisodeStore:
    """All episodes of one server, and the batches cut from them.

    Args:
        plan: the server.
        seats: by seat id.
        feed: takes complete batches.
        rule: when training episodes make a batch; None: they are not recorded, only counted.
        observing: keeps statistics of training episodes; None: there are no statistics.
        played: reads steps in which clients acted by themselves; None: such steps are refused.
        reward_scales: by policy; None: rewards are recorded as they come.
    """

    def __init__(
        self,
        plan: ServerPlan,
        seats: dict[str, Seat],
        feed: Feed,
        rule: BatchRule | None = None,
        *,
        observing: Observing | None = None,
        played: PlayedCheck | None = None,
        reward_scales: Mapping[str, RewardScale] | None = None,
    ) -> None:
        self.plan = plan
        self.counts = EpisodeCounts()
        self.warnings = Warnings(lambda: self.counts.num_env_steps)
        self.ended: deque[Ended] | None = None
        """Receives the end of each training episode; None: ends are not wanted."""
        self.draw: Callable[[StartEpisode], Player] | None = None
        """Chooses the player of an episode; None: there is no choice."""
        self.is_accepting = True
        self.is_paused = False
        """Whether the run has paused its simulations, so that training episodes do not expire; may
        be set by any thread."""
        self.problem = ""
        """Why idle episodes could not be closed the last time; "": they could."""
        self._seats = Seats(plan.agents, seats)
        without = f"{plan.algorithm} has no networks to give"
        self._played_check = played or PlayedCheck(plan.agents, without, lambda: 0, None)
        self._table = EpisodeTable(list(plan.agents))
        self._steps = Steps(
            plan,
            self._table,
            records=rule is not None,
            observing=observing,
            reward_scales=reward_scales or MappingProxyType({}),
        )
        self._modes: dict[Mode, Mode] = {}
        most_over = min(MOST_OVER, _MOST_RETURNS // max(1, len(plan.agents)))
        self._ledger = Ledger(
            "server",
            plan.server_id,
            self._table.slot_of,
            max(most_over, plan.limits.max_episodes),
        )
        self._logged_abort_at = -math.inf
        self.far_values = FarValues(self.warnings)
        self._batches = Batches(
            self._table,
            feed,
            self.far_values,
            self._dropping,
            rule or BatchRule(sys.maxsize),
        )
        self._has_warned_late = False
        """Whether a reward after an agent's end was warned of."""

    @property
    def num_open(self) -> int:
        return len(self._table)

    @property
    def pending(self) -> list[Chunk]:
        """Chunks of ended episodes that wait for their batch to be complete."""
        return self._batches.pending

    def restore(self, counts: EpisodeCounts, pending: Sequence[Chunk] = ()) -> None:
        """Continues with the counts and pending chunks of an earlier store."""
        vars(self.counts).update(vars(counts))  # updated in place, as others hold the object
        self._batches.restore(pending)

    def accept(self, item: AnyItem, now: float) -> AnyReply | Awaited:
        """Handles one item of a client.

        Raises:
            ProtocolError: the item is refused, and nothing of it was recorded.
        """
        if isinstance(item, Step):
            return self._step(item, now)
        if isinstance(item, StartEpisode):
            return self._start(item, now)
        if isinstance(item, PlayedSteps):
            return self._play(item, now)
        earlier = self._ledger.answer_of(item.episode_id)
        if earlier is not None:
            return earlier
        assert isinstance(item, EndEpisode | AbortEpisode)
        return self._end(item, now) if isinstance(item, EndEpisode) else self._abort(item, now)

    def expire(self, now: float) -> list[str]:
        """Closes idle episodes as truncated, and forgets old ended ones; returns the closed ids."""
        limits, table = self.plan.limits, self._table
        expired = []
        for episode_id, slot in table.slot_of.items():
            if self.is_paused and table.modes[slot].is_training:
                table.seen_at[slot] = now
            last = table.last[slot]
            # An episode that waits for its actions is not idle: the server is slow.
            is_waiting = last is not None and last.chosen is None and not last.has_failed
            if not is_waiting and now - table.seen_at[slot] > limits.episode_timeout_s:
                expired.append(episode_id)
        reason = f"it was idle for more than {limits.episode_timeout_s:g} s"
        for episode_id in expired:
            with self._dropping(episode_id):
                self._close(episode_id, Aborted(episode_id), now, reason)
            self.counts.num_expired += 1
        self.finish_frame()
        self._ledger.forget(now - limits.tombstone_s)
        return expired

    def abort_all(self, prefix: str, now: float) -> int:
        """Closes the episodes whose ids have a prefix, as truncated; returns their number."""
        lost = [episode_id for episode_id in self._table.slot_of if episode_id.startswith(prefix)]
        for episode_id in lost:
            with self._dropping(episode_id):
                self._abort(AbortEpisode(episode_id, "its simulation was lost"), now)
        self.finish_frame()
        return len(lost)

    def drop(self, episode_id: str, error: Exception) -> None:
        """Closes an episode that cannot be processed, as it would make others fail, too.

        What was recorded since its last cut is lost.
        """
        if episode_id in self._table.slot_of:
            with self._dropping(episode_id):
                raise error

    @contextlib.contextmanager
    def _dropping(self, episode_id: str) -> Iterator[None]:
        """Drops an episode if the code inside raises, so that the others continue."""
        try:
            yield
        except Exception as error:  # noqa: BLE001, it is logged
            reason = "was closed because of an error in the server itself"
            table, slot = self._table, self._table.slot_of.get(episode_id)
            if slot is not None:  # else it has just ended
                self.counts.num_aborted += table.modes[slot].is_training
                table.close(episode_id)
                aborted = Aborted(episode_id)
                self._ledger.end(episode_id, aborted, f"it {reason}", table.seen_at[slot])
            self.warnings.add(BROKEN, f"episode {episode_id} {reason}: {error!r}", error=error)

    # --- items --------------------------------------------------------------------------

    def _start(self, item: StartEpisode, now: float) -> Started:
        if not self.is_accepting:
            raise NotServing(f"server {self.plan.server_id!r} is stopping")
        episode_id = item.episode_id
        table = self._table
        known = table.slot_of.get(episode_id)
        # A repeat: the answer was lost, maybe with that of the first step in the same frame.
        if known is not None and table.t[known] <= 1 and table.started[known] == item:
            table.seen_at[known] = now
            return _started(episode_id, table.players[known])
        self._ledger.check_new(episode_id)
        limit = self.plan.limits.max_episodes
        if len(table) >= limit:
            raise TooManyEpisodes(
                f"server {self.plan.server_id!r} holds {limit} open episodes, its limit "
                "(limits.max_episodes); are episodes started and never ended?",
                expected=f"at most {limit} open episodes",
                got=f"{len(table)} open",
            )
        untrained: frozenset[str] = frozenset()
        if item.untrained:
            untrained = untrained_seats(item, self.plan, self._seats.seats)
        player = self.draw(item) if self.draw else None
        seats = player.seats if player else self._seats
        trains = item.mode == "train"
        explores = trains if item.should_explore is None else item.should_explore
        mode = Mode(seats, trains, explores, untrained, item.wants_log_probs)
        if player is None:
            mode = self._modes.setdefault(mode, mode)  # all episodes share a few mode objects
        record = Record(episode_id, seats.seats) if trains else None
        table.open(item, mode, record, player, now)
        return _started(episode_id, player)

    def _step(self, item: Step, now: float, *, was_played: bool = False) -> Awaited | AnyReply:
        slot = self._ledger.find(item.episode_id)
        self._table.seen_at[slot] = now
        last = self._steps.repeated(item, slot)
        if last is not None:
            awaited = Awaited((last,), partial(last.answer_of, last.row_of(slot)))
            return awaited.answer() if awaited.is_ready else awaited
        block, is_env_step = self._steps.add(item, slot, now)
        if block.mode.is_training:
            self.counts.num_logged_actions += 0 if was_played else len(item.logged_actions)
            self.counts.num_agent_steps += len(item.observations)
            self._count_env_steps(int(is_env_step))
            self._batches.cut_if_due()
            self._batches.cut_long([slot])
        return Awaited((block,), partial(block.answer_of, 0))

    # --- rows ---------------------------------------------------------------------------

    def accept_rows(self, item: StepRows, now: float) -> Awaited | list[Step]:
        """Records a step of many episodes; returns it as single steps if it is not plain.

        Raises:
            MalformedMessage: the arrays do not fit each other.
        """
        reading = self._steps.reading
        found = self._steps.read(item) if reading.check(item) else None
        if found is None:
            return reading.singles(item)
        recorded = self._record_rows(item, found, now)
        blocks = [rows.block for rows in recorded]
        if item.logged_actions is not None:
            self.counts.num_logged_actions += sum(
                len(b) * len(b.served.agents) for b in blocks if b.mode.is_training
            )
        return Awaited(blocks, partial(answer_to_rows, blocks, [rows.places for rows in recorded]))

    def play_rows(
        self, item: PlayedRows, now: float
    ) -> Recorded | Iterable[PlayedSteps | Recorded]:
        """Records a step of many episodes in which a client acted by itself.

        Returns:
            The reply; or, if the rows are not plain, an item for each episode to be read alone, and
            one reply for all repeated rows.

        Raises:
            MalformedMessage: the arrays do not fit each other.
            ValueMismatch: the server takes no such steps, or never had such weights.
        """
        reading, table, ids = self._steps.reading, self._table, item.episode_ids
        self._played_check.are_stale(item.weights_seq_no)  # raises if all of it is refused
        if reply := self._play_plain(item, now):
            return reply
        # A frame that is sent again, or sent to a restarted server, has thousands of rows that
        # cannot be recorded. Their values are not read.
        reading.check_shapes(item)
        slots = np.array([table.slot_of.get(episode_id, -1) for episode_id in ids])
        is_open, version = slots >= 0, item.weights_seq_no
        is_new = is_open & (item.t >= table.ts[slots])
        gone = zip(np.flatnonzero(~is_open).tolist(), item.t[~is_open].tolist(), strict=True)
        found: list[PlayedSteps | Recorded] = []
        if len(repeated := np.unique(slots[is_open & ~is_new])):
            table.seen_ats[repeated] = now
            found.append(self._recorded(table.modes[slot] for slot in repeated))
        if is_new.any():
            rest = rows_where(item, np.flatnonzero(is_new))
            reply = self._play_plain(rest, now)
            found += [reply] if reply else reading.played_singles(rest)
        of_gone = (PlayedSteps(ids[i], version, [Step(ids[i], t, {})]) for i, t in gone)
        return itertools.chain(of_gone, found)

    def _play_plain(self, item: PlayedRows, now: float) -> Recorded | None:
        """Records rows if all of them are plain; None: they are not, and nothing was recorded."""
        check, reading = self._played_check, self._steps.reading
        is_plain = item.logged_actions is not None and item.logged_log_probs is None
        is_plain = is_plain and reading.check(item)
        read = check.read_rows(item, reading.layout(item)) if is_plain else None
        found = None if read is None else self._steps.read(item)
        if read is None or found is None:
            return None
        is_stale, *chosen_from = read
        recorded = self._record_rows(item, found, now)
        for rows in recorded:
            own = pick(chosen_from, rows.places)
            self._finish_played(rows.block, item.weights_seq_no, is_stale, *own)
        return self._recorded(rows.block.mode for rows in recorded)

    def _recorded(self, modes: Iterable[Mode]) -> Recorded:
        """Returns the reply to rows of episodes with these modes."""
        reply = Recorded("", 0, self._played_check.version())
        if any(mode.is_training for mode in modes):
            self.refresh(reply)
        return reply

    def _record_rows(self, item: StepRows, found: Sequence[Rows], now: float) -> list[Rows]:
        recorded: list[Rows] = []
        for rows in found:
            if rows.newest:
                rows.block.mode.seats.memory.frames.advance(rows.newest)  # type: ignore[union-attr]
            self._add_rows(rows, now, recorded)
            self._steps.observe(item, rows)
        return recorded

    def _add_rows(self, rows: Rows, now: float, recorded: list[Rows]) -> None:
        """Records rows; if some complete a batch, it is cut before the rest is recorded."""
        block = rows.block
        if not block.mode.is_training:
            self._steps.add_rows(rows, now)
            recorded.append(rows)
            return
        num = int(np.count_nonzero(block.t))
        if num > self._batches.room:
            last = int(np.flatnonzero(block.t)[max(0, self._batches.num_missing - 1)]) + 1
            self._add_rows(rows.some(slice(0, last)), now, recorded)
            self._add_rows(rows.some(slice(last, len(block))), now, recorded)
            return
        self._steps.add_rows(rows, now)
        recorded.append(rows)
        self.counts.num_agent_steps += len(block) * len(block.served.agents)
        self._count_env_steps(num)
        self._batches.cut_if_due()
        self._batches.cut_long(block.slots)

    def _finish_played(
        self,
        block: Block,
        weights_seq_no: int,
        is_stale: bool,
        drawn: Sequence[Any],
        states: Mapping[str, Any],
    ) -> None:
        check = self._played_check
        is_logged = is_stale if check.reports_logged else None
        block.finish(chosen_by_client(block, Drawn(*drawn), states, is_logged), weights_seq_no)
        if is_stale and block.mode.is_training:
            num = len(block) * sum(one.num_seats for one in block.served.parts)
            text = "" if self.counts.num_stale_steps else _STALE
            self.warnings.add("stale steps", text, num=num)
            self.counts.num_stale_steps += num

    def _play(self, item: PlayedSteps, now: float) -> Recorded:
        """Records the new steps one by one: a refusal leaves the steps before it recorded."""
        check = self._played_check
        reply = Recorded(item.episode_id, 0, check.version())
        earlier = self._ledger.answer_of(item.episode_id)
        if isinstance(earlier, Ended) and all(step.t < earlier.num_steps for step in item.steps):
            reply.num_steps = earlier.num_steps  # a repeat: the end was in the same frame
            return reply
        slot, table = self._ledger.find(item.episode_id), self._table
        table.seen_at[slot] = now
        is_stale, states, steps = check.read(item)
        for step, rows in steps:
            if step.t < table.t[slot]:
                continue
            try:
                pending = self._step(step, now, was_played=True)
            except ProtocolError as error:
                error.message = f"step t={step.t}: {error.message}"
                raise
            assert isinstance(pending, Awaited)  # the step is new
            (block,) = pending.blocks
            drawn = Drawn.of(block.served.acted, rows)
            self._finish_played(block, item.weights_seq_no, is_stale, drawn, states)
        reply.num_steps = table.t[slot]
        if table.modes[slot].is_training:
            self.refresh(reply)
        return reply

    def refresh(self, reply: Recorded, num_clients: int = 1) -> None:
        """Writes the weights' version, and this client's share of the next batch, into a reply."""
        check = self._played_check
        reply.weights_seq_no, reply.epsilon = check.version(), check.epsilon()
        reply.num_wanted = max(check.min_wanted, -(-self._batches.num_missing // num_clients))

    def _end(self, item: EndEpisode, now: float) -> Ended:
        slot = self._ledger.find(item.episode_id)
        returns, is_env_step = self._steps.end(item, slot)
        reply = Ended(item.episode_id, item.t, returns)
        if self._table.modes[slot].is_training:
            self._count_env_steps(int(is_env_step))
        self._close(item.episode_id, reply, now, "it has ended")
        return reply

    def _abort(self, item: AbortEpisode, now: float) -> Aborted:
        reply = Aborted(item.episode_id)
        if item.episode_id in self._table.slot_of:
            reason = f"it was aborted: {item.reason[:_REASON_CHARS]}".rstrip(": ")
            self._close(item.episode_id, reply, now, reason)
            if now - self._logged_abort_at >= _ABORT_LOG_S:
                self._logged_abort_at = now
                logger.info("episode %r is over: %r", item.episode_id, reason)
        return reply

    def _count_env_steps(self, recorded: int) -> None:
        self.counts.num_env_steps += recorded
        self._batches.add(recorded)

    def _close(self, episode_id: str, reply: Ended | Aborted, now: float, reason: str) -> None:
        table, is_aborted = self._table, isinstance(reply, Aborted)
        slot = table.slot_of[episode_id]
        record, player = table.records[slot], table.players[slot]
        if record is not None:
            self._batches.end(record, is_aborted=is_aborted)
            if is_aborted:
                self.counts.num_aborted += 1
            else:
                assert isinstance(reply, Ended)
                self.counts.add_episode(reply.returns)
                if player:
                    player.end(reply.returns)
                if self.ended is not None:
                    self.ended.append(reply)
                if who := record.paid_late:
                    text = _PAID_LATE.format(who=who, episode_id=episode_id)
                    self.warnings.add("rewards after an end", "" if self._has_warned_late else text)
                    self._has_warned_late = True
        table.close(episode_id)
        self._ledger.end(episode_id, reply, reason, now)
        self._batches.cut_if_due()

    def finish_frame(self) -> None:
        """Delivers what waits for the end of a frame; to be called after each frame."""
        self._batches.finish_frame(self._steps.long)


def _started(episode_id: str, player: Player | None) -> Started:
    return Started(episode_id, member=player.name if player else "")
