"""Natural batching: the frames of one iteration of the event loop share a forward pass.

There is no artificial wait, and with only one connection a frame is computed at once.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable

import msgspec

from muxrl.protocol.errors import NotServing, ProtocolError
from muxrl.protocol.messages import AnyItem, AnyReply, Refused
from muxrl.servers.episodes.episode import PendingStep
from muxrl.servers.front import Answered
from muxrl.servers.latency import Latencies
from muxrl.servers.policies import Acting


class Frame(msgspec.Struct, eq=False):
    """The items of one message, and what has become of each.

    Args:
        items: of any episodes, in the order in which they are answered.
        outcomes: for each item its answer, or the step that waits for its actions.
        reply: takes the answers, one for each item. It raises nothing: other frames are answered
            after it.
        refuse: makes the answer to an item that failed.
        is_alone: whether its client is the only one connected, so that no other frame can come.
        pending: the steps among the outcomes.
    """

    items: list[AnyItem]
    outcomes: list[AnyReply | PendingStep]
    reply: Answered
    refuse: Callable[[AnyItem, ProtocolError], Refused]
    is_alone: bool
    pending: list[PendingStep]

    def finish(self, problem: NotServing | None = None) -> None:
        """Sends the answers.

        Args:
            problem: why pending steps have none; None if all have one.
        """
        replies: list[AnyReply] = []
        for item, outcome in zip(self.items, self.outcomes, strict=True):
            if not isinstance(outcome, PendingStep):
                replies.append(outcome)
            elif outcome.answer is not None:
                replies.append(outcome.answer)
            else:
                assert problem is not None
                replies.append(self.refuse(item, problem))
        self.reply(replies)


logger = logging.getLogger(__name__)


class Batcher:
    """Collects frames and computes the actions of their pending steps together.

    Args:
        acting: chooses the actions.
        server_id: for messages.
    """

    def __init__(self, acting: Acting, server_id: str) -> None:
        self._acting = acting
        self._server_id = server_id
        self._frames: list[Frame] = []
        self.forward_passes = Latencies()
        """Of each choice of actions for all that waited: the forward passes of all policies."""

    def submit(self, frame: Frame) -> None:
        """Computes the actions of a frame and sends its answers: at once if it is alone, else soon.

        Steps whose actions could not be computed may be submitted again in another frame.
        """
        self._frames.append(frame)
        if frame.is_alone:
            self._flush()
        elif len(self._frames) == 1:
            asyncio.get_running_loop().call_soon(self._flush)

    def _flush(self) -> None:
        frames, self._frames = self._frames, []
        # A step is in two frames if its client repeated it on a new connection.
        waiting = {id(s): s for frame in frames for s in frame.pending if s.answer is None}
        steps = list(waiting.values())
        problem: NotServing | None = None
        try:
            began = time.perf_counter()
            actions, weights_seq_no = self._acting.act(steps)
            self.forward_passes.add(time.perf_counter() - began)
            for step, chosen in zip(steps, actions, strict=True):
                step.finish(chosen, weights_seq_no)
        except Exception as error:  # the module is the user's
            for step in steps:
                step.has_failed = True
            logger.exception("inference failed for %d steps", len(steps))
            problem = NotServing(
                f"server {self._server_id!r} could not compute actions: "
                f"{type(error).__name__}: {error}"
            )
        for frame in frames:
            frame.finish(problem)
