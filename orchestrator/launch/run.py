"""The life of a run: start, evaluate, learn, save, finish, report.

Read `Run.play` first, from top to bottom. Servers, simulations and evaluations run in separate
processes, each with a `Life`; this process owns the run directory and watches them. A `Run` prints
nothing, and continues only while somebody iterates over it, so that each trial of a sweep can have
one. `whole_run` adds signals and a terminal.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import sys
import time
from collections.abc import Callable, Coroutine, Iterator
from typing import Any

from muxrl.orchestrator.config import Experiment
from muxrl.orchestrator.doing import doing
from muxrl.orchestrator.errors import NotSaved, RunFailed
from muxrl.orchestrator.launch.checkpoints import Checkpoints
from muxrl.orchestrator.launch.evaluation import Evaluations
from muxrl.orchestrator.launch.joining import how_to_join
from muxrl.orchestrator.launch.progress import Snapshot, warned_of
from muxrl.orchestrator.launch.result import RunResult
from muxrl.orchestrator.launch.run_records import RunRecords
from muxrl.orchestrator.launch.stop_conditions import StopConditions
from muxrl.orchestrator.records.rows import EvaluationRow
from muxrl.orchestrator.records.run_directory import RunDirectory
from muxrl.orchestrator.records.run_status import EndState, State
from muxrl.orchestrator.storage.checkpoints import CheckpointFolder, Manifest
from muxrl.orchestrator.supervise.event_loop import EventLoop, again_and_again, first_of
from muxrl.orchestrator.supervise.gateway_process import GATEWAY
from muxrl.orchestrator.supervise.life import Supervisor
from muxrl.orchestrator.supervise.local import Workers
from muxrl.orchestrator.supervise.servers import Servers
from muxrl.orchestrator.supervise.signals import uninterrupted
from muxrl.orchestrator.supervise.simulation_process import SimulationReport
from muxrl.orchestrator.supervise.simulations import Simulations
from muxrl.protocol.run_messages import UNTRAINED

logger = logging.getLogger(__name__)

_ANSWER_S = 1.0
"""How long a round waits for reports; a later report is read in a later round."""
_UPDATE_LOOK_S = 0.02
"""Before an evaluation: interval between two checks whether updates have ended."""
_LOOK_S = 0.5
"""Interval between two looks at all processes during an evaluation."""


class Run:
    """One run.

    Iterate over `play`; then call `end`, whether that raised or not, and `close` in any case.

    Args:
        experiment: the resolved experiment.
        folder: the run's directory.
        before: the checkpoint from which the run continues, to whose files the plans of the servers
            refer; None: the run is new.
        on_evaluated: called with each evaluation in which all agents act as learned.
        on_warned: called with each warning of the run as a whole, which is also recorded.

    Raises:
        ConfigError: no copy can be kept in `storage_path`.
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
        self._on_evaluated = on_evaluated
        self.config = experiment.config
        self._records = RunRecords(experiment, folder, before, on_warned)
        self.tally, self.status = self._records.tally, self._records.status
        self.has_started = False
        """Whether all processes have come up."""
        self.is_training = False
        """Whether simulations play training episodes."""
        self.is_enough = False
        """Set it to end training although no stop condition holds."""
        self.stopped_by = ""
        """The stop condition that has ended training, as text for people; "" if none has."""
        self.not_evaluated = ""
        """Why the evaluation at the end is missing or not whole; "" if all is well."""
        self.unsaved: list[str] = []
        """A sentence for each thing that could not be saved at the end, and why."""
        self._folder = folder
        self._before = before
        self._num_before = 0 if before is None else before.env_steps
        self._supervisor = Supervisor(self.config, folder)
        self._supervisor.on_restart = self._note_players_restart
        self.servers = Servers(
            experiment,
            self._supervisor,
            self._records.servers.receive,
            self._note_server_restart,
            self._note_move,
        )
        self._simulations = Simulations(
            self._supervisor,
            self._take_played,
            self.servers.notice_deaths,
            before.num_episodes_begun if before else None,
            self._parameters(),
        )
        self._evaluations = Evaluations(
            experiment,
            self._supervisor,
            self._records,
            before.evaluation_due_at if before else None,
            self._simulations.gateway,
            self._note_evaluated,
        )
        self._stop_conditions = StopConditions(self.config.stop, experiment.fixed_servers)
        evaluation = self.config.evaluation
        self._checkpoints = Checkpoints(
            self.config.checkpoint,
            CheckpointFolder(folder.checkpoints),
            self._records,
            before,
            experiment.judged,
            min(evaluation.num_episodes, evaluation.final_num_episodes or evaluation.num_episodes),
        )
        self._loop = EventLoop()
        self._life: asyncio.Task[None] | None = None
        self._changed = asyncio.Event()
        self._is_complete = False
        self._has_ended = False  # learning is over, and the last checkpoint written if it can be
        self._is_stopped = False

    # --- its life -----------------------------------------------------------------------

    def play(self, workers: Workers) -> Iterator[None]:
        """Starts all processes, trains until a stop condition holds, and evaluates.

        Args:
            workers: starts the processes.

        Yields:
            First once all servers listen; then whenever something is new, and at least twice a
            second.

        Raises:
            RunFailed: a process did not come up, or was lost too often; training failed; or nothing
                was played.
            OSError: the run directory cannot be written to.
        """
        for _ in self._during(self._supervisor.unless_lost(self._start(workers))):
            pass
        yield
        yield from self._during(self._supervisor.unless_lost(self._learn()))
        yield from self._during(self._evaluate_at_end())
        self._is_complete = True

    def _during(self, work: Coroutine[Any, Any, None]) -> Iterator[None]:
        self._life = self._loop.begin(work)
        while not self._life.done():
            self._loop.run(self._wait_for_news(self._life))
            yield
        self._life.result()

    async def _wait_for_news(self, life: asyncio.Task[None]) -> None:
        changed = asyncio.ensure_future(self._changed.wait())
        await asyncio.wait([life, changed], timeout=_LOOK_S, return_when=asyncio.FIRST_COMPLETED)
        changed.cancel()
        self._changed.clear()

    async def _start(self, workers: Workers) -> None:
        """Starts servers and simulations at once; simulations connect once all servers listen."""
        self._supervisor.workers = workers
        self._evaluations.prepare()
        self._simulations.prepare()
        await self.servers.start()
        await self._simulations.start(self.servers.addresses)
        self._records.warn(self.servers.lacking)
        if (gateway := self._simulations.gateway) is not None:
            self._folder.write_gateway(gateway.address)
        self._evaluations.start(self.servers.addresses)
        self.has_started = True

    async def _learn(self) -> None:
        if self._before is not None:
            # Metrics that were written after the checkpoint are dropped.
            self._records.metrics.cut_back(self._before.metrics_bytes, self._before.env_steps)
            self._evaluations.resume(self._folder.metrics / "evaluation.jsonl")
        else:
            await self._evaluate_untrained()
        self._enter("running")
        self._simulations.play()
        self._allow()
        self.tally.begin()
        self.is_training = True
        while not (await self._is_over() or self.is_enough):
            pass
        self.status.note_stop(self.stopped_by)
        doing("saving what was learned" if self.config.checkpoint.at_end else "ending learning")
        while not await self._end_learning(self.config.timeouts.update_s):
            while self.servers.restarting:
                await asyncio.sleep(self.config.metrics_interval_s)
                await self._look()
        await self._end_playing()

    async def _evaluate_untrained(self) -> None:
        """Evaluates the policies as they begin, if evaluations are scheduled."""
        # There may be no external simulation yet.
        if self._evaluations.next_at is None or self.experiment.is_external:
            return
        self._enter("evaluating")
        self._evaluations.begin(0, 0.0)
        await self._wait_for_evaluation()

    async def _is_over(self) -> bool:
        """Runs one round of training, of about `metrics_interval_s`, and writes metrics.

        Returns:
            Whether a stop condition holds now, and no server is being started again.
        """
        await self._rest(self.config.metrics_interval_s)
        await self._look()
        if self._simulations.is_used_up:
            await self._simulations.report_now()
            await self.servers.report_now()
        self._tick()
        self._records.warn_late()
        await self._evaluate_if_due()
        self._simulations.set_parameters(self._parameters())
        self._allow()
        self.servers.set_paused(self._simulations.is_used_up)
        self._record()
        if self.servers.restarting:
            return False
        if self._checkpoints.is_due:
            await self._save()
            self._allow()
        self.stopped_by = self._stop_conditions.reached(self.tally, self.servers.statuses)
        return bool(self.stopped_by)

    async def _rest(self, time_s: float) -> None:
        """Waits for `time_s`, or less if simulations, or what they wait for, are done before."""
        if not self._simulations.is_used_up:
            await self._simulations.rest(time_s)
        elif self._evaluations.is_running:
            await self._evaluations.rest(time_s)
        else:
            await asyncio.sleep(time_s)

    async def _evaluate_if_due(self) -> None:
        if not self._evaluations.is_due(self.tally.env_steps):
            return
        # First servers learn from all that was played up to here; then their weights stay the same.
        is_settled = not self._simulations.is_used_up or await self._end_updates()
        if is_settled and not self.servers.restarting:
            if self.config.checkpoint.best is not None and await self._save():
                self._checkpoints.note_evaluation(self.tally.env_steps)
            self._evaluations.begin_next(self.tally.env_steps, self.tally.time_s)

    async def _end_updates(self) -> bool:
        """Waits for updates under way for `metrics_interval_s`; returns whether all are done."""
        until = time.monotonic() + self.config.metrics_interval_s
        while any(status.is_learning for status in self.servers.statuses.values()):
            if time.monotonic() > until:
                return False
            await asyncio.sleep(_UPDATE_LOOK_S)
            await self.servers.report_now()
        return True

    async def _end_learning(self, update_s: float) -> bool:
        """Ends learning, with a last checkpoint. Once it has ended, further calls do nothing.

        Simulations are held for the checkpoint, at the ends of episodes that end soon.

        Returns:
            Whether learning has ended; not if a server was lost meanwhile.
        """
        if self._has_ended:
            return True
        self._has_ended = True
        if self.config.checkpoint.at_end:
            await self._save(is_last=True, update_s=update_s)
        else:
            with contextlib.suppress(NotSaved):  # a server was lost
                await self.servers.finish_training(update_s)
        self._has_ended = not self.servers.restarting
        return self._has_ended

    async def _end_playing(self) -> None:
        if self._records.servers.not_updated():
            await self._look_and_record()  # a server may have made its first update by now
        self.is_training = False
        await self._simulations.stop()
        if self.tally.env_steps > self._records.metrics.recorded_env_steps:  # not yet recorded
            self.tally.tick()
            self._record()
        # A resumed run may have had nothing left to play but its evaluation.
        loss = self._simulations.last_loss
        if self._awaited and (loss or self._before is None):
            why = loss or f"none was ready, or could reach the servers; see {self._folder.logs}"
            played = f"no simulation finished an env step in {self.tally.time_s:.0f} s"
            raise RunFailed(f"{played}: {why}")

    async def _evaluate_at_end(self) -> None:
        is_wanted = self.tally.has_played and self.config.evaluation.final_num_episodes > 0
        is_scheduled = self._evaluations.next_at is not None  # an evaluation may be under way
        if is_wanted or (is_scheduled and not self.experiment.is_external):
            self._enter("evaluating")
            try:
                await self._supervisor.unless_lost(self._evaluate_final())
                self.not_evaluated = self._evaluations.given_up
            except RunFailed as error:  # training is done and saved, so the run has not failed
                kept = "" if self._checkpoints.lost else "; all that was learned is saved"
                if kept and not self.experiment.is_external:
                    kept += f"; once the cause is fixed: muxrl evaluate {self._folder.path}"
                self.not_evaluated = f"the evaluation at the end failed: {error}{kept}"
        if self.tally.has_restarted:  # during the evaluation; the row says when
            self.tally.tick()
            self._record()

    async def _evaluate_final(self) -> None:
        await self._wait_for_evaluation()
        if self.config.evaluation.final_num_episodes == 0:
            return
        if self.config.checkpoint.at_end and not self._checkpoints.problem:
            self._checkpoints.note_evaluation(self.tally.env_steps)
        not_updated, servers = self._records.servers.not_updated(), self.servers.of
        not_updated |= {s for s in self.experiment.learning if UNTRAINED not in servers[s].offers}
        self._evaluations.begin(
            self.tally.env_steps,
            self.tally.time_s,
            point=min(self.config.stop.env_steps or sys.maxsize, self.tally.env_steps),
            is_final=True,
            not_updated=not_updated,
        )
        await self._wait_for_evaluation()

    async def _wait_for_evaluation(self) -> None:
        """Waits until the evaluation is over, and looks after all processes meanwhile."""
        await first_of(self._evaluations.wait(), again_and_again(self._look_on, _LOOK_S))

    # --- looking after processes --------------------------------------------------------

    async def _look(self) -> None:
        """Receives the reports of all processes that answer soon."""
        self._supervisor.workers.check()
        those = self.servers, self._simulations, self._evaluations
        await asyncio.gather(*(one.report(_ANSWER_S) for one in those))
        if self.experiment.is_external and not self.tally.has_played:
            # Simulations may call the servers without the gateway.
            self.tally.set_external(self.servers.statuses)

    async def _look_on(self) -> None:
        if text := self._evaluations.text:
            what, _, how_far = text.partition(": ")
            doing(what, how_far)
        await self._look()

    async def _look_and_record(self) -> None:
        await self._look()
        self._tick()
        self._record()

    def _tick(self) -> None:
        """Reads the clock, which is set back until there is an env step.

        Once a simulation has been lost, time passes all the same: no simulation may ever play.
        """
        if self.is_training and self._awaited and not self._simulations.last_loss:
            self.tally.begin()
        else:
            self.tally.tick()
        gateway, log = self._simulations.gateway, self._folder.log("simulation-0")
        remedy = how_to_join(self.config, gateway.address, log) if gateway else ""
        self._records.note_waiting(self._awaited, remedy)

    def _record(self) -> None:
        self._records.write(self.servers, self._checkpoints.problem)
        self._changed.set()

    def _enter(self, state: State) -> None:
        self.status.enter(state, self.tally.env_steps)
        self._changed.set()

    def _allow(self) -> None:
        """Lets simulations play up to the next stop, evaluation or snapshot, where they wait.

        External simulations do not wait for evaluations, which they play themselves.
        """
        is_external = self.experiment.is_external
        points = [self.config.stop.env_steps, self._checkpoints.next_snapshot_at]
        if not is_external:
            points.append(self._evaluations.next_at)
        known = [point for point in points if point is not None]
        if known and (is_external or not self._evaluations.is_running):
            self._simulations.allow(min(known) - self.tally.env_steps)

    def _parameters(self) -> dict[str, Any]:
        return self.tally.parameters.now(self.tally.env_steps)

    async def _save(self, *, is_last: bool = False, update_s: float | None = None) -> bool:
        """Writes a checkpoint of all servers; returns whether it was written."""
        self.servers.set_paused(True)
        is_written = await self._checkpoints.write(
            self.servers,
            self._simulations,
            self._evaluations,
            update_s=self.config.timeouts.update_s if update_s is None else update_s,
            look=self._look_and_record,
            is_last=is_last,
        )
        self._records.copy.update()
        return is_written

    # --- events -------------------------------------------------------------------------

    def _take_played(self, name: str, report: SimulationReport) -> None:
        self.tally.add(name, report)
        if name == GATEWAY:
            self._evaluations.note(report)

    def _note_server_restart(self, server_id: str, saved: Manifest | None) -> None:
        """Drops the records of a server after the checkpoint from which it continues."""
        length = saved.metrics_bytes.get(f"{server_id}.jsonl", 0) if saved else 0
        self._records.servers.cut_back(server_id, length)
        has_weights = saved is not None and saved.servers[server_id].files
        env_steps = saved.env_steps if saved is not None and has_weights else 0
        self._evaluations.note_server_restart(server_id, env_steps)
        self._records.note_restart(server_id)

    def _note_move(self, server_id: str, address: str) -> None:
        logger.warning("server %r now listens on %s", server_id, address)
        self._simulations.move(server_id, address)
        self._evaluations.move(server_id, address)

    def _note_players_restart(self, name: str, prefix: str | None) -> None:
        if prefix is not None:  # else its episodes are unknown, and expire
            self.servers.abort_episodes(prefix)
        self._records.note_restart(name)

    def _note_evaluated(self, row: EvaluationRow) -> None:
        self._checkpoints.judge(row)
        self._on_evaluated(row)

    # --- its state ----------------------------------------------------------------------

    @property
    def evaluated(self) -> EvaluationRow | None:
        """The newest evaluation in which all agents act as learned."""
        return self._evaluations.latest

    @property
    def addresses_text(self) -> str:
        """Which server listens where, and the gateway, as text for people."""
        gateway = self._simulations.gateway
        text = self.servers.addresses_text
        return text + (f"\ngateway to all of them: http://{gateway.address}" if gateway else "")

    def snapshot(self) -> Snapshot:
        """Returns the state of the run; servers that have not reported are "starting"."""
        tally = self.tally
        return Snapshot(
            tally.time_s,
            tally.env_steps,
            tally.env_steps_per_s,
            tally.num_episodes,
            self._stop_conditions.time_left_s(tally, self.servers.statuses),
            self._stop_conditions.text,
            [self._records.servers.snapshot(one) for one in self.servers.of.values()],
            "; ".join(filter(None, (self._awaited, tally.restarts_text))),
            self._evaluations.text,
            warned_of(self._records.all_warnings(self.servers)),
            self._checkpoints.problem,
        )

    @property
    def _awaited(self) -> str:
        """What the first env step waits for, as text for people; "" once there is an env step."""
        if self.tally.env_steps > self._num_before:
            return ""
        gateway = self._simulations.gateway
        return f"waiting for a simulation at {gateway.address}" if gateway else "simulations start"

    # --- its end ------------------------------------------------------------------------

    def stop(self, *, is_meant: bool = False) -> None:
        """Saves a last checkpoint and ends all processes; never raises. A second call does nothing.

        No checkpoint is saved if a server has died or its weights are not finite: then the last
        whole checkpoint counts.

        Args:
            is_meant: whether somebody has ended the run on purpose, so that external simulations
                are told that it is over.
        """
        if not self._is_stopped:
            self._is_stopped = True
            self._loop.run(self._stop(is_meant))

    async def _stop(self, is_meant: bool) -> None:
        problems = self.unsaved
        self._supervisor.may_restart = False
        if self._life is not None:
            self._life.cancel()
            await asyncio.wait([self._life])
        try:
            if not self.has_started:  # nothing to save, and those that still start do not answer
                self.servers.kill()
            elif not self._has_ended:
                await self.servers.notice_deaths()  # else simulations would wait for a dead server
                if lost := self.servers.restarting:
                    raise RunFailed(f"{', '.join(lost)} was lost and has not restarted yet")
                await self._end_learning(self.config.timeouts.stop_s)
        except RunFailed as error:
            problems.append(f"no checkpoint at the end: {error}")
        except Exception as error:  # shutdown must run to completion
            logger.exception("saving at the end")
            problems.append(f"no checkpoint at the end: {type(error).__name__}: {error}")
        try:
            await self._simulations.stop()
            is_well = self._is_complete or is_meant
            how = "has ended early; see its report"
            if is_well:
                how = "has come to its end" if self._is_complete else "was ended"
            await self._simulations.end(f"run {self._folder.name!r} {how}", has_ended_well=is_well)
            await self.servers.stop()
        except Exception as error:  # likewise
            logger.exception("stopping the processes")
            problems.append(f"stopping the processes: {type(error).__name__}: {error}")
        await self._evaluations.stop()
        if self.config.checkpoint.at_end and self._checkpoints.problem:
            problems.insert(0, self._checkpoints.problem)

    def end(
        self,
        outcome: EndState,
        problem: str = "",
        advice: Callable[[RunDirectory], str] = lambda folder: "",
    ) -> RunResult:
        """Ends the run, and writes how it has ended, and its report.

        Args:
            outcome: how the run ended; if something could not be saved, "done" becomes "failed".
            problem: a sentence on why it is not "done".
            advice: returns what can be done about a failure.
        """
        self.stop(is_meant=outcome != "failed")
        self._records.write_warnings(self.servers, self._checkpoints.problem)
        lost = self._checkpoints.lost if self.has_started else None
        return self._records.end(outcome, problem, self.unsaved, lost, advice)

    def close(self) -> None:
        """Ends all that is left of the run, its trackers, too."""
        with uninterrupted():
            self.stop()
            self._loop.close()
            self._records.close()
