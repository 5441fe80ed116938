"""The event loop of a run."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, TypeVar

from muxrl.orchestrator.supervise.signals import raised_between_callbacks

T = TypeVar("T")


class EventLoop:
    """An asyncio loop that runs only within `run`.

    Between two calls of `run` nothing in it changes, so that a run can be read like any object.
    Another loop may be running in the same thread, as in a notebook: it is blocked during `run`, as
    by any call.
    """

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()

    def begin(self, work: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        """Starts a coroutine, which continues whenever the loop runs."""
        return self._loop.create_task(work)

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Runs the loop until a coroutine has ended; returns or raises what the coroutine does.

        Raises:
            KeyboardInterrupt: a signal ends the run; see `signals`.
        """
        outer = asyncio._get_running_loop()
        asyncio._set_running_loop(None)
        try:
            with raised_between_callbacks(self._loop):
                return self._loop.run_until_complete(work)
        finally:
            asyncio._set_running_loop(outer)

    def close(self) -> None:
        """Cancels all tasks that are left in the loop, and closes it."""
        if not self._loop.is_closed():
            self.run(_cancel_others())
            self._loop.close()


async def _cancel_others() -> None:
    others = asyncio.all_tasks() - {asyncio.current_task()}
    for task in others:
        task.cancel()
    await asyncio.gather(*others, return_exceptions=True)


async def first_of(*works: Awaitable[Any]) -> Any:
    """Waits until one of several awaitables ends, and cancels the others.

    Returns or raises what that one does; if several have ended, the one that is given first.
    """
    tasks = [asyncio.ensure_future(work) for work in works]
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        return next(task for task in tasks if task.done()).result()
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def again_and_again(look: Callable[[], Awaitable[object]], every_s: float) -> None:
    """Calls and awaits `look` every `every_s` seconds, until this is cancelled."""
    while True:
        await asyncio.sleep(every_s)
        await look()
