"""A run between start and stop: its servers and simulations, watched and evaluated.

Everything runs in processes of its own; this one holds the run directory and watches. A `Run`
prints nothing, and is asked for one round of watching at a time, so that a sweep can hold one in
each of its trials. `whole_run` puts signals and a terminal around it.
"""

from __future__ import annotations

import contextlib
import logging
import sys
import time
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Any

from muxrl.orchestrator.config import Experiment
from muxrl.orchestrator.doing import doing
from muxrl.orchestrator.errors import NotARunDirectory, NotSaved, RunFailed
from muxrl.orchestrator.launch.checkpoints import Checkpoints
from muxrl.orchestrator.launch.evaluation import Evaluations
from muxrl.orchestrator.launch.parameters import ParameterProgress
from muxrl.orchestrator.launch.progress import Snapshot, warned_of
from muxrl.orchestrator.launch.result import RunResult
from muxrl.orchestrator.launch.server_reports import ServerReports
from muxrl.orchestrator.launch.stop_conditions import StopConditions
from muxrl.orchestrator.launch.tally import Tally
from muxrl.orchestrator.records.metrics import MetricsWriter
from muxrl.orchestrator.records.plan import groups_of
from muxrl.orchestrator.records.rows import EvaluationRow
from muxrl.orchestrator.records.run_directory import RunDirectory
from muxrl.orchestrator.records.run_status import EndState, StatusFile, read_status
from muxrl.orchestrator.storage.checkpoints import CheckpointFolder, Manifest
from muxrl.orchestrator.storage.remote_copy import RemoteCopy
from muxrl.orchestrator.supervise.episodes import truncated_text
from muxrl.orchestrator.supervise.gateway_process import GATEWAY
from muxrl.orchestrator.supervise.local import Workers
from muxrl.orchestrator.supervise.placement import has_evaluations
from muxrl.orchestrator.supervise.servers import Servers
from muxrl.orchestrator.supervise.signals import are_signals_claimed, uninterrupted
from muxrl.orchestrator.supervise.simulation_process import SimulationReport
from muxrl.orchestrator.supervise.simulations import Simulations
from muxrl.orchestrator.trackers.tracking import Tracking
from muxrl.protocol.messages import ServerWarning, Status
from muxrl.protocol.run_messages import UNTRAINED
from muxrl.servers.episodes.warnings import Warnings

logger = logging.getLogger(__name__)

_ANSWER_S = 1.0
"""For the reports of a round; one that takes longer is taken in in a later round."""
_TELLING_EPISODES = 20
"""By then it is known how long episodes are, more or less."""


