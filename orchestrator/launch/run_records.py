"""The records that a run writes while it runs: counts, metrics, its status, its warnings."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable

from muxrl.orchestrator.config import Experiment
from muxrl.orchestrator.doing import doing
from muxrl.orchestrator.errors import NotARunDirectory
from muxrl.orchestrator.launch.parameters import ParameterProgress
from muxrl.orchestrator.launch.result import RunResult
from muxrl.orchestrator.launch.server_reports import ServerReports
from muxrl.orchestrator.launch.tally import Tally
from muxrl.orchestrator.records.metrics import MetricsWriter
from muxrl.orchestrator.records.plan import groups_of
from muxrl.orchestrator.records.run_directory import RunDirectory
from muxrl.orchestrator.records.run_status import EndState, StatusFile, read_status
from muxrl.orchestrator.storage.checkpoints import Manifest
from muxrl.orchestrator.storage.remote_copy import RemoteCopy
from muxrl.orchestrator.supervise.servers import Servers
from muxrl.orchestrator.supervise.signals import are_signals_claimed
from muxrl.orchestrator.trackers.tracking import Tracking
from muxrl.protocol.messages import ServerWarning
from muxrl.servers.episodes.warnings import Warnings

_MIN_EPISODES = 20
"""After so many episodes their mean length is known well enough."""
_SILENCE_S = 30.0
"""After this long without a simulation there is a warning; the wait for the next one doubles."""
_MOST_SILENCE_S = 600.0
"""Longest wait from one such warning to the next."""


class RunRecords:
    """The records of one run.

    Args:
        experiment: the resolved experiment.
        folder: the run's directory.
        before: the checkpoint from which the run continues; None: the run is new.
        on_warned: called with each warning of the run as a whole.

    Raises:
        ConfigError: no copy can be kept in `storage_path`.
    """

    def __init__(
        self,
        experiment: Experiment,
        folder: RunDirectory,
        before: Manifest | None,
        on_warned: Callable[[str], None],
    ) -> None:
        self._experiment, self._on_warned = experiment, on_warned
        self._folder = folder
        storage = experiment.config.storage_path
        parent = f"{folder.sweep.name}/runs/" if folder.sweep else ""
        name = f"{parent}{folder.path.name}"
        self.copy = RemoteCopy(folder.path, storage, name, is_new=before is None)
        agents = {server_id: plan.agents for server_id, plan in experiment.servers.items()}
        parameters = ParameterProgress(experiment.config.simulation.parameters, agents)
        self.tally = Tally(parameters, groups_of(folder.read_plan()))
        status = None
        if before is not None:
            self.tally.restore(before.tally)
            status = read_status(folder)
        self.status = StatusFile(folder, status, ends_on_sigterm=are_signals_claimed())
        self.warnings = Warnings(lambda: self.tally.env_steps)
        """Warnings of the run itself."""
        if status is not None:  # warnings of its start are added anew below
            self.warnings.restore(one for one in status.warnings.get("", ()) if one.text)
        at = (before.env_steps, before.metrics_bytes) if before else ()
        self._trackers = Tracking(folder, experiment.config.trackers, *at)
        self.metrics = MetricsWriter(folder, self._trackers.receive)
        self.servers = ServerReports(experiment, self.metrics, self.tally)
        self._recorded_s: float | None = None
        """`time_s` of the newest row."""
        self._waits_since: float | None = None
        self._silence_s = _SILENCE_S
        self._is_warned_late = not experiment.may_be_warned_late
        self.warn(experiment.warnings)

    def write(self, servers: Servers, alarm: str) -> None:
        """Writes the present state of the run.

        Args:
            servers: the servers of the run.
            alarm: why the last checkpoint was not written; "" if it was.
        """
        if self.tally.time_s != self._recorded_s:  # else nothing new was played
            self._recorded_s = self.tally.time_s
            self.metrics.joint(self.tally.next_row(self.servers.states(servers)))
        self.write_warnings(servers, alarm)

    def write_warnings(self, servers: Servers, alarm: str) -> None:
        """Writes all warnings; see `write`."""
        self.status.note_env_steps(self.tally.env_steps)
        self.status.warn(self.all_warnings(servers), alarm)

    def note_restart(self, name: str) -> None:
        """Notes that a process was lost and is started again."""
        self.tally.restart(name)
        self.status.note_restart(name)

    def note_waiting(self, waiting_for: str, remedy: str) -> None:
        """Notes what the first env step waits for, and warns of it now and then.

        Args:
            waiting_for: what it waits for; "" once there is an env step.
            remedy: what the user can do; "": nothing, the step comes by itself.
        """
        self.status.note_waiting(waiting_for)
        if self._waits_since is None:
            self._waits_since = time.monotonic()
        waited_s = time.monotonic() - self._waits_since
        if waiting_for and remedy and waited_s >= self._silence_s:
            self._silence_s = waited_s + min(waited_s, _MOST_SILENCE_S)
            self._on_warned(f"{waiting_for} for {waited_s:.0f} s: {remedy}")

    def warn(self, sentences: Iterable[str]) -> None:
        """Adds warnings of the run as a whole."""
        for sentence in sentences:
            self.warnings.add(sentence)
            self._on_warned(sentence)

    def warn_late(self) -> None:
        """Adds, once, the warnings that depend on the length of episodes, when that is known."""
        if self._is_warned_late or self.tally.num_episodes < _MIN_EPISODES:
            return
        from muxrl.orchestrator.config.warnings import find_late  # it imports Gymnasium

        self._is_warned_late = True
        self.warn(find_late(self._experiment, self.tally.env_steps / self.tally.num_episodes))

    def all_warnings(self, servers: Servers) -> dict[str, list[ServerWarning]]:
        """Returns warnings by id of a server that has reported; "" stands for the run itself."""
        of_servers = {s: list(status.warnings) for s, status in servers.statuses.items()}
        return {"": self.warnings.found} | of_servers

    def end(
        self,
        outcome: EndState,
        problem: str,
        unsaved: list[str],
        lost: str | None,
        advice: Callable[[RunDirectory], str],
    ) -> RunResult:
        """Writes how the run has ended, and its report.

        Args:
            outcome: how the run ended; if something could not be saved, "done" becomes "failed".
            problem: a sentence on why it is not "done".
            unsaved: a sentence for each thing that could not be saved; further ones are added.
            lost: a sentence on training that is in no checkpoint, "" if all is; None: the run has
                not begun, and there is nothing to report.
            advice: returns what can be done about a failure.
        """
        self.metrics.close()
        env_steps = self.tally.env_steps

        def note(*sentences: str, is_failure: bool = True) -> None:
            nonlocal outcome, problem
            if is_failure and sentences and outcome == "done":
                outcome = "failed"
            problem = "; ".join(filter(None, [problem, *sentences]))
            self.status.enter(outcome, env_steps, problem)

        # A run that has failed reports its cause, not the consequences.
        note(*(() if outcome == "failed" else unsaved))
        report = None
        if lost is not None:
            if problem:
                note(lost, is_failure=False)
            if outcome == "failed":
                note(advice(self._folder))
            try:
                doing("writing the report")
                from muxrl.orchestrator.reports.report import write_report  # it imports matplotlib

                report = write_report(self._folder)
            except (NotARunDirectory, OSError) as error:  # the folder may be gone
                unsaved.append(f"the report is incomplete: {error}")
                note(unsaved[-1])
        if not_copied := self.copy.finish(self._experiment.config.timeouts.save_s):
            unsaved.append(not_copied)
            note(not_copied)
        return RunResult(self._folder.path, outcome, problem, env_steps, self.tally.time_s, report)

    def close(self) -> None:
        """Closes the metrics files and the trackers."""
        self.metrics.close()
        self._trackers.close()
