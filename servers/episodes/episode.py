"""One open episode of a server: every step is checked, recorded and answered once.

A repeated step gets the answer that it got before. Time is an argument.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from muxrl.protocol.episode import (
    ACT,
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
from muxrl.servers.episodes.recorder import Recorder
from muxrl.servers.episodes.step_check import StepCheck
from muxrl.servers.episodes.transitions import Transitions


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
        self._untrained = untrained
        self.last_seen = now
        self.recorder = recorder
        self.pending: PendingStep | None = None
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

    @property
    def t(self) -> int:
        """The step awaited next; equally, how many steps have been observed."""
        return self._machine.t

    @property
    def returns(self) -> Mapping[str, float]:
        """Sum of each agent's rewards so far."""
        return self._transitions.returns

    def step(self, message: Step) -> Actions | PendingStep:
        """Records what came and returns what is to be computed; a repeat gets its old answer.

        Raises:
            OutOfOrder: not the step awaited.
            ValueMismatch: something in it is not as declared; nothing was recorded.
        """
        if self._machine.is_repeat(message.t):
            if self._machine.state is EpisodeState.AWAITING_ACTION:
                assert self.pending is not None
                return self.pending
            assert self._last_reply is not None
            return self._last_reply
        self._machine.check(OBSERVE)
        step = self._check.step(message, self._transitions.agents_done, self.returns)
        requests = self._transitions.add_step(step, is_first=message.t == 0)
        self._machine.handle(OBSERVE)
        self.pending = PendingStep(
            self,
            message.t,
            requests,
            step.observations,
            self.is_training,
            self.should_explore,
            self._untrained,
        )
        return self.pending

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
        self._machine.handle(ACT)
        self._transitions.act(acted, actions, weights_seq_no)
        self._last_reply = reply
        self.pending = None
        return reply

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
        step = self._check.end(message, self._transitions.agents_done, self.returns)
        self._transitions.add_end(step, has_acted=message.t > 0)
        self._machine.handle(EpisodeEvent.END)
        return Ended(self.episode_id, self.t, dict(self.returns))

    def abort(self) -> None:
        """Closes the episode as truncated at its last full step."""
        self._machine.handle(EpisodeEvent.ABORT)
