"""The event loop of a run."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, TypeVar

from muxrl.orchestrator.supervise.signals import raised_between_callbacks

T = TypeVar("T")


class EventLoop:
    """A loop that runs only while somebody waits for something in it.

    So whoever holds a run reads it at rest, as if there were no loop. Another one may be running in
    the same thread, as in a notebook: it waits, as for any call.
    """

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()

    def begin(self, work: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        """Has a coroutine continue whenever the loop runs."""
        return self._loop.create_task(work)

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Runs until a coroutine has ended; returns or raises what that does.

        Raises:
            KeyboardInterrupt: a signal came that ends the run; see `signals`.
        """
        outer = asyncio._get_running_loop()
        asyncio._set_running_loop(None)
        try:
            with raised_between_callbacks(self._loop):
                return self._loop.run_until_complete(work)
        finally:
            asyncio._set_running_loop(outer)

    def close(self) -> None:
        """Ends all that is left in it."""
        if not self._loop.is_closed():
            self.run(_cancel_others())
            self._loop.close()


async def _cancel_others() -> None:
    others = asyncio.all_tasks() - {asyncio.current_task()}
    for task in others:
        task.cancel()
    await asyncio.gather(*others, return_exceptions=True)


async def first_of(*works: Awaitable[Any]) -> Any:
    """Waits for the first that ends, and cancels the others; returns or raises what it did.

    Of several that have ended it is the first one given.
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
    """Calls something until this is cancelled."""
    while True:
        await asyncio.sleep(every_s)
        await look()
