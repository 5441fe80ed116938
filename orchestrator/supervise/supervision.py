"""The processes of a run, kind by kind: started, asked, and started again when they are lost.

`ServerActors`, `SimulationActors` and `Evaluations` add what is particular to theirs.
"""

from __future__ import annotations

import contextlib
import logging
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Generic, TypeVar

from muxrl.orchestrator.config import ExperimentConfig
from muxrl.orchestrator.doing import doing
from muxrl.orchestrator.errors import RunFailed, Silent
from muxrl.orchestrator.records.run_directory import RunDirectory
from muxrl.orchestrator.supervise.actors import end_actor, failure, outcome, start_actor
from muxrl.orchestrator.supervise.away import rest_of_log
from muxrl.orchestrator.supervise.placement import own_place
from muxrl.orchestrator.supervise.process import ProcessId, ProcessReport
from muxrl.orchestrator.supervise.restarts import Quota

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
        self._scheduling: Any = None
        self._actors: dict[str, Any] = {}
        self._starting: dict[str, tuple[Any, float]] = {}  # calls and deadlines
        self._asked: dict[str, tuple[Any, float]] = {}  # likewise
        self._processes: dict[str, ProcessId] = {}
        self._on_loss: dict[str, Any] = {}
        """By process, what `on_restart` is told."""
        self._logged: dict[str, int] = {}
        """By process whose log is on another machine, how much of it has been brought."""
        self._lost_for_good: RunFailed | None = None

    # --- what a kind says ---------------------------------------------------------------

    _kind: str
    """Those that `listen`, for people."""

    @abstractmethod
    def _start(self, name: str) -> None:
        """Has a process begin, with `_launch`, for the first time or again."""

    def _listens(self, name: str, answer: Any) -> None:
        """Welcomes a process whose `start` has given this answer."""

    def _request(self, name: str) -> Any:
        """Asks a process for its report."""
        return self._actors[name].report.remote()

    def _take(self, name: str, report: R) -> None:
        """Takes in a report, and what a process far away has logged."""
        if report.log is not None:
            self._logged[name] = report.log.end
            self._append_to_log(name, report.log.text)
        self._on_report(name, report)

    def _append_to_log(self, name: str, text: bytes) -> None:
        with contextlib.suppress(OSError), self._folder.log(name).open("ab") as file:
            file.write(text)

    def move(self, server_id: str, address: str) -> None:
        """Tells all that play where a server listens from now on.

        One that has not reported yet may wait for the old place, and is made anew.

        Raises:
            RunFailed: as `collect`.
        """
        for name, actor in list(self._actors.items()):
            if not hasattr(actor, "move"):  # programs play through the gateway
                continue
            if name in self._processes:
                actor.move.remote(server_id, address)
            else:
                why = f"looked for server {server_id!r} where it was before"
                self._lose(name, Silent(why), is_own_fault=False)

    def _leave(self, name: str, actor: Any, error: Exception) -> None:
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
        listens: bool = False,
        to_start: Sequence[Any] = (),
        **options: Any,
    ) -> None:
        """Starts a process; if it `listens`, it is asked for reports once it does.

        Args:
            to_start: what its `start` is given.
        """
        place = own_place(self._scheduling, self._config, name)
        actor = start_actor(process, *arguments, scheduling=place, **options)
        self._actors[name] = actor
        if listens:
            deadline = time.monotonic() + self._timeouts.start_s
            self._starting[name] = actor.start.remote(*to_start), deadline

    def _wait_until_they_listen(self) -> None:
        """Waits for all that were launched for the first time.

        Raises:
            RunFailed: one did not start; at once, however long others take.
        """
        import ray

        names = {ref: name for name, (ref, _) in self._starting.items()}
        left = list(names)
        while left:
            doing(f"starting {self._kind}", f"{len(names) - len(left)} of {len(names)} listen")
            answered, left = ray.wait(left, timeout=self._timeouts.start_s)
            for ref in answered:
                if isinstance(answer := outcome(ref), Exception):
                    raise self._failure(names[ref], answer)
                del self._starting[names[ref]]
                self._listens(names[ref], answer)
            if not answered:
                after = f"{self._timeouts.start_s:g} s (timeouts.start_s sets how long it may take)"
                raise self._failure(names[left[0]], Silent(f"did not answer for {after}"))

    def _take_starts(self) -> None:
        """Welcomes processes that listen again."""
        import ray

        for name, (ref, deadline) in list(self._starting.items()):
            if ray.wait([ref], timeout=0)[0]:
                if isinstance(answer := outcome(ref), Exception):
                    self._lose(name, answer)
                    continue
                del self._starting[name]
                logger.info("%s listens again", self._who(name))
                self._listens(name, answer)
            elif time.monotonic() >= deadline:
                after = f"{self._timeouts.start_s:g} s (timeouts.start_s)"
                self._lose(name, Silent(f"did not listen within {after}"))

    # --- reports ------------------------------------------------------------------------

    @property
    def restarting(self) -> list[str]:
        """The processes that were lost and do not listen again yet."""
        return list(self._starting)

    def ask(self) -> None:
        """Asks every process that listens, and owes no report, for one; `collect` takes it in."""
        for name in self._actors:
            if name not in self._starting and name not in self._asked:
                first_s = 0.0 if name in self._processes else self._first_s
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
        import ray

        if not self._asked:
            return
        names = {ref: name for name, (ref, _) in self._asked.items()}
        answered, _ = ray.wait(list(names), num_returns=len(names), timeout=wait_s)
        for ref in answered:
            name = names[ref]
            if self._asked.pop(name, None) is None:  # lost since
                continue
            answer = outcome(ref)
            if not isinstance(answer, Exception):
                self._processes[name] = answer.process
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
        actor = self._actors.pop(name)
        self._starting.pop(name, None)
        self._leave(name, actor, error)
        process = self._forget(name)
        end_actor(actor, process if isinstance(error, Silent) else None)
        if (at := self._logged.pop(name, None)) is not None and process is not None:
            self._append_to_log(name, rest_of_log(process.node_id, self._folder.log(name), at))
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

    def _forget(self, name: str) -> ProcessId | None:
        self._asked.pop(name, None)
        return self._processes.pop(name, None)

    def _failure(self, name: str, error: Exception) -> RunFailed:
        return failure(self._who(name), error, self._folder.log(name))
