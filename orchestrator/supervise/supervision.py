"""The processes of a run, kind by kind: started, asked, and started again when they are lost.

`Servers`, `Simulations` and `Evaluations` add what is particular to theirs.
"""

from __future__ import annotations

import logging
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future
from pathlib import Path
from typing import Any, Generic, TypeVar

from muxrl.client.env_loop import SimulationFailed
from muxrl.orchestrator.config import ExperimentConfig
from muxrl.orchestrator.doing import doing
from muxrl.orchestrator.errors import Ended, RunFailed, Silent
from muxrl.orchestrator.records.run_directory import RunDirectory
from muxrl.orchestrator.supervise.local import Workers
from muxrl.orchestrator.supervise.process import ProcessReport
from muxrl.orchestrator.supervise.restarts import Quota
from muxrl.orchestrator.supervise.worker import Caller, first_done, outcome

logger = logging.getLogger(__name__)

ANSWER_S = 5.0
"""For reports of processes that are busy."""

R = TypeVar("R", bound=ProcessReport)


class Supervision(ABC, Generic[R]):
    """The processes of one kind, by name; none until a kind starts them.

    Nobody has to wait for one that is silent: this is noticed when its time is over.

    Args:
        config: of the run.
        folder: the run's directory.
        quotas: by process, how often it may be started again.
        on_report: called with each process's name and report.
        on_restart: called when a process is lost and started again, with its name and what its kind
            says of it.
        first_s: how much longer than the next ones the first report of a process may take.
    """

    def __init__(
        self,
        config: ExperimentConfig,
        folder: RunDirectory,
        quotas: Mapping[str, Quota],
        on_report: Callable[[str, R], None],
        on_restart: Callable[[str, Any], None],
        first_s: float = 0.0,
    ) -> None:
        self.may_restart = True
        self._config = config
        self._timeouts = config.timeouts
        self._folder = folder
        self._quotas = quotas
        self._on_report = on_report
        self._on_restart = on_restart
        self._first_s = first_s
        self._workers: Workers
        """Where its processes are; a kind sets it before it starts any."""
        self._callers: dict[str, Caller] = {}
        self._starting: dict[str, tuple[Future[Any], float]] = {}  # calls and deadlines
        self._asked: dict[str, tuple[Future[Any], float]] = {}  # likewise
        self._has_reported: set[str] = set()
        self._on_loss: dict[str, Any] = {}
        """By process, what `on_restart` is told."""
        self._lost_for_good: RunFailed | None = None

    # --- what a kind says ---------------------------------------------------------------

    _kind: str
    """Those that `listen`, for people."""

    @abstractmethod
    def _start(self, name: str) -> None:
        """Has a process begin, with `_launch`, for the first time or again."""

    def _listens(self, name: str, answer: Any) -> None:
        """Welcomes a process whose `start` has given this answer."""

    def _request(self, name: str) -> Future[Any]:
        """Asks a process for its report."""
        return self._callers[name].call("report")

    def _take(self, name: str, report: R) -> None:
        """Takes in a report."""
        self._on_report(name, report)

    def move(self, server_id: str, address: str) -> None:
        """Tells all that play where a server listens from now on.

        One that has not reported yet may wait for the old place, and is made anew.

        Raises:
            RunFailed: as `collect`.
        """
        for name, caller in list(self._players.items()):
            if name in self._has_reported:
                caller.call("move", server_id, address)
            else:
                why = f"looked for server {server_id!r} where it was before"
                self._lose(name, Silent(why), is_own_fault=False)

    @property
    def _players(self) -> Mapping[str, Caller]:
        """Those of its processes that ask servers."""
        return self._callers

    def _leave(self, name: str, caller: Caller, error: Exception) -> None:
        """Forgets what is known of a process that is lost, and is ended next."""

    @abstractmethod
    def _again(self, name: str) -> str:
        """Prepares that a process is started again; returns how it goes on."""

    def _who(self, name: str) -> str:
        """A process in messages."""
        return name

    # --- start --------------------------------------------------------------------------

    def _launch(
        self,
        name: str,
        process: type,
        *arguments: Any,
        is_forked: bool = False,
    ) -> Caller:
        """Starts a process."""
        caller = self._workers.start(
            name, process, *arguments, log=self._folder.log(name), is_forked=is_forked
        )
        self._callers[name] = caller
        return caller

    def _await(self, name: str, start: Future[Any]) -> None:
        """Has a process be asked for reports once its `start` has returned."""
        self._starting[name] = start, time.monotonic() + self._timeouts.start_s

    def _wait_until_they_listen(self) -> None:
        """Waits for all that were launched for the first time.

        Raises:
            RunFailed: one did not start; at once, however long others take.
        """
        names = {start: name for name, (start, _) in self._starting.items()}
        num = len(names)
        while names:
            doing(f"starting {self._kind}", f"{num - len(names)} of {num} listen")
            answered = first_done(list(names), self._timeouts.start_s)
            for start in answered:
                name = names.pop(start)
                if isinstance(answer := outcome(start), Exception):
                    raise self._failure(name, answer)
                del self._starting[name]
                self._listens(name, answer)
            if not answered:
                late = f"{self._timeouts.start_s:g} s (timeouts.start_s sets how long it may take)"
                name = next(iter(names.values()))
                raise self._failure(name, Silent(f"did not answer for {late}"))

    def _take_starts(self) -> None:
        """Welcomes processes that listen again."""
        for name, (start, deadline) in list(self._starting.items()):
            if start.done():
                if isinstance(answer := outcome(start), Exception):
                    self._lose(name, answer)
                    continue
                del self._starting[name]
                logger.info("%s listens again", self._who(name))
                self._listens(name, answer)
            elif time.monotonic() >= deadline:
                late = f"{self._timeouts.start_s:g} s (timeouts.start_s)"
                self._lose(name, Silent(f"did not listen within {late}"))

    # --- reports ------------------------------------------------------------------------

    @property
    def restarting(self) -> list[str]:
        """The processes that were lost and do not listen again yet."""
        return list(self._starting)

    def ask(self) -> None:
        """Asks every process that listens, and owes no report, for one; `collect` takes it in."""
        for name in self._callers:
            if name not in self._starting and name not in self._asked:
                first_s = 0.0 if name in self._has_reported else self._first_s
                deadline = time.monotonic() + self._timeouts.report_s + first_s
                self._asked[name] = self._request(name), deadline

    def collect(self, wait_s: float) -> None:
        """Takes in the reports that have come, and looks after processes that were lost.

        Args:
            wait_s: for how long to wait for reports.

        Raises:
            RunFailed: a process was lost once too often.
        """
        self._take_starts()
        for name, answer in self._answers(wait_s):
            if isinstance(answer, Exception):
                self._lose(name, answer)
            else:
                self._take(name, answer)

    def report_now(self) -> None:
        """Takes in how things stand at this moment, of all that answer soon.

        Raises:
            RunFailed: as `collect`.
        """
        self.collect(ANSWER_S)  # what was asked for before is of before
        self.ask()
        self.collect(ANSWER_S)

    def _answers(self, wait_s: float) -> Iterator[tuple[str, R | Exception]]:
        """Yields the reports that have come, by process, and why there will be none."""
        names = {report: name for name, (report, _) in self._asked.items()}
        for report in first_done(list(names), wait_s, all_of_them=True):
            name = names[report]
            if self._asked.pop(name, None) is None:  # lost since
                continue
            answer = outcome(report)
            if not isinstance(answer, Exception):
                self._has_reported.add(name)
                if answer.step_s >= self._timeouts.step_s:
                    answer = Silent(
                        f"has been in one step of its simulation for {answer.step_s:.0f} s "
                        "(timeouts.step_s sets how long one may take)"
                    )
            yield name, answer
        for name, (_, deadline) in list(self._asked.items()):
            if time.monotonic() >= deadline:
                silence = f"did not answer for {self._timeouts.report_s:g} s"
                yield name, Silent(f"{silence} (timeouts.report_s sets how long it may take)")

    # --- one is lost --------------------------------------------------------------------

    def _lose(self, name: str, error: Exception, *, is_own_fault: bool = True) -> None:
        """Ends what is left of a process, and starts it again; its quota is for its own faults.

        Raises:
            RunFailed: it may not be started again.
        """
        problem = self._failure(name, error)
        caller = self._callers.pop(name)
        self._starting.pop(name, None)
        self._leave(name, caller, error)
        self._forget(name)
        caller.kill()
        try:
            if not self.may_restart:
                raise problem
            if is_own_fault:
                self._quotas[name].take(problem)
            logger.warning("%s; it is started again %s", problem, self._again(name))
            self._on_restart(name, self._on_loss[name])
            self._start(name)
        except RunFailed as final:
            self._lost_for_good = final
            raise

    def _forget(self, name: str) -> None:
        self._asked.pop(name, None)
        self._has_reported.discard(name)

    def _failure(self, name: str, error: Exception) -> RunFailed:
        return failure(self._who(name), error, self._folder.log(name))


def failure(who: str, error: Exception, log: Path) -> RunFailed:
    """Returns what to raise for a process that has died, was silent, or raised."""
    if isinstance(error, Silent):
        return RunFailed(f"{who} {error}; its log: {log}")
    if isinstance(error, Ended):
        return RunFailed(f"{who} died ({error}); its log: {log}")
    if isinstance(error, SimulationFailed):  # what the user can mend comes first
        return RunFailed(f"{error}; so {who} failed; its log: {log}", error.place)
    kind = "" if type(error).__module__.startswith("muxrl.") else f"{type(error).__name__}: "
    return RunFailed(f"{who} failed: {kind}{error}; its log: {log}")
