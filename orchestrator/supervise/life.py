"""The life of a process of a run: it starts, works, is lost, and is started again.

Subclasses of `Life` add what is particular to servers, simulations and so on.
"""

from __future__ import annotations

import asyncio
import logging
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Coroutine
from typing import Any, Generic, TypeVar

from muxrl.client.env_loop import SimulationFailed
from muxrl.orchestrator.config import ExperimentConfig
from muxrl.orchestrator.errors import Ended, Outdated, RunFailed, Silent
from muxrl.orchestrator.records.run_directory import RunDirectory
from muxrl.orchestrator.supervise.event_loop import first_of
from muxrl.orchestrator.supervise.local import Workers
from muxrl.orchestrator.supervise.process import ProcessReport
from muxrl.orchestrator.supervise.restarts import Quota
from muxrl.orchestrator.supervise.worker import Caller

logger = logging.getLogger(__name__)

ANSWER_S = 5.0
"""How long to wait for a report from a process that may be busy."""
_PAUSE_S = 1.0
"""Pause before a process that failed while it started is started again."""

R = TypeVar("R")
T = TypeVar("T")


class Supervisor:
    """What the lives of a run's processes share.

    Args:
        config: the run's config.
        folder: the run's directory.
    """

    def __init__(self, config: ExperimentConfig, folder: RunDirectory) -> None:
        self.config = config
        self.folder = folder
        self.workers: Workers
        """Starts processes, here or on other machines; set before the first one begins."""
        self.may_restart = True
        """Whether a lost process is started again; if not, its loss fails the run."""
        self.on_restart: Callable[[str, str | None], None] = lambda name, prefix: None
        """Called when a process that plays is lost and started again, with its name and the prefix
        of its episodes' ids (None: unknown)."""
        self._problem: Exception | None = None
        self._has_failed = asyncio.Event()

    def fail(self, problem: Exception) -> None:
        """Makes `unless_lost` raise this problem, since a process is lost for good."""
        if self._problem is None:
            self._problem = problem
            self._has_failed.set()

    async def unless_lost(self, work: Coroutine[Any, Any, T]) -> T:
        """Awaits `work`, and returns its result, unless a process is lost for good meanwhile.

        Raises:
            RunFailed: a process was lost for good.
        """
        return await first_of(self._wait_for_failure(), work)

    async def _wait_for_failure(self) -> None:
        await self._has_failed.wait()
        assert self._problem is not None
        raise self._problem


