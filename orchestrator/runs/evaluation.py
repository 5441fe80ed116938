"""Evaluations of a run: when they are due, in which conditions, and where results go.

The same episodes are played with all agents as learned, and once more for each server that learns,
with its agents random. In a game of several sides
the return alone says little; the difference says what the learner is worth. Servers with fixed
policies act in every condition.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from muxrl.orchestrator.config import Experiment
from muxrl.orchestrator.records.metrics import MetricsWriter
from muxrl.orchestrator.records.run_directory import RunDirectory
from muxrl.orchestrator.runs.actors import answer_of, start_actor
from muxrl.orchestrator.runs.episodes import ServerAddress
from muxrl.orchestrator.runs.processes import EvaluationProcess

_LOG = "evaluation"


class Evaluations:
    """Evaluates in a process of its own, beside the training, one evaluation after another.

    Args:
        experiment: resolved.
        servers: where they listen.
        folder: the run's directory.
        metrics: where results go.
        scheduling: Ray's scheduling strategy of the process.
        due_at: env steps of the next one, of a run that is resumed; None: after one interval.
    """

    def __init__(
        self,
        experiment: Experiment,
        servers: Mapping[str, ServerAddress],
        folder: RunDirectory,
        metrics: MetricsWriter,
        scheduling: Any,
        due_at: int | None = None,
    ) -> None:
        self.latest: dict[str, Any] | None = None
        """The newest record with all agents as learned."""
        self.bytes_before = 0
        """Length of the file of evaluations before the one under way."""
        simulation, self._config = experiment.config.simulation, experiment.config.evaluation
        learning = {
            s: p for s, p in experiment.servers.items() if s not in experiment.fixed_servers
        }
        self._conditions: list[str | None] = [None, *learning]
        # Value-based policies (QMIX) are greedy in any case.
        self._should_explore = {
            s: self._config.should_explore and plan.samples_actions for s, plan in learning.items()
        }
        self._log = folder.log(_LOG)
        self._metrics = metrics
        self._running: list[tuple[Any, dict[str, Any]]] = []
        self._due_at = due_at if due_at is not None else self._config.interval_env_steps
        self._actor = start_actor(
            EvaluationProcess,
            simulation,
            servers,
            experiment.config.timeouts.update_s,
            self._log,
            scheduling=scheduling,
            num_cpus=simulation.num_cpus,
        )

    @property
    def is_running(self) -> bool:
        """Whether one is under way."""
        return bool(self._running)

    def is_due(self, env_steps: int) -> bool:
        """Whether its time has come and the last one is over."""
        interval = self._config.interval_env_steps  # which a resumed run may have taken away
        return (
            interval is not None
            and self._due_at is not None
            and not self._running
            and env_steps >= self._due_at
        )

    def begin_next(self, env_steps: int, time_s: float) -> None:
        """Begins the one that is due, and schedules the next."""
        assert self._config.interval_env_steps is not None
        self._due_at = env_steps + self._config.interval_env_steps
        self.begin(env_steps, time_s)

    @property
    def due_at(self) -> int | None:
        """When a run that is resumed from here is to evaluate: what is under way, once more."""
        return self._running[0][1]["env_steps"] if self._running else self._due_at

    def begin(self, env_steps: int, time_s: float, *, is_final: bool = False) -> None:
        """Begins an evaluation in all conditions.

        Args:
            env_steps: of training so far, for the record.
            time_s: likewise.
            is_final: with the final number of episodes.
        """
        config = self._config
        num = config.final_num_episodes if is_final else config.num_episodes
        self.bytes_before = self._metrics.length("evaluation")
        for replaced in self._conditions:
            ref = self._actor.evaluate.remote(replaced, config.seed, num, self._should_explore)
            record = {
                "time_s": time_s,
                "env_steps": env_steps,
                "replaced": replaced,
                "should_explore": config.should_explore,
                "num_episodes": num,
                "is_final": is_final,
            }
            self._running.append((ref, record))

    def collect(self) -> None:
        """Writes down the conditions that are done, in order.

        Raises:
            RunFailed: the process died, or an episode failed.
        """
        import ray

        while self._running and ray.wait([self._running[0][0]], timeout=0)[0]:
            self._write_first()

    def wait(self) -> None:
        """Waits for all conditions and writes them down.

        Raises:
            RunFailed: the process died, or an episode failed.
        """
        while self._running:
            self._write_first()

    def stop(self) -> None:
        """Ends the process."""
        import ray

        ray.kill(self._actor)

    def _write_first(self) -> None:
        ref, record = self._running.pop(0)
        record["returns"] = answer_of(ref, None, "the evaluation", self._log)
        self._metrics.evaluation(record)
        if record["replaced"] is None:
            self.latest = record
