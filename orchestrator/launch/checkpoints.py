"""When a run's checkpoints are due, and how all of its servers come to save at one moment.

Simulations pause (see `EnvLoop.hold`), every server writes its part between two updates, and
metrics are noted as long as they are then. Simulations continue afterwards.
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

    One that cannot be written is logged, leaves nothing behind, and is tried again when the next
    one is due.

    Args:
        config: when they are due, and which are kept.
        folder: where they go.
        records: of the run; its warnings count what was not written.
        before: the checkpoint from which the run was resumed.
        judged: the agents whose returns say which one is best; None: all.
        num_judged: episodes of an evaluation that do, the first ones, which all have; None: all.
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
        """Why the last one was not written, in a sentence; "" if it was."""
        self._config = config
        self._folder = folder
        self._records, self._tally = records, records.tally
        self._newest = before.env_steps if before else None
        self._judged, self._num_judged = judged, num_judged
        best = config.best
        self._best_by = "" if best is None else f"{best.mode} {best.name} of {best.of}"
        # Values of another metric say nothing. Older manifests do not name theirs.
        is_same = before is not None and before.best_by in ("", self._best_by)
        self._best = list(before.best) if before is not None and is_same else []
        self._evaluated: int | None = None
        self._schedule(before.env_steps if before else 0)

    def _schedule(self, env_steps: int) -> None:
        every = self._config.keep_every_env_steps
        # Of wall time: a disk that is full may be slow.
        self._due_s = time.monotonic() + (self._config.interval_s or math.inf)
        self._due_env_steps = env_steps + (self._config.interval_env_steps or math.inf)
        self.next_snapshot_at = every and (env_steps // every + 1) * every
        """Env steps of the next multiple of `keep_every_env_steps`."""

    def _is_snapshot(self, env_steps: int) -> bool:
        """Whether one of now is the first from a multiple on; see `CheckpointFolder.snapshots`."""
        every = self._config.keep_every_env_steps
        return every is not None and env_steps // every > (self._newest or 0) // every

    @property
    def is_due(self) -> bool:
        """Whether it is time for the next one."""
        due_at = min(self._due_env_steps, self.next_snapshot_at or math.inf)
        return self._tally.env_steps >= due_at or time.monotonic() >= self._due_s

    @property
    def lost(self) -> str:
        """What of the training no checkpoint holds, in a sentence; "" if all is kept."""
        lost = self._tally.env_steps - (self._newest or 0)
        if not lost:
            return ""
        if self._newest is None:
            return "what was learned is lost: there is no checkpoint"
        return (
            f"what was learned since the newest checkpoint, of {self._newest:,} env steps, is lost "
            f"({lost:,} more)"
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
            servers: that save.
            simulations: of the run.
            evaluations: of the run.
            update_s: for how long to wait for an update of a server.
            look: looks after all processes while simulations play to the ends of their episodes.
            is_last: the run ends here: learners finish, and simulations stay held.

        Returns:
            Whether it was written; `problem` says why not.

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
                    f"no checkpoint: {', '.join(late)} did not pause in time; if its steps are "
                    "that long, raise timeouts.update_s"
                )
            if is_last:
                await servers.finish_training(update_s)
            await simulations.report_now()  # of a dead one there is the last report
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

    # --- the best ones ------------------------------------------------------------------

    def note_evaluation(self, env_steps: int) -> None:
        """Says that an evaluation begins of what the newest checkpoint holds."""
        self._evaluated = env_steps

    def judge(self, row: EvaluationRow) -> None:
        """Keeps the newest checkpoint if it is one of the best by its evaluation.

        Args:
            row: with all agents as learned.
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
        # Of equals the one that came first.
        sign = -1 if config.mode == "max" else 1
        best = sorted([*others, found], key=lambda one: sign * one[1])[: config.keep]
        if found not in best:
            return
        with contextlib.suppress(OSError):
            for rank, (at, _) in enumerate(best):
                self._folder.link(best_name(rank), at)
            self._best = best
            self._folder.note_best(best, self._best_by)
