"""Natural batching: whatever waits when the event loop comes round is one forward pass.

There is no artificial wait. Frames that arrived on several connections in one turn of the
event loop share a pass; a single connection's frame goes through at once.
"""

from __future__ import annotations

import asyncio
import logging

from protocol.errors import NotServing
from servers.episodes import PendingStep
from servers.policies import Acting

logger = logging.getLogger(__name__)


class Batcher:
    """Collects frames of pending steps and computes them together.

    Args:
        inference: computes the actions.
        server_id: for messages.
    """

    def __init__(self, inference: Acting, server_id: str) -> None:
        self._inference = inference
        self._server_id = server_id
        self._frames: list[tuple[asyncio.Future[None], list[PendingStep]]] = []

    def submit(self, steps: list[PendingStep]) -> asyncio.Future[None]:
        """Returns a future that is done when every one of these steps has its answer.

        Its exception is a `NotServing` if the modules failed; the steps can be submitted again.
        """
        loop = asyncio.get_running_loop()
        done = loop.create_future()
        if not self._frames:
            loop.call_soon(self._flush)
        self._frames.append((done, steps))
        return done

    def _flush(self) -> None:
        frames, self._frames = self._frames, []
        # A step is here twice where its client came back on another connection.
        waiting = {id(s): s for _, steps in frames for s in steps if s.answer is None}
        steps = list(waiting.values())
        problem: NotServing | None = None
        try:
            weights_seq_no = self._inference.act(steps)
            for step in steps:
                step.finish(weights_seq_no)
        except Exception as error:  # the rim: the module is the user's
            logger.exception("inference failed for %d steps", len(steps))
            problem = NotServing(
                f"server {self._server_id!r} could not compute actions: "
                f"{type(error).__name__}: {error}"
            )
        for done, _ in frames:
            if done.done():  # its connection is gone
                continue
            if problem is None:
                done.set_result(None)
            else:
                done.set_exception(problem)
