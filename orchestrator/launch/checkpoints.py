"""Decides when a run's checkpoints are due, and has all servers save at the same moment.

Simulations pause (see `EnvLoop.hold`), every server writes its part between two updates, and the
lengths of the metrics files are noted. Then simulations continue.
"""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Awaitable, Callable, Collection
from datetime import UTC, datetime

from muxrl.orchestrator.config import CheckpointConfig
from muxrl.orchestrator.errors import CannotRecord, NotSaved
from muxrl.orchestrator.launch.evaluation import Evaluations
from muxrl.orchestrator.launch.run_records import RunRecords
from muxrl.orchestrator.records.rows import EvaluationRow
from muxrl.orchestrator.records.series import evaluated
from muxrl.orchestrator.storage.checkpoints import CheckpointFolder, Manifest, best_name
from muxrl.orchestrator.storage.versions import installed_version
from muxrl.orchestrator.supervise.event_loop import again_and_again, first_of
from muxrl.orchestrator.supervise.servers import Servers
from muxrl.orchestrator.supervise.simulations import Simulations

_LOOK_S = 1.0


class Checkpoints:
    """The checkpoints of one run.

    A checkpoint that cannot be written is logged and leaves nothing behind. The next attempt comes
    when the next checkpoint is due.

    Args:
        config: when checkpoints are due, and which are kept.
        folder: the folder of the checkpoints.
        records: the run's records, whose warnings count failed checkpoints.
        before: the checkpoint from which the run was resumed; None: the run is new.
        judged: the agents by whose returns the best checkpoint is chosen; None: all agents.
        num_judged: how many episodes of an evaluation, from the first, are used for that; None:
            all.
    """

    def __init__(
        self,
        config: CheckpointConfig,
        folder: CheckpointFolder,
        records: RunRecords,
        before: Manifest | None = None,
        judged: Collection[str] | None = None,
        num_judged: int | None = None,
    ) -> None:
        self.problem = ""
        """A sentence on why the last checkpoint was not written; "" if it was."""
        self._config = config
        self._folder = folder
        self._records, self._tally = records, records.tally
        self._newest = before.env_steps if before else None
        self._judged, self._num_judged = judged, num_judged
        best = config.best
        self._best_by = "" if best is None else f"{best.mode} {best.name} of {best.of}"
        # Values of another metric cannot be compared. Older manifests do not name the metric.
        is_same = before is not None and before.best_by in ("", self._best_by)
        self._best = list(before.best) if before is not None and is_same else []
        self._evaluated: int | None = None
        self._schedule(before.env_steps if before else 0)

    def _schedule(self, env_steps: int) -> None:
        every = self._config.keep_every_env_steps
        # In wall time, from the end of the last attempt: a full disk may be slow.
        self._due_s = time.monotonic() + (self._config.interval_s or math.inf)
        self._due_env_steps = env_steps + (self._config.interval_env_steps or math.inf)
        self.next_snapshot_at = every and (env_steps // every + 1) * every
        """Env steps of the next multiple of `keep_every_env_steps`."""

    def _is_snapshot(self, env_steps: int) -> bool:
        """Whether a checkpoint now would be the first at or after another multiple of
        `keep_every_env_steps`; see `CheckpointFolder.snapshots`."""
        every = self._config.keep_every_env_steps
        return every is not None and env_steps // every > (self._newest or 0) // every

    @property
    def is_due(self) -> bool:
        """Whether it is time for the next checkpoint."""
        due_at = min(self._due_env_steps, self.next_snapshot_at or math.inf)
        return self._tally.env_steps >= due_at or time.monotonic() >= self._due_s

    @property
    def lost(self) -> str:
        """A sentence on training that is in no checkpoint; "" if all is."""
        lost = self._tally.env_steps - (self._newest or 0)
        if not lost:
            return ""
        if self._newest is None:
            return "all that was learned is lost: the run has no checkpoint"
        return (
            f"what was learned in the {lost:,} env steps after the newest checkpoint, at "
            f"{self._newest:,} env steps, is lost"
        )

    async def write(
        self,
        servers: Servers,
        simulations: Simulations,
        evaluations: Evaluations,
        *,
        update_s: float,
        look: Callable[[], Awaitable[object]],
        is_last: bool = False,
    ) -> bool:
        """Holds the simulations, writes a checkpoint, and lets them continue.

        Args:
            servers: the run's servers, which save.
            simulations: the run's simulations.
            evaluations: the run's evaluations.
            update_s: how long to wait for the end of a server's update.
            look: looks after all processes while simulations play to the ends of their episodes.
            is_last: whether the run ends here: learning ends, and simulations stay held.

        Returns:
            Whether the checkpoint was written; `problem` says why not.

        Raises:
            RunFailed: training has failed.
        """
        try:
            hold = simulations.hold(self._config.hold_s, update_s)
            late = await first_of(hold, servers.any_down(), again_and_again(look, _LOOK_S))
            if late is None or servers.restarting:
                lost = ", ".join(servers.restarting) or "a server"
                raise NotSaved(f"no checkpoint is written while {lost} is being started again")
            if late and not is_last:
                raise NotSaved(
                    f"no checkpoint: {', '.join(late)} did not pause in time; if single steps of "
                    "the simulation take that long, raise timeouts.update_s"
                )
            if is_last:
                await servers.finish_training(update_s)
            await simulations.report_now()  # of a dead simulation, the last report counts
            self._tally.tick()
            env_steps = self._tally.env_steps
            draft = self._folder.draft(env_steps)
            try:
                saved = await servers.save(draft, update_s)
                lengths = self._records.metrics.sync()
                if evaluations.is_running:
                    lengths["evaluation.jsonl"] = evaluations.bytes_before
                manifest = Manifest(
                    env_steps=env_steps,
                    time_s=self._tally.time_s,
                    written_at=datetime.now(UTC).isoformat(timespec="seconds"),
                    muxrl=installed_version(),
                    servers=saved,
                    num_episodes_begun=dict(simulations.num_episodes_begun),
                    metrics_bytes=lengths,
                    tally=self._tally.state(),
                    evaluation_due_at=evaluations.due_at,
                    best=tuple(self._best),
                    best_by=self._best_by,
                    is_snapshot=self._is_snapshot(env_steps),
                )
                self._folder.commit(draft, manifest)
            finally:
                self._folder.drop(draft)
            self._newest = env_steps
            self.problem = ""
        except CannotRecord:
            raise
        except (NotSaved, OSError) as error:
            self.problem = str(error)
            if isinstance(error, OSError):
                self.problem = f"no checkpoint: {error}"
            self._records.warnings.add("checkpoints refused", self.problem)
        finally:
            self._schedule(self._tally.env_steps)
            if not is_last:
                simulations.release()
        keep = [] if self._evaluated is None else [self._evaluated]
        self._folder.prune(self._config.keep_last, keep, self._config.keep_every_env_steps)
        return not self.problem

    # --- the best checkpoints -----------------------------------------------------------

    def note_evaluation(self, env_steps: int) -> None:
        """Notes that an evaluation of the newest checkpoint's policies begins."""
        self._evaluated = env_steps

    def judge(self, row: EvaluationRow) -> None:
        """Keeps the evaluated checkpoint if it is one of the best.

        Args:
            row: its evaluation, with all agents as learned.
        """
        if self._evaluated is None or self._config.best is None:
            return
        env_steps, self._evaluated = self._evaluated, None
        config = self._config.best
        value = evaluated(row, config.name, self._judged, self._num_judged)
        if value is None:
            return
        found = (env_steps, value)
        others = [one for one in self._best if one[0] != env_steps]
        # Among equals the first one wins.
        sign = -1 if config.mode == "max" else 1
        best = sorted([*others, found], key=lambda one: sign * one[1])[: config.keep]
        if found not in best:
            return
        with contextlib.suppress(OSError):
            for rank, (at, _) in enumerate(best):
                self._folder.link(best_name(rank), at)
            self._best = best
            self._folder.note_best(best, self._best_by)