class Life(ABC, Generic[R]):
    """One process of a run, through all its restarts.

    Args:
        name: of the process, and of its log.
        supervisor: the run's supervisor.
        quota: how often the process may be started again.
        first_s: how many seconds longer than later reports the first report may take.
    """

    def __init__(
        self, name: str, supervisor: Supervisor, quota: Quota, first_s: float = 0.0
    ) -> None:
        self.name = name
        self.caller: Caller | None = None
        """Calls methods of the newest process; None: none has been started yet."""
        self.is_up = asyncio.Event()
        """Set while the process has started and is not lost."""
        self.has_reported = False
        self._supervisor = supervisor
        self._timeouts = supervisor.config.timeouts
        self._quota = quota
        self._first_s = first_s
        self._has_listened = self._is_starting = False
        self._lost_s, self._lost_at = 0.0, 0.0
        self._prepared: Caller | None = None
        self._task: asyncio.Task[None] | None = None
        self._lost: asyncio.Future[None]
        self._is_decided: asyncio.Event
        self._report: asyncio.Future[Any] | None = None
        self._report_by = 0.0

    # --- what subclasses define ---------------------------------------------------------

    @abstractmethod
    def _launch(self) -> Caller:
        """Starts a process, for the first time or again; see `_start_process`."""

    async def _start(self) -> None:
        """Waits until the process has started."""

    async def _work(self) -> None:
        """Runs while the process is up. Never returns: it can only raise why it is lost."""
        await asyncio.Event().wait()

    def _request(self) -> asyncio.Future[Any]:
        """Asks the process for a report."""
        return self.call("report")

    @abstractmethod
    def _receive(self, report: R) -> None:
        """Handles a report of the process."""

    async def _leave(self, error: Exception) -> None:
        """Notes that the process is lost; it is killed right after this."""

    @abstractmethod
    def _again(self) -> str:
        """Prepares the next start; returns how the process continues, for a log message."""

    @property
    def who(self) -> str:
        """What messages call the process."""
        return self.name

    @property
    def lost_s(self) -> float:
        """For how many seconds it was lost: from each loss until it was up again."""
        is_lost = self._has_listened and not self.is_up.is_set()
        return self._lost_s + (time.monotonic() - self._lost_at if is_lost else 0.0)

    # --- its life -----------------------------------------------------------------------

    def prepare(self) -> None:
        """Starts the process ahead of `begin`, so that it can initialise while servers start."""
        self._prepared = self._launch()

    def begin(self) -> None:
        """Looks after the process, and starts it again when it is lost, until `end`."""
        self._is_decided = asyncio.Event()
        self._task = asyncio.create_task(self._live())

    def end(self) -> None:
        """Stops looking after the process, which lives on unless it was only prepared."""
        if self._prepared is not None:
            self._prepared.kill()
        if self._task is not None:
            self._task.cancel()

    async def _live(self) -> None:
        while True:
            self._is_starting = True
            self._lost, self._is_decided = asyncio.Future(), asyncio.Event()
            try:
                self.caller, self._prepared = self._prepared or self._launch(), None
                await first_of(self._lost, self._start_and_work())
            except asyncio.CancelledError:
                self._is_decided.set()
                raise
            except Exception as error:  # noqa: BLE001  # whatever was raised, the process is lost
                self._note_loss()
                try:
                    await self._lose(error)
                except Exception as final:  # noqa: BLE001  # raised in `Supervisor.unless_lost`
                    self._supervisor.fail(final)
                    return
                finally:
                    self._is_decided.set()
                if self._is_starting:  # the next one might fail at once, too
                    await asyncio.sleep(_PAUSE_S)

    async def _start_and_work(self) -> None:
        limit = asyncio.timeout(self._timeouts.start_s)
        try:
            async with limit:
                await self._start()
        except TimeoutError:
            if limit.expired():
                silence = f"did not answer for {self._timeouts.start_s:g} s"
                raise Silent(f"{silence} (timeouts.start_s sets how long it may take)") from None
            raise
        if self._has_listened:
            self._lost_s += time.monotonic() - self._lost_at
        self._has_listened, self._is_starting = True, False
        self.is_up.set()
        await self._work()

    async def _lose(self, error: Exception) -> None:
        """Kills what is left of a lost process, and prepares its next start.

        Raises:
            RunFailed: it may not be started again.
        """
        problem = self.failure(error)
        asked, self._report, self.has_reported = self._report, None, False
        if asked is not None and not isinstance(error, Silent):
            # Its last report counts: the process has sent it, and keeps nothing that it has sent.
            await self._receive_soon(asked)
        await self._leave(error)
        self.kill()
        if not self._has_listened or not self._supervisor.may_restart:
            raise problem
        if not isinstance(error, Outdated):
            self._quota.take(problem)
        logger.warning("%s; it is started again %s", problem, self._again())

    async def lose(self, error: Exception, caller: Caller | None = None) -> None:
        """Declares the process lost; returns once it is decided whether it is started again.

        Args:
            error: why it is lost.
            caller: of the process that was called; if another process has been started since,
                nothing happens.
        """
        if caller is None or caller is self.caller:
            self.lose_soon(error)
            await self._is_decided.wait()

    def lose_soon(self, error: Exception) -> None:
        """Declares the process lost, and returns at once."""
        if not self._lost.done():
            self._note_loss()
            self._lost.set_exception(error)

    def _note_loss(self) -> None:
        if self.is_up.is_set():
            self.is_up.clear()
            self._lost_at = time.monotonic()

    def kill(self) -> None:
        """Kills the process, if one has been started."""
        if self.caller is not None:
            self.caller.kill()

    async def down(self) -> None:
        """Waits until the process is lost."""
        await asyncio.wait([self._lost])

    def failure(self, error: Exception) -> RunFailed:
        """Returns what to raise for a process that has died, was silent, or raised."""
        who, log = self.who, self._supervisor.folder.log(self.name)
        if isinstance(error, Silent):
            return RunFailed(f"{who} {error}; its log: {log}")
        if isinstance(error, Ended):
            return RunFailed(f"{who} died ({error}); its log: {log}")
        if isinstance(error, SimulationFailed):  # first what the user can mend
            return RunFailed(f"{error}; so {who} failed; its log: {log}", error.place)
        kind = "" if type(error).__module__.startswith("muxrl.") else f"{type(error).__name__}: "
        return RunFailed(f"{who} failed: {kind}{error}; its log: {log}")

    def _start_process(self, process: type, *arguments: Any, is_forked: bool = False) -> Caller:
        log = self._supervisor.folder.log(self.name)
        start = self._supervisor.workers.start
        return start(self.name, process, *arguments, log=log, is_forked=is_forked)

    # --- calls of the process -----------------------------------------------------------

    def call(self, method: str, *arguments: Any) -> asyncio.Future[Any]:
        """Calls a method of the process; see `Caller`."""
        assert self.caller is not None
        answer = asyncio.wrap_future(self.caller.call(method, *arguments))
        # Not every caller waits for the answer; asyncio would log exceptions that are not read.
        answer.add_done_callback(lambda done: done.cancelled() or done.exception())
        return answer

    def send(self, method: str, *arguments: Any) -> None:
        """Calls a method without waiting for its answer; does nothing before the first start."""
        if self.caller is not None:
            self.caller.call(method, *arguments)

    async def report(self, wait_s: float, *, is_new: bool = True) -> bool:
        """Receives a report of the process, which is lost if its report is too late.

        Args:
            wait_s: how long to wait for the report.
            is_new: whether to ask for a report if none is outstanding.

        Returns:
            Whether no report is outstanding any more.
        """
        if not self.is_up.is_set():
            return True
        if self._report is None:
            if not is_new:
                return True
            first_s = 0.0 if self.has_reported else self._first_s
            self._report_by = time.monotonic() + self._timeouts.report_s + first_s
            self._report = self._request()
        asked: asyncio.Future[Any] = self._report
        problem: Any = None
        await asyncio.wait([asked], timeout=wait_s)
        if self._report is not asked:  # the process was lost meanwhile
            return True
        if asked.done():
            self._report = None
            problem = asked.exception() or self._stuck(asked.result())
            if problem is None:
                self.has_reported = True
                self._receive(asked.result())
        elif time.monotonic() >= self._report_by:
            silence = f"did not answer for {self._timeouts.report_s:g} s"
            problem = Silent(f"{silence} (timeouts.report_s sets how long it may take)")
        if problem is not None:
            await self.lose(problem)
        return asked.done()

    def _stuck(self, report: R) -> Silent | None:
        if not isinstance(report, ProcessReport) or report.step_s < self._timeouts.step_s:
            return None
        return Silent(
            f"has been in one step of its simulation for {report.step_s:.0f} s "
            "(timeouts.step_s sets how long one may take)"
        )

    async def report_now(self) -> None:
        """Receives a report as of this moment, if the process answers soon."""
        if await self.report(ANSWER_S, is_new=False):  # an outstanding report is older
            await self.report(ANSWER_S)

    async def receive_last(self) -> None:
        """Receives a last report, unless the process is lost or does not answer soon."""
        if self.caller is not None:
            await self._receive_soon(self._request())

    async def _receive_soon(self, asked: asyncio.Future[Any]) -> None:
        await asyncio.wait([asked], timeout=ANSWER_S)
        if asked.done() and not asked.cancelled() and asked.exception() is None:
            self._receive(asked.result())
