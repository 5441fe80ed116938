"""The app of a policy server: takes items and gives answers, over any transport.

The path of a frame: `PolicyServerApp.answer` has the episodes record its items, the gate of the
`Feed` may hold the frame, the `Batcher` computes its actions, and then it is answered.
An exception becomes the answer to its item; the other items, the other episodes and the connection
continue. `muxrl.servers.network.websocket` and `muxrl.servers.network.http` are the transports.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Sequence
from functools import partial
from itertools import repeat
from typing import Any

from msgspec.structs import replace

from muxrl.protocol.errors import NotServing, ProtocolError
from muxrl.protocol.messages import (
    ActionRows,
    AnyItem,
    AnyReply,
    Health,
    PlayedRows,
    Recorded,
    Refused,
    ServerSpec,
    Status,
    StepRows,
)
from muxrl.servers.acting import Acting
from muxrl.servers.episodes.blocks import Awaited, Block
from muxrl.servers.episodes.store import EpisodeStore
from muxrl.servers.network.exposition import Family, counter, gauge, histogram
from muxrl.servers.network.front import Answered, Front, internal_error
from muxrl.servers.network.latency import Latencies
from muxrl.servers.training.policies import Policies

logger = logging.getLogger(__name__)

_EXPIRY_INTERVAL_S = 5.0
_IDLE_EXPIRIES_LOGGED = 5

Outcome = AnyReply | Awaited | list["AnyReply | Awaited"]
"""The outcome of an item: its answer, or an object that gives the answer when actions are there;
for rows that had to be read one by one, a list with the outcome of each."""
Finish = Callable[[NotServing | None], None]
"""Sends the answers to a frame. Its argument says why waiting steps have no actions, None if all of
them have some. It must not raise, since other frames are answered after it."""


class Batcher:
    """Collects frames and computes the actions of their pending steps together.

    The frames of one iteration of the event loop share a forward pass (natural batching). There is
    no artificial wait, and with only one connection a frame is computed at once.

    Args:
        acting: chooses the actions.
        server_id: for error messages.
    """

    def __init__(self, acting: Acting, server_id: str) -> None:
        self._acting = acting
        self._server_id = server_id
        self._frames: list[tuple[list[Block], Finish]] = []
        self.forward_passes = Latencies()
        """Durations of passes over all waiting steps, with the forward passes of all policies."""
        self.problem = ""
        """Why the last computation of actions failed; "": it did not."""

    def submit(self, pending: list[Block], finish: Finish, *, is_alone: bool) -> None:
        """Computes the actions of a frame and sends its answers: now if it is alone, else soon.

        Steps whose actions could not be computed may be submitted again in another frame.

        Args:
            pending: the blocks of the frame that wait for actions.
            finish: sends the frame's answers.
            is_alone: whether its client is the only one connected, so that no other frame can come.
        """
        self._frames.append((pending, finish))
        if is_alone:
            self._flush()
        elif len(self._frames) == 1:
            asyncio.get_running_loop().call_soon(self._flush)

    def _flush(self) -> None:
        frames, self._frames = self._frames, []
        if not frames:  # a frame that was alone has taken them along
            return
        blocks = frames[0][0]
        if len(frames) > 1 or len(blocks) > 1:  # a repeated step is pending in two frames
            blocks = list(dict.fromkeys([b for pending, _ in frames for b in pending]))
        blocks = [block for block in blocks if block.chosen is None]
        problem: NotServing | None = None
        try:
            if blocks:
                began = time.perf_counter()
                for block, chosen in zip(blocks, self._acting.act(blocks), strict=True):
                    block.finish(*chosen)
                self.forward_passes.add(time.perf_counter() - began)
                self.problem = ""
        except Exception as error:  # noqa: BLE001, the module is the user's
            for block in blocks:
                block.has_failed = block.chosen is None
            problem = NotServing(
                f"server {self._server_id!r} could not compute actions: "
                f"{type(error).__name__}: {error}"
            )
            problem.__cause__ = error  # refusals log its traceback
            self.problem = problem.message
        for _, finish in frames:
            finish(problem)


class PolicyServerApp(Front):
    """The front of a policy server.

    Args:
        spec, address, token: see `Front`.
        policies: the server's policies. The gate of their feed holds training frames while
            simulations have to wait for the learner.
        status: returns the server's status.
        on_shutdown: see `Front`.
    """

    def __init__(
        self,
        spec: ServerSpec,
        address: str,
        token: str,
        *,
        policies: Policies,
        status: Callable[[], Status],
        on_shutdown: Callable[[], None] | None = None,
    ) -> None:
        super().__init__(spec, address, token, on_shutdown)
        self.policies = policies
        self.store, self.feed = policies.store, policies.feed
        self.batcher = Batcher(policies.acting, spec.server_id)
        self._status = status

    def status(self) -> Status:
        return self._status()

    def health(self) -> Health:
        health = super().health()
        health.problem = health.problem or self.batcher.problem or self.store.problem
        return health

    def weights(self) -> bytes:
        return self.policies.weights()

    def measures(self) -> list[Family]:
        status, counts, activity = self.status(), self.store.counts, self.feed.activity
        lag_mean, lag_max = self.policies.policy_lag or (None, None)
        return [
            *super().measures(),
            Family("counter", "episodes_total", "Training episodes, by how they ended.",
                   {("ended",): counts.num_episodes, ("aborted",): counts.num_aborted}, ("end",)),
            counter("training_iterations_total", "Training iterations.", status.iteration),
            gauge("weights_version", "Version of the weights in use.", status.weights_seq_no),
            gauge("batches_ahead", "Complete batches not learned yet.", self.feed.num_ahead),
            gauge("policy_lag_mean", "Versions by which the last batch was behind.", lag_mean),
            counter("stale_steps_total", "Agent steps that clients played with weights too old "
                    "to teach the policy.", counts.num_stale_steps),
            gauge("policy_lag_max", "Versions by which the last batch's oldest action was behind.",
                  lag_max),
            counter("update_seconds_total", "Seconds in which the learner had a batch.",
                    activity.learning_s),
            counter("held_seconds_total", "Seconds in which simulations waited for the server.",
                    activity.held_s),
            counter("checkpoints_refused_total", "Checkpoints that were not written.",
                    status.num_refused_checkpoints),
            gauge("checkpoint_refused", "1 if the last checkpoint was not written.",
                  float(bool(status.checkpoint_problem))),
            Family("counter", "warnings_total", "Warnings in the server's log, by kind.",
                   {(one.what,): one.num for one in status.warnings}, ("what",)),
            histogram("forward_seconds", "Seconds to choose the actions of all waiting steps.",
                      self.batcher.forward_passes),
        ]  # fmt: skip

    def answer(self, items: list[AnyItem], reply: Answered, *, is_alone: bool) -> None:
        """Answers the items of a frame; see `Front.answer`.

        The answers have been sent when this returns, unless the frame waits at the gate or for
        other frames to share its forward pass.
        """
        now = time.monotonic()
        outcomes: list[Outcome] = []
        pending: list[Block] = []
        is_training = False
        for item in items:
            take: Any = self._accept_rows if isinstance(item, StepRows) else self.accept
            outcome = take(item, now)
            outcomes.append(outcome)
            for one in outcome if type(outcome) is list else (outcome,):
                if isinstance(one, Awaited):
                    pending += one.blocks
                    is_training = is_training or one.blocks[0].mode.is_training
        self.store.finish_frame()
        played: list[Recorded] = []
        if outcomes and type(outcomes[0]) is Recorded:  # they come first in a frame
            played = [one for one in outcomes if isinstance(one, Recorded) and one.num_wanted]

        finish = partial(self._finish, items, outcomes, reply)

        def go() -> None:
            for reply_to_played in played:
                self.store.refresh(reply_to_played, max(1, self.num_connections))
            if pending:
                self.batcher.submit(pending, finish, is_alone=is_alone)
            else:
                finish()

        # The gate also holds clients that act by themselves, even if a frame asks for no actions.
        if is_training or played or (pending and not self.feed.acts_while_learning):
            self.feed.when_open(go)
        else:
            go()

    def _finish(
        self,
        items: list[AnyItem],
        outcomes: list[Outcome],
        reply: Answered,
        problem: NotServing | None = None,
    ) -> None:
        reply(list(map(self._answer, items, outcomes, repeat(problem))))

    def _answer(self, item: AnyItem, outcome: Any, problem: NotServing | None) -> AnyReply:
        if type(outcome) is list:
            each: Any = [self._answer(item, one, problem) for one in outcome]
            return ActionRows(replies=each)
        if not isinstance(outcome, Awaited):
            return outcome
        if problem is None or outcome.is_ready:
            return outcome.answer()
        return self.refuse(item, problem)

    def _accept_rows(self, item: StepRows, now: float) -> Outcome:
        if isinstance(item, PlayedRows):
            return self._accept_played(item, now)
        outcome = self._taken(self.store.accept_rows, item, now, item.episode_ids)
        if not isinstance(outcome, list):
            return outcome
        return [self.accept(one, now) for one in outcome]

    def _accept_played(self, item: PlayedRows, now: float) -> Recorded | Refused:
        outcome = self._taken(self.store.play_rows, item, now, item.episode_ids)
        if isinstance(outcome, Recorded | Refused):
            return outcome
        recorded: list[Recorded] = []
        refused: list[Refused] = []
        for one in outcome:
            reply: Any = one if isinstance(one, Recorded) else self.accept(one, now)
            (refused if isinstance(reply, Refused) else recorded).append(reply)
        newest = max(recorded, key=lambda one: one.num_wanted, default=Recorded("", 0))
        return replace(newest, episode_id="", num_steps=0, refused=refused)

    def accept(self, item: AnyItem, now: float) -> AnyReply | Awaited:
        """Returns the answer to an item other than rows, or an object that will give it."""
        return self._taken(self.store.accept, item, now, (item.episode_id,))

    def _taken(self, take: Any, item: Any, now: float, episode_ids: Sequence[str]) -> Any:
        try:
            return take(item, now)
        except ProtocolError as error:
            return self.refuse(item, error)
        except Exception as error:  # noqa: BLE001, the refusal is logged
            for episode_id in episode_ids:
                self.store.drop(episode_id, error)
            return self.refuse(item, internal_error(error))


async def expire_episodes(store: EpisodeStore) -> None:
    """Closes idle episodes until cancelled."""
    while True:
        await asyncio.sleep(_EXPIRY_INTERVAL_S)
        try:
            expired = store.expire(time.monotonic())
            store.problem = ""
        except Exception as error:  # nothing else would report it
            reason = f"idle episodes could not be closed: {type(error).__name__}: {error}"
            if reason != store.problem:
                logger.exception("%s", reason)
            store.problem = reason
            continue
        if expired:
            some = ", ".join(expired[:_IDLE_EXPIRIES_LOGGED])
            text = f"{len(expired)} idle episodes closed as truncated: {some}"
            store.warnings.add("idle episodes closed", text, num=len(expired))
