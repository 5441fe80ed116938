"""One open episode of a server: every step is checked, recorded and answered once.

A repeated step gets the answer that it got before. Time is an argument.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any, Protocol

import msgspec
import numpy as np

from muxrl.protocol.episode import (
    OBSERVE,
    EpisodeEvent,
    EpisodeState,
    EpisodeStateMachine,
)
from muxrl.protocol.errors import OutOfOrder
from muxrl.protocol.messages import Actions, Ended, EndEpisode, StartEpisode, Step
from muxrl.servers.agents.observing import Observing
from muxrl.servers.agents.seats import Seat, SeatAction, SeatRequest
from muxrl.servers.config import ServerPlan
from muxrl.servers.episodes.lockstep import Lockstep
from muxrl.servers.episodes.recorder import Recorder
from muxrl.servers.episodes.row_reader import RowReader
from muxrl.servers.episodes.rows import Benches, RowOfStep, RowStep
from muxrl.servers.episodes.step_check import StepCheck
from muxrl.servers.episodes.trajectories import Chunk, at
from muxrl.servers.episodes.transitions import Transitions

_MOST_KEPT = 256
"""Steps in rows until they are recorded: each holds the rows of other episodes, too."""


class Member(Protocol):
    """Who acts in an episode, where a server draws one of several."""

    name: str
    seats: dict[str, Seat]
    row_reader: RowReader

    def end(self, returns: Mapping[str, float]) -> None:
        """Takes the returns by agent of a training episode that has ended."""


class PendingStep(msgspec.Struct, eq=False):
    """A step that is recorded and waits for its actions."""

    episode: ServedEpisode
    t: int
    requests: list[SeatRequest]
    observations: Mapping[str, Any]
    """Of the agents that are to act."""
    is_training: bool
    should_explore: bool
    untrained: frozenset[str] = frozenset()
    """Ids of the seats that act with the weights that the server began with."""
    answer: Actions | None = None
    has_failed: bool = False
    """Whether its actions could not be computed; its client may ask again, or never."""

    @property
    def parts(self) -> Sequence[PendingStep]:
        """Itself; see `StepOfMembers`."""
        return (self,)

    def finish(self, chosen: Sequence[SeatAction], weights_seq_no: int) -> Actions:
        """Puts the actions into effect, and returns the answer.

        Args:
            chosen: the actions, in the order of the requests.
            weights_seq_no: version of the weights that chose them.
        """
        self.answer = self.episode.act(self, chosen, weights_seq_no)
        return self.answer


class ServedEpisode:
    """One episode as one server sees it.

    Args:
        message: what opened it.
        plan: the server.
        check: of the server's messages.
        seats: by seat id.
        recorder: where its transitions go.
        now: time of opening.
        observing: takes in what is observed while training; None: nothing does.
        untrained: see `PendingStep`.
    """

    def __init__(
        self,
        message: StartEpisode,
        plan: ServerPlan,
        check: StepCheck,
        seats: Mapping[str, Seat],
        recorder: Recorder,
        now: float,
        observing: Observing | None = None,
        untrained: frozenset[str] = frozenset(),
    ) -> None:
        self.episode_id = message.episode_id
        self.started_by = message
        self.is_training = message.mode == "train"
        self.should_explore = (
            self.is_training if message.should_explore is None else message.should_explore
        )
        self.seed = message.seed
        self._untrained = untrained
        self._last_seen = now
        self.member: Any = None
        """Who acts, on a server that has several for the same agents; see `Member`."""
        self.row_reader: Any = None
        """Of its steps in rows, if they are taken."""
        self._recorder = recorder
        self._pending: PendingStep | RowStep | None = None
        self._machine = EpisodeStateMachine(message.episode_id)
        self._machine.handle(EpisodeEvent.START)
        self._server_id = plan.server_id
        self._check = check
        self._transitions = Transitions(
            seats,
            recorder,
            is_training=self.is_training,
            agents_return=plan.agents_return,
            observing=observing if self.is_training else None,
        )
        self._last_reply: Actions | None = None
        self._last_row: tuple[RowStep | None, int] = (None, 0)
        """The last step, if it came in rows and all before it are recorded or kept in `_rows`."""
        self._rows: list[tuple[RowStep, int]] = []
        """Steps that are not recorded yet, and this episode's row in each."""
        self._is_first_recorded = False
        """Whether only the actions of the first of these are not."""
        self._num_kept = 0
        """How many env steps these complete."""
        self.lockstep: Lockstep | None = None
        """Which it is in, with others."""
        self._row = 0
        self._num_taken = 0
        """Of its steps, how many are taken in."""

    @property
    def t(self) -> int:
        """The step awaited next; equally, how many steps have been observed."""
        self.catch_up()
        return self._machine.t

    @property
    def agents_done(self) -> Collection[str]:
        """Agents that have ended, and have not come back."""
        return self._transitions.agents_done

    @property
    def pending(self) -> PendingStep | RowStep | None:
        """What waits for its actions."""
        self.catch_up()
        return self._pending

    @property
    def last_seen(self) -> float:
        """When it was last told of."""
        self.catch_up()
        return self._last_seen

    @last_seen.setter
    def last_seen(self, now: float) -> None:
        self.catch_up()
        self._last_seen = now

    @property
    def last_row(self) -> tuple[RowStep | None, int]:
        """See `EpisodeOfRows`."""
        self.catch_up()
        return self._last_row

    @property
    def returns(self) -> Mapping[str, float]:
        """Sum of each agent's rewards so far."""
        self.record_rows()
        return self._transitions.returns

    @property
    def paid_late(self) -> str:
        """See `Transitions`."""
        return self._transitions.paid_late

    @property
    def num_uncut_steps(self) -> int:
        """Env steps recorded since the last cut."""
        self.catch_up()
        return self._recorder.num_uncut_steps + self._num_kept

    def cut(self) -> Chunk | None:
        """See `Recorder.cut`."""
        self.record_rows()
        return self._recorder.cut()

    def finish(self, *, is_aborted: bool) -> Chunk | None:
        """See `Recorder.finish`."""
        self.record_rows()
        self._rows, self._last_row = [], (None, 0)  # they know their episodes
        return self._recorder.finish(is_aborted=is_aborted)

    def step(self, message: Step, now: float) -> Actions | PendingStep | RowOfStep:
        """Records what came, and returns what is to be computed; a repeat gets its old answer.

        Raises:
            OutOfOrder: not the step awaited.
            ValueMismatch: something in it is not as declared; nothing was recorded.
        """
        if self.lockstep is not None:
            self.catch_up()
        self._last_seen = now
        if self._machine.is_repeat(message.t):
            if self._machine.state is EpisodeState.AWAITING_ACTION:
                assert self._pending is not None
                if isinstance(self._pending, RowStep):
                    return RowOfStep(self._pending, self._pending.episodes.index(self))
                return self._pending
            row_step, row = self._last_row
            if self._last_reply is None and row_step is not None:
                self._last_reply = row_step.answer_of(row)
            assert self._last_reply is not None
            return self._last_reply
        self._machine.check(OBSERVE)
        transitions = self._transitions
        if self._rows or self.lockstep is not None:
            self.record_rows()
            self.leave()
        step = self._check.step(message, transitions.agents_done, transitions.returns)
        requests = transitions.add_step(step, is_first=message.t == 0)
        self._last_row = (None, 0)  # until here it may be asked for again
        self._machine.observe()
        pending = self._pending = PendingStep(
            self,
            message.t,
            requests,
            step.observations,
            self.is_training,
            self.should_explore,
            self._untrained,
        )
        return pending

    def act(
        self, pending: PendingStep, chosen: Sequence[SeatAction], weights_seq_no: int
    ) -> Actions:
        """Returns the answer to the pending step, and keeps what was chosen; see `PendingStep`."""
        # First all that may raise: an action is whatever the user's module gave.
        actions: dict[str, Any] = {}
        acted: dict[str, SeatAction] = {}
        for request, action in zip(pending.requests, chosen, strict=True):
            seat = request.seat
            actions |= seat.act(action.action, pending.observations)
            acted[seat.seat_id] = action
        reply = Actions(self.episode_id, pending.t, actions, weights_seq_no)
        if self._machine.is_over:  # aborted while it waited: nothing follows from these actions
            return reply
        self._machine.act()
        self._transitions.act(acted, actions, weights_seq_no)
        self._last_reply = reply
        self._pending = None
        return reply

    # --- rows ---------------------------------------------------------------------------

    def is_plain_at(self, t: int, benches: Benches) -> bool:
        """Whether step `t` is awaited, and the same agents act in it as in the step before."""
        self.catch_up()
        machine = self._machine
        if machine.t != t or machine.state is not EpisodeState.AWAITING_OBSERVATION:
            return False
        last = self._last_row[0]
        if last is not None:
            return last.benches is benches
        if self._untrained or not benches.agents.isdisjoint(self._transitions.agents_done):
            return False
        return benches.is_whole if t == 0 else self._transitions.acting == benches.agents

    def returns_of(self, agents: Sequence[str]) -> np.ndarray:
        """Returns sums of rewards so far, float64 ``[A]``."""
        last, row = self.last_row
        if last is not None:
            return last.returns[row]
        returns = self._transitions.returns
        return np.array([returns.get(agent_id, 0.0) for agent_id in agents], np.float64)

    def last_actions_of(self, agents: Sequence[str]) -> np.ndarray:
        """Returns last actions, float32 ``[A]``, -1 before the first."""
        last, row = self.last_row
        if last is not None and last.last_actions is not None:
            return last.last_actions[row]
        return self._transitions.last_actions_of(agents)

    def stacks(self) -> Mapping[str, np.ndarray]:
        """Returns what agents have read last, where frames are stacked."""
        last, row = self.last_row
        if last is not None and last.frames is not None:
            return last.frames.of_row(row)
        return self._transitions.stacks()

    def module_states_of(self, bench: int, seats: Sequence[Seat]) -> Any:
        """Returns the recurrent states of a bench's seats, ``[S, ...]``; None: initial ones."""
        last, row = self.last_row
        if last is not None:
            return at(last.chosen[bench].module_state, row)
        return self._transitions.module_states_of(seats)

    def discounted_of(self, bench: int, seats: Sequence[Seat]) -> Any:
        """Returns discounted sums of scaled rewards, ``[S]``; see `Recorder`."""
        last, row = self.last_row
        if last is not None and last.discounted:
            return last.discounted[bench][row]
        return [self._recorder.discounted.get(seat.seat_id, 0.0) for seat in seats]

    def join(self, lockstep: Lockstep, row: int) -> None:
        """Is in a row of the newest step from now on; nobody else is asked before that is recorded.

        The step is plain for it.
        """
        self.leave()
        if len(self._rows) >= _MOST_KEPT:
            self.record_rows()
        self.lockstep, self._row, self._num_taken = lockstep, row, lockstep.num_steps - 1

    def leave(self) -> None:
        """Goes on by itself."""
        self.catch_up()
        if self.lockstep is not None:
            self.lockstep.left.add(self._row)
            self.lockstep = None

    def catch_up(self) -> None:
        """Takes in what it was in with others since it was last asked."""
        lockstep = self.lockstep
        if lockstep is None:
            return
        row = self._row
        missed = lockstep.since(self._num_taken)
        if missed:
            self._rows += [(step, row) for step in missed]
            self._num_taken = lockstep.num_steps
            self._last_seen = lockstep.last_seen
            self._machine.t += len(missed)
            self._machine.state = EpisodeState.AWAITING_ACTION
            self._pending = missed[-1]
            if self.is_training:
                self._num_kept += len(missed) - (missed[0].t[row] == 0)
            if len(missed) > 1:
                self._last_row, self._last_reply = (missed[-2], row), None
        last = lockstep.last
        if last is self._pending and last.answer is not None:
            self._machine.state = EpisodeState.AWAITING_OBSERVATION
            self._pending = None
            self._last_row, self._last_reply = (last, row), None

    def record_rows(self) -> None:
        """Records what is kept in rows, so that single steps can follow."""
        self.catch_up()
        if not self._rows or (len(self._rows) == 1 and self._is_waiting_in_rows):
            return
        last = self._rows[-1]
        self._transitions.add_rows(self._rows, is_first_recorded=self._is_first_recorded)
        is_waiting = last[0].answer is None
        self._rows = [last] if is_waiting else []
        self._is_first_recorded = is_waiting
        self._num_kept = 0

    @property
    def _is_waiting_in_rows(self) -> bool:
        return self._is_first_recorded and self._rows[-1][0].answer is None

    def end(self, message: EndEpisode) -> Ended:
        """Records the last transition and closes the episode.

        Raises:
            OutOfOrder, ValueMismatch: as for `step`.
        """
        if message.t != self.t:
            raise OutOfOrder(
                f"episode {self.episode_id} has seen {self.t} steps on server "
                f"{self._server_id!r}, the end says {message.t}; was a step lost?",
                expected=f"t={self.t}",
                got=f"t={message.t}",
            )
        self._machine.check(EpisodeEvent.END)
        self.record_rows()
        step = self._check.end(message, self._transitions.agents_done, self.returns)
        self._transitions.add_end(step, has_acted=message.t > 0)
        self.leave()
        self._machine.handle(EpisodeEvent.END)
        return Ended(self.episode_id, self.t, dict(self.returns))

    def abort(self) -> None:
        """Closes the episode as truncated at its last full step."""
        self.leave()
        self._machine.handle(EpisodeEvent.ABORT)

    def drop(self) -> None:
        """Closes the episode whatever state it is in; its record is not looked at any more."""
        if self.lockstep is not None:
            self.lockstep.left.add(self._row)
            self.lockstep = None
        self._machine.handle(EpisodeEvent.ABORT)
