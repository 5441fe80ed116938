"""Natural batching: whatever waits when the event loop comes round is one forward pass.

There is no artificial wait. Frames that arrived on several connections in one turn of the
event loop share a pass; a frame of the only connection goes through at once.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

from muxrl.protocol.errors import NotServing
from muxrl.servers.episodes.episode import PendingStep
from muxrl.servers.policies import Acting

logger = logging.getLogger(__name__)

Done = Callable[[NotServing | None], None]


class Batcher:
    """Collects frames of pending steps and computes them together.

    Args:
        inference: computes the actions.
        server_id: for messages.
    """

    def __init__(self, inference: Acting, server_id: str) -> None:
        self._inference = inference
        self._server_id = server_id
        self._frames: list[tuple[list[PendingStep], Done]] = []

    def submit(self, steps: list[PendingStep], done: Done, *, is_alone: bool) -> None:
        """Computes these steps' actions.

        Args:
            steps: of one frame.
            done: called when every one of them has its answer, or with what came between; then
                the steps can be submitted again.
            is_alone: whether nobody else can ask meanwhile. Then it is done when this returns.
        """
        self._frames.append((steps, done))
        if is_alone:
            self._flush()
        elif len(self._frames) == 1:
            asyncio.get_running_loop().call_soon(self._flush)

    def _flush(self) -> None:
        frames, self._frames = self._frames, []
        # A step is here twice where its client came back on another connection.
        waiting = {id(s): s for steps, _ in frames for s in steps if s.answer is None}
        steps = list(waiting.values())
        problem: NotServing | None = None
        try:
            weights_seq_no = self._inference.act(steps)
            for step in steps:
                step.finish(weights_seq_no)
        except Exception as error:  # the module is the user's
            for step in steps:
                step.has_failed = True
            logger.exception("inference failed for %d steps", len(steps))
            problem = NotServing(
                f"server {self._server_id!r} could not compute actions: "
                f"{type(error).__name__}: {error}"
            )
        for _, done in frames:
            done(problem)
