"""A run's event loop runs only while it is waited for, in a notebook too; signals break nothing."""

from __future__ import annotations

import asyncio
import os
import signal

import pytest

from muxrl.orchestrator.supervise.event_loop import EventLoop, first_of
from muxrl.orchestrator.supervise.signals import interruptible


async def answer() -> int:
    await asyncio.sleep(0)
    return 7


def test_the_loop_runs_inside_another_running_loop() -> None:
    async def cell() -> tuple[int, int]:
        loop = EventLoop()
        found = loop.run(answer())
        loop.close()
        return found, await answer()

    assert asyncio.run(cell()) == (7, 7)


def test_a_signal_raises_between_two_callbacks_and_begun_tasks_go_on() -> None:
    loop, steps = EventLoop(), []

    async def work() -> None:
        for step in range(3):
            if step == 1:
                os.kill(os.getpid(), signal.SIGINT)
            steps.append(step)
            await asyncio.sleep(0)

    async def wait(task: asyncio.Task[None]) -> None:
        await task

    with interruptible():
        task = loop.begin(work())
        with pytest.raises(KeyboardInterrupt):
            loop.run(wait(task))
        assert steps[:2] == [0, 1], "the step in which it came is whole"
        loop.run(asyncio.wait_for(asyncio.shield(task), 10.0))
    assert steps == [0, 1, 2]
    loop.close()


def test_the_first_task_to_end_ends_the_others() -> None:
    ended: list[str] = []

    async def lasting() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            ended.append("lasting")

    async def failing() -> None:
        await asyncio.sleep(0)
        raise OSError("it broke")

    loop = EventLoop()
    assert loop.run(first_of(lasting(), answer())) == 7
    assert ended == ["lasting"]
    with pytest.raises(OSError, match="it broke"):
        loop.run(first_of(lasting(), failing()))
    loop.begin(lasting())
    loop.run(answer())
    loop.close()
    assert ended == ["lasting"] * 3
