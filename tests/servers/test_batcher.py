"""Who shares a forward pass, and what happens when one fails."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any, cast

from muxrl.protocol.errors import NotServing
from muxrl.servers.batcher import Batcher
from muxrl.servers.episodes.episode import PendingStep


class StepToAct:
    """Stands for a `PendingStep`."""

    answer: str | None = None
    has_failed = False

    def finish(self, weights_seq_no: int) -> None:
        self.answer = f"with weights {weights_seq_no}"


class Counting:
    """Acts, and keeps how many steps each pass had."""

    weights_seq_no = 7

    def __init__(self) -> None:
        self.passes: list[int] = []
        self.is_broken = False

    def act(self, steps: Sequence[PendingStep]) -> int:
        if self.is_broken:
            raise ArithmeticError("no such luck")
        self.passes.append(len(steps))
        return self.weights_seq_no


def steps(number: int) -> list[PendingStep]:
    return [cast(PendingStep, StepToAct()) for _ in range(number)]


def test_a_frame_alone_is_computed_at_once() -> None:
    acting = Counting()
    (step,) = frame = steps(1)
    done: list[Any] = []
    Batcher(acting, "s").submit(frame, done.append, is_alone=True)
    assert (acting.passes, done, step.answer) == ([1], [None], "with weights 7")


def test_frames_of_one_turn_share_a_pass() -> None:
    acting = Counting()
    done: list[Any] = []

    async def serve() -> None:
        batcher = Batcher(acting, "s")
        shared = steps(1)
        batcher.submit(steps(2), done.append, is_alone=False)
        batcher.submit(shared, done.append, is_alone=False)
        batcher.submit(shared, done.append, is_alone=False)  # its client has come back
        assert done == []
        await asyncio.sleep(0)
        assert (acting.passes, done) == ([3], [None] * 3)
        batcher.submit(shared, done.append, is_alone=False)
        await asyncio.sleep(0)
        assert acting.passes == [3, 0], "it has its answer"

    asyncio.run(serve())


def test_one_that_is_alone_takes_along_who_waits() -> None:
    acting = Counting()
    done: list[Any] = []

    async def serve() -> None:
        batcher = Batcher(acting, "s")
        batcher.submit(steps(1), done.append, is_alone=False)
        batcher.submit(steps(1), done.append, is_alone=True)
        assert acting.passes == [2]
        await asyncio.sleep(0)
        assert done == [None, None]

    asyncio.run(serve())


def test_a_module_that_raises_refuses_the_frame_and_can_be_asked_again() -> None:
    acting = Counting()
    acting.is_broken = True
    batcher = Batcher(acting, "s")
    (step,) = frame = steps(1)
    done: list[NotServing | None] = []
    batcher.submit(frame, done.append, is_alone=True)
    (problem,) = done
    assert problem is not None
    assert problem.message == (
        "server 's' could not compute actions: ArithmeticError: no such luck"
    )
    assert cast(Any, step).has_failed, "it waits for nobody"
    acting.is_broken = False
    batcher.submit(frame, done.append, is_alone=True)
    assert (done[1], step.answer) == (None, "with weights 7")
