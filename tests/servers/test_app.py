"""Which frames share a forward pass, and what happens when a pass fails."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any, cast

from muxrl.protocol.errors import NotServing
from muxrl.servers.app import Batcher


class BlockToAct:
    """Stands for a `Block`."""

    chosen: str | None = None
    has_failed = False

    def finish(self, chosen: str, weights_seq_no: int) -> None:
        self.chosen = f"{chosen} with weights {weights_seq_no}"


class Counting:
    """Acts, and keeps the number of steps in each pass."""

    def __init__(self) -> None:
        self.passes: list[int] = []
        self.is_broken = False

    def act(self, blocks: Sequence[BlockToAct]) -> list[tuple[str, int]]:
        if self.is_broken:
            raise ArithmeticError("no such luck")
        self.passes.append(len(blocks))
        return [("left", 7) for _ in blocks]


def batcher_of(acting: Counting) -> Batcher:
    return Batcher(cast(Any, acting), "s")


def steps(number: int) -> list[BlockToAct]:
    return [BlockToAct() for _ in range(number)]


def submit(batcher: Batcher, pending: list[BlockToAct], done: list[Any], *, is_alone: bool) -> None:
    """Submits a frame; appends its outcome to `done`: an error, or None."""
    batcher.submit(cast(Any, pending), done.append, is_alone=is_alone)


def test_each_pass_is_measured_once() -> None:
    acting = Counting()
    batcher = batcher_of(acting)
    for _ in range(3):
        submit(batcher, steps(2), [], is_alone=True)
    acting.is_broken = True
    submit(batcher, steps(2), [], is_alone=True)
    assert sum(batcher.forward_passes.counts) == 3
    assert 0.0 < batcher.forward_passes.sum_s < 1.0


def test_frames_of_one_turn_share_a_pass() -> None:
    acting = Counting()
    done: list[Any] = []

    async def serve() -> None:
        batcher = batcher_of(acting)
        shared = steps(1)
        submit(batcher, steps(2), done, is_alone=False)
        submit(batcher, shared, done, is_alone=False)
        # The client reconnected and sent its step again.
        submit(batcher, shared, done, is_alone=False)
        assert done == []
        await asyncio.sleep(0)
        assert (acting.passes, done) == ([3], [None] * 3)
        submit(batcher, shared, done, is_alone=False)
        await asyncio.sleep(0)
        assert acting.passes == [3], "it has its answer"

    asyncio.run(serve())


def test_a_frame_that_is_alone_is_acted_on_at_once_with_those_that_wait() -> None:
    acting = Counting()
    done: list[Any] = []

    async def serve() -> None:
        batcher = batcher_of(acting)
        submit(batcher, steps(1), done, is_alone=False)
        submit(batcher, steps(1), done, is_alone=True)
        assert acting.passes == [2]
        asyncio.get_running_loop().set_exception_handler(lambda _, context: raised.append(context))
        await asyncio.sleep(0)
        assert done == [None, None]

    raised: list[Any] = []
    asyncio.run(serve())
    assert not raised, "nothing was left for its turn"


def test_a_module_that_raises_refuses_the_frame_and_can_be_asked_again() -> None:
    acting = Counting()
    acting.is_broken = True
    batcher = batcher_of(acting)
    (step,) = frame = steps(1)
    done: list[NotServing | None] = []
    submit(batcher, frame, done, is_alone=True)
    (problem,) = done
    assert problem is not None
    assert problem.message == (
        "server 's' could not compute actions: ArithmeticError: no such luck"
    )
    assert step.has_failed, "it waits for nobody"
    acting.is_broken = False
    submit(batcher, frame, done, is_alone=True)
    assert (done[1], step.chosen) == (None, "left with weights 7")