class Run:
    """One run.

    Call `start`, `begin`, `watch` until it returns True, `finish`, `end` however that went, and
    `close` in any case.

    Args:
        experiment: resolved.
        folder: the run's directory.
        before: the checkpoint from which the run goes on, whose files the plans of the servers
            name; None: it is new.
        on_evaluated: called with each evaluation with all agents as learned.
        on_warned: called with each sentence that the run as a whole is warned of, which it records.

    Raises:
        ConfigError: there can be no copy in `storage_path`.
    """

    def __init__(
        self,
        experiment: Experiment,
        folder: RunDirectory,
        before: Manifest | None = None,
        on_evaluated: Callable[[EvaluationRow], None] = lambda row: None,
        on_warned: Callable[[str], None] = lambda sentence: None,
    ) -> None:
        self.experiment = experiment
        self._on_evaluated, self._on_warned = on_evaluated, on_warned
        self.config = experiment.config
        parent = f"{folder.sweep.name}/runs/" if folder.sweep else ""
        self._copy = RemoteCopy(
            folder.path,
            self.config.storage_path,
            f"{parent}{folder.path.name}",
            is_new=before is None,
        )
        agents = {server_id: plan.agents for server_id, plan in experiment.servers.items()}
        parameters = ParameterProgress(self.config.simulation.parameters, agents)
        self.tally = Tally(parameters, groups_of(folder.read_plan()))
        if before is not None:
            self.tally.restore(before.tally)
        status = read_status(folder) if before else None
        self.status = StatusFile(folder, status, ends_on_sigterm=are_signals_claimed())
        self.has_started = False
        """Whether all processes have come up."""
        self.on_wait: Callable[[], None] = lambda: None
        """Called about twice a second while an evaluation holds `begin` or `finish`."""
        self.not_evaluated = ""
        """Why there is no evaluation at the end, where one was to be."""
        self.unsaved: list[str] = []
        """What could not be saved at its end, and why, in a sentence each."""
        self.warnings = Warnings(lambda: self.tally.env_steps)
        """What the run itself was warned of."""
        if status is not None:  # at its start it is warned anew
            self.warnings.restore(one for one in status.warnings.get("", ()) if one.text)
        self._folder = folder
        at = (before.env_steps, before.metrics_bytes) if before else ()
        self._trackers = Tracking(folder, self.config.trackers, *at)
        self._metrics = MetricsWriter(folder, self._trackers.take)
        self._before = before
        self._reports = ServerReports(experiment, self._metrics, self.tally)
        self._servers = Servers(
            experiment,
            folder,
            self._reports.take,
            self._note_server_restart,
            self._note_move,
        )
        self._simulations = Simulations(
            experiment.config,
            folder,
            self._take_played,
            self._note_players_restart,
            before.num_episodes_begun if before else None,
            self._parameters(),
        )
        self._evaluations: Evaluations | None = None
        self._stop_conditions = StopConditions(self.config.stop, experiment.fixed_servers)
        self._checkpoints = Checkpoints(
            self.config.checkpoint,
            CheckpointFolder(folder.checkpoints),
            self._metrics,
            self.tally,
            self.warnings,
            before,
            experiment.judged,
        )
        self._workers: Workers | None = None
        self._is_warned = not experiment.may_be_warned_late
        self._is_complete = False
        self._has_ended = False  # learning is over, and the last checkpoint written if it can be
        self._is_stopped = False
        self._warn(experiment.warnings)

    def _warn(self, sentences: Iterable[str]) -> None:
        for sentence in sentences:
            self.warnings.add(sentence)
            self._on_warned(sentence)

    # --- start --------------------------------------------------------------------------

    def start(self, workers: Workers) -> None:
        """Starts the servers, and once all are ready the simulations.

        Args:
            workers: where all processes go.

        Raises:
            RunFailed: one of them did not come up.
        """
        self._workers = workers
        self._servers.start(workers)
        self._simulations.start(self._servers.addresses, workers)
        self._warn(self._servers.lacking)
        if self._simulations.gateway_address:
            self._folder.write_gateway(self._simulations.gateway_address)
        if has_evaluations(self.config):
            self._evaluations = Evaluations(
                self.experiment,
                self._servers.addresses,
                self._folder,
                self._metrics,
                workers,
                self._note_players_restart,
                self._before.evaluation_due_at if self._before else None,
                (lambda: self._simulations.gateway) if self.experiment.is_external else None,
                self._note_evaluated,
                self._note_truncated,
            )
        self.has_started = True

    def begin(self) -> None:
        """Evaluates the untrained policies, if evaluations are scheduled; then lets all play.

        A run that is resumed drops the metrics that came after its checkpoint instead.

        Raises:
            RunFailed: a process died, or a metrics file cannot be cut.
        """
        if self._before is not None:
            self._metrics.cut_back(self._before.metrics_bytes, self._before.env_steps)
            if self._evaluations is not None:
                self._evaluations.take_up(self._folder.metrics / "evaluation.jsonl")
        elif (
            self._evaluations is not None
            and self.config.evaluation.interval_env_steps
            and not self.experiment.is_external  # there may be no simulation yet
        ):
            self.status.enter("evaluating", 0)
            self._evaluations.begin(0, 0.0)
            self._evaluations.wait(self._look_on)
        self.status.enter("running", self.tally.env_steps)
        self._simulations.play()
        self._allow()
        self.tally.begin()

    # --- watch --------------------------------------------------------------------------

    def watch(self) -> bool:
        """Looks after the run for `metrics_interval_s`, and writes metrics.

        Returns:
            Whether a stop condition holds now, and no server is being started again.

        Raises:
            RunFailed: a process was lost once too often, or training failed.
        """
        time_s = self.config.metrics_interval_s
        if self._simulations.is_used_up and self._evaluations is not None:
            time_s = self._evaluations.rest(time_s)
        self._simulations.watch(time_s, self._servers.notice_deaths)
        self._look()
        if self._simulations.is_used_up:
            self._simulations.report_now()
            self._servers.report_now()
        self.tally.tick()
        if not self._is_warned and self.tally.num_episodes >= _TELLING_EPISODES:
            from muxrl.orchestrator.config.warnings import find_late  # it imports torch

            self._is_warned = True
            length = self.tally.env_steps / self.tally.num_episodes
            self._warn(find_late(self.experiment, length))
        if self._evaluations is not None:
            self._take_evaluations(self._evaluations)
        self._simulations.tell(self._parameters())
        self._allow()
        self._record()
        if self._servers.restarting:
            return False
        if self._checkpoints.is_due:
            self._save()
            self._allow()
        return self._stop_conditions.reached(self.tally, self.statuses)

    def _look(self) -> bool:
        """Takes in reports, and has processes that were lost be started again.

        Returns:
            Whether all servers listen.

        Raises:
            RunFailed: as `watch`.
        """
        if self._workers is not None:
            self._workers.check()
        self._servers.ask()
        self._simulations.ask()
        self._servers.collect(_ANSWER_S)
        self._simulations.collect(_ANSWER_S)
        if self.experiment.is_external and not self.tally.has_played:
            self.tally.set_external(self.statuses)  # its simulations ask the servers themselves
        return not self._servers.restarting

    def _take_played(self, name: str, report: SimulationReport) -> None:
        self.tally.add(name, report)
        if name == GATEWAY and self._evaluations is not None:
            self._evaluations.note(report)

    def _look_on(self) -> None:
        self._look()
        self.on_wait()

    def _note_truncated(self, num: int) -> None:
        text = truncated_text(self.config.evaluation.max_episode_steps)
        self.warnings.add("evaluation episodes truncated", text, num=num)

    def _look_and_record(self) -> bool:
        all_listen = self._look()
        self.tally.tick()
        self._record()
        return all_listen

    def _record(self) -> None:
        servers = self._reports.states(self._servers.restarting)
        self._metrics.joint(self.tally.row(servers))
        self.status.warn(self._all_warnings, self._checkpoints.problem)

    def _note_server_restart(self, server_id: str, saved: Manifest | None) -> None:
        """A server goes back to a checkpoint: what it learned since is lost, and its records."""
        length = saved.metrics_bytes.get(f"{server_id}.jsonl", 0) if saved else 0
        self._reports.cut_back(server_id, length)
        if self._evaluations is not None:
            has_weights = saved is not None and saved.servers[server_id].files
            env_steps = saved.env_steps if saved is not None and has_weights else 0
            self._evaluations.note_server_restart(server_id, env_steps)
        self._note_restart(server_id)

    def _note_move(self, server_id: str, address: str) -> None:
        logger.warning("server %r is at %s now", server_id, address)
        self._simulations.move(server_id, address)
        if self._evaluations is not None:
            self._evaluations.move(server_id, address)

    def _note_players_restart(self, name: str, prefix: str | None) -> None:
        if prefix is not None:  # else its episodes expire
            self._servers.abort_episodes(prefix)
        self._note_restart(name)

    def _note_evaluated(self, row: EvaluationRow) -> None:
        self._checkpoints.judge(row)
        self._on_evaluated(row)

    def _note_restart(self, name: str) -> None:
        self.tally.restart(name)
        self.status.note_restart(name)

    def _take_evaluations(self, evaluations: Evaluations) -> None:
        evaluations.collect()
        is_learning = self._simulations.is_used_up and self._servers.is_waited_for
        is_settled = not (is_learning or self._servers.restarting)
        if is_settled and evaluations.is_due(self.tally.env_steps):
            if self.config.checkpoint.best is not None and self._save():
                self._checkpoints.note_evaluation(self.tally.env_steps)
            evaluations.begin_next(self.tally.env_steps, self.tally.time_s)

    def _allow(self) -> None:
        """Lets simulations play up to the budget, evaluation or snapshot, and wait for that.

        External ones evaluate with the episodes that they begin, and so wait for the budget alone.
        """
        evaluations = None if self.experiment.is_external else self._evaluations
        points = [self.config.stop.env_steps]
        if not self.experiment.is_external:
            points.append(self._checkpoints.next_snapshot_at)
        if evaluations:
            points.append(evaluations.next_at)
        known = [point for point in points if point is not None]
        if known and not (evaluations and evaluations.is_running):
            self._simulations.allow(min(known) - self.tally.env_steps)

    def _parameters(self) -> dict[str, Any]:
        return self.tally.parameters.now(self.tally.env_steps)

    def _save(self, *, is_last: bool = False, update_s: float | None = None) -> bool:
        """Writes a checkpoint of all servers; returns whether it could be written.

        Raises:
            RunFailed: a process was lost once too often.
        """
        is_written = self._checkpoints.write(
            self._servers,
            self._simulations,
            self._evaluations,
            update_s=self.config.timeouts.update_s if update_s is None else update_s,
            look=self._look_and_record,
            is_last=is_last,
        )
        self._copy.update()
        return is_written

    # --- what it says of itself ---------------------------------------------------------

    @property
    def statuses(self) -> Mapping[str, Status]:
        """The newest status of each server that has reported."""
        return self._servers.statuses

    @property
    def _all_warnings(self) -> dict[str, list[ServerWarning]]:
        """By server, and those of the run itself as ""."""
        of_servers = {server_id: status.warnings for server_id, status in self.statuses.items()}
        return {"": self.warnings.found, **of_servers}

    @property
    def evaluated(self) -> EvaluationRow | None:
        """The newest evaluation with all agents as learned."""
        return self._evaluations.latest if self._evaluations is not None else None

    @property
    def addresses_text(self) -> str:
        """Which server listens where, for people."""
        gateway = self._simulations.gateway_address
        text = self._servers.addresses_text
        return text + (f"\ngateway to all of them: http://{gateway}" if gateway else "")

    def snapshot(self) -> Snapshot:
        """Returns how the run stands; of servers that have not reported, what is known before."""
        tally = self.tally
        return Snapshot(
            tally.time_s,
            tally.env_steps,
            tally.env_steps_per_s,
            tally.num_episodes,
            self._stop_conditions.time_left_s(tally, self.statuses),
            self._stop_conditions.text,
            self._reports.snapshots(self.statuses, self._servers.restarting),
            "; ".join(filter(None, (self._awaited, tally.restarts_text))),
            self._evaluations.text if self._evaluations is not None else "",
            warned_of(self._all_warnings),
            self._checkpoints.problem,
        )

    @property
    def _awaited(self) -> str:
        """What the first env step waits for, for people; "" once there is one."""
        if self.tally.has_played:
            return ""
        if not self.experiment.is_external:
            return "simulations start"
        return f"waiting for a simulation at {self._simulations.gateway_address}"

    # --- end ----------------------------------------------------------------------------

    def finish(self) -> None:
        """Ends playing and learning, saves what was learned, and evaluates it.

        Raises:
            RunFailed: a process died, or nothing was played.
        """
        doing("saving what was learned" if self.config.checkpoint.at_end else "ending learning")
        while not self._end_learning(self.config.timeouts.update_s):
            while not self._look():
                time.sleep(self.config.metrics_interval_s)
        if self._reports.not_updated():
            self._look_and_record()  # one may have made its first update by now
        self._simulations.stop()
        if self.tally.env_steps > self._metrics.recorded_env_steps:  # played since the last look
            self.tally.tick()
            self._record()
        before = None if self._before is None else self._before.env_steps
        self._simulations.check_played(self.tally.env_steps, before, self.tally.time_s)
        is_wanted = self.tally.has_played and self.config.evaluation.final_num_episodes > 0
        if self._evaluations and (is_wanted or not self.experiment.is_external):
            self.status.enter("evaluating", self.tally.env_steps)
            point = min(self.config.stop.env_steps or sys.maxsize, self.tally.env_steps)
            offers, learning = self._servers.offers, self.experiment.learning
            not_updated = self._reports.not_updated()
            not_updated |= {s for s in learning if UNTRAINED not in offers[s]}
            try:
                self._evaluate_at_end(self._evaluations, point, not_updated)
                self.not_evaluated = self._evaluations.given_up
            except RunFailed as error:  # what was learned is saved, and paid for
                kept = "" if self._checkpoints.lost else "; all that was learned is kept"
                if kept and not self.experiment.is_external:
                    kept += f", and once that is mended: muxrl evaluate {self._folder.path}"
                self.not_evaluated = f"the evaluation at the end failed: {error}{kept}"
        if self.tally.has_restarted:  # in the evaluation: the row says when
            self.tally.tick()
            self._record()
        self._is_complete = True

    def _evaluate_at_end(
        self, evaluations: Evaluations, point: int, not_updated: Collection[str]
    ) -> None:
        evaluations.wait(self._look_on)
        if self.config.evaluation.final_num_episodes > 0:
            if self.config.checkpoint.at_end and not self._checkpoints.problem:
                self._checkpoints.note_evaluation(self.tally.env_steps)
            evaluations.begin(
                self.tally.env_steps,
                self.tally.time_s,
                point=point,
                is_final=True,
                not_updated=not_updated,
            )
            evaluations.wait(self._look_on)

    def _end_learning(self, update_s: float) -> bool:
        """Ends learning, where episodes end if they do soon, with a last checkpoint; once.

        Returns:
            Whether it has ended: no server was lost meanwhile.
        """
        if self._has_ended:
            return True
        self._has_ended = True
        if self.config.checkpoint.at_end:
            self._save(is_last=True, update_s=update_s)
        else:
            with contextlib.suppress(NotSaved):  # one was lost
                self._servers.finish_training(update_s)
        self._has_ended = not self._servers.restarting
        return self._has_ended

    def stop(self, *, is_meant: bool = False) -> None:
        """Ends every process that is left; saves a last checkpoint; never raises; once.

        None is saved where a server has died or its weights are not finite: the last whole one
        counts.

        Args:
            is_meant: whether somebody has ended the run; then external simulations may end, too.
        """
        if self._is_stopped:
            return
        self._is_stopped = True
        problems = self.unsaved
        self._servers.may_restart = self._simulations.may_restart = False
        try:
            if not self.has_started:  # nothing to save, and what is still made does not answer
                self._servers.kill()
            elif not self._has_ended:
                self._servers.notice_deaths()  # else simulations would wait for it
                if lost := self._servers.restarting:
                    raise RunFailed(f"{', '.join(lost)} was lost and does not listen again yet")
                self._end_learning(self.config.timeouts.stop_s)
        except RunFailed as error:
            problems.append(f"no checkpoint at the end: {error}")
        except Exception as error:  # shutdown must run to completion
            logger.exception("saving at the end")
            problems.append(f"no checkpoint at the end: {type(error).__name__}: {error}")
        try:
            self._simulations.stop()
            is_well = self._is_complete or is_meant
            how = "has ended early; see its report"
            if is_well:
                how = "has come to its end" if self._is_complete else "was ended"
            self._simulations.end(f"run {self._folder.name!r} {how}", has_ended_well=is_well)
            self._servers.stop()
        except Exception as error:  # likewise
            logger.exception("stopping the processes")
            problems.append(f"stopping the processes: {type(error).__name__}: {error}")
        if self._evaluations is not None:
            self._evaluations.stop()
        if self.config.checkpoint.at_end and self._checkpoints.problem:
            problems.insert(0, self._checkpoints.problem)

    def end(
        self,
        outcome: EndState,
        problem: str = "",
        advice: Callable[[RunDirectory], str] = lambda folder: "",
    ) -> RunResult:
        """Ends the run, and writes down how it has ended, and its report.

        Args:
            outcome: how; what is "done" and could not be saved has "failed".
            problem: why it is not "done", in a sentence.
            advice: returns what can be done about a failure.
        """
        self.stop(is_meant=outcome != "failed")
        self._metrics.close()
        self.status.warn(self._all_warnings, self._checkpoints.problem)
        env_steps = self.tally.env_steps

        def note(*sentences: str, is_failure: bool = True) -> None:
            nonlocal outcome, problem
            if is_failure and sentences and outcome == "done":
                outcome = "failed"
            problem = "; ".join(filter(None, [problem, *sentences]))
            self.status.enter(outcome, env_steps, problem)

        # A run that has failed reports its cause, not the consequences.
        note(*(() if outcome == "failed" else self.unsaved))
        report = None
        if self.has_started:
            if problem:
                note(self._checkpoints.lost, is_failure=False)
            if outcome == "failed":
                note(advice(self._folder))
            try:
                doing("writing the report")
                from muxrl.orchestrator.reports.report import write_report  # it imports matplotlib

                report = write_report(self._folder)
            except (NotARunDirectory, OSError) as error:  # the folder may be gone
                self.unsaved.append(f"the report is not whole: {error}")
                note(self.unsaved[-1])
        if not_copied := self._copy.finish(self.config.timeouts.save_s):
            self.unsaved.append(not_copied)
            note(not_copied)
        return RunResult(self._folder.path, outcome, problem, env_steps, self.tally.time_s, report)

    def close(self) -> None:
        """Ends what is left of the run, its trackers too."""
        with uninterrupted():
            self.stop()
            self._metrics.close()
            self._trackers.close()
