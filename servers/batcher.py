"""Natural batching: whatever waits when the event loop comes round is one forward pass.

There is no artificial wait. Frames that arrived on several connections in one turn of the
event loop share a pass; a single connection's frame goes through at once.
"""

from __future__ import annotations

import asyncio
import logging

from protocol.errors import NotServing
from protocol.messages import Actions
from servers.episodes import PendingStep
from servers.inference import Inference

logger = logging.getLogger(__name__)


class Batcher:
    """Collects pending steps and answers them together.

    Args:
        inference: computes the actions.
        server_id: for messages.
    """

    def __init__(self, inference: Inference, server_id: str) -> None:
        self._inference = inference
        self._server_id = server_id
        self._waiting: list[PendingStep] = []

    def submit(self, step: PendingStep) -> asyncio.Future[Actions]:
        """Returns the future answer of a step; a step that is waiting already keeps its own."""
        if step.answer is None:
            loop = asyncio.get_running_loop()
            step.answer = loop.create_future()
            if not self._waiting:
                loop.call_soon(self._flush)
            self._waiting.append(step)
        return step.answer

    def _flush(self) -> None:
        steps, self._waiting = self._waiting, []
        try:
            weights_seq_no = self._inference.act(steps)
            answers = [step.finish(weights_seq_no) for step in steps]
        except Exception as error:
            logger.exception("inference failed for %d steps", len(steps))
            problem = NotServing(
                f"server {self._server_id!r} could not compute actions: "
                f"{type(error).__name__}: {error}"
            )
            for step in steps:
                future, step.answer = step.answer, None  # the same t sent again tries again
                if future is not None and not future.done():
                    future.set_exception(problem)
            return
        for step, answer in zip(steps, answers, strict=True):
            if step.answer is not None and not step.answer.done():
                step.answer.set_result(answer)
