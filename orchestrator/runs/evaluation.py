"""Evaluations of a run: when they are due, in which conditions, and where results go.

Every server that learns is measured by its absence: the same episodes are played with all agents
as learned, and once more for each such server with its agents random. In a game of several sides
the return alone says little; the difference says what the learner is worth. Servers with fixed
policies play along in every condition.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from muxrl.orchestrator.config.schema import EvaluationConfig
from muxrl.orchestrator.records.metrics import MetricsWriter

Fetch = Callable[[Any], dict[str, list[float]]]
"""Returns what a Ray reference stands for, or raises what went wrong."""


class Evaluations:
    """Runs evaluations one after another in the evaluation process, beside the training.

    Args:
        config: how many episodes, how often.
        can_sample: by server that learns, whether its policies are stochastic by themselves (PPO,
            A2C); value-based ones (QMIX) are always greedy. Each is replaced by random agents in
            turn.
        actor: of an `EvaluationProcess`.
        metrics: where results go.
    """

    def __init__(
        self,
        config: EvaluationConfig,
        can_sample: Mapping[str, bool],
        actor: Any,
        metrics: MetricsWriter,
    ) -> None:
        self._config = config
        self._conditions: list[str | None] = [None, *can_sample]
        self._should_explore = {s: config.should_explore and can_sample[s] for s in can_sample}
        self._actor = actor
        self._metrics = metrics
        self._running: list[tuple[Any, dict[str, Any]]] = []
        self._due_at = config.interval_env_steps
        self.latest: dict[str, Any] | None = None
        """The newest record with all agents as learned."""

    @property
    def is_running(self) -> bool:
        """Whether one is under way."""
        return bool(self._running)

    def begin_if_due(self, env_steps: int, time_s: float) -> None:
        """Begins one if its time has come and the last one is over."""
        if self._due_at is None or self._running or env_steps < self._due_at:
            return
        assert self._config.interval_env_steps is not None
        self._due_at = env_steps + self._config.interval_env_steps
        self.begin(env_steps, time_s)

    def begin(self, env_steps: int, time_s: float, *, is_final: bool = False) -> None:
        """Begins an evaluation in all conditions.

        Args:
            env_steps: of training so far, for the record.
            time_s: likewise.
            is_final: with the final number of episodes.
        """
        config = self._config
        num = config.final_num_episodes if is_final else config.num_episodes
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

    def collect(self, fetch: Fetch) -> None:
        """Writes down the conditions that are done, in order."""
        import ray

        while self._running and ray.wait([self._running[0][0]], timeout=0)[0]:
            self._write_first(fetch)

    def wait(self, fetch: Fetch) -> None:
        """Waits for all conditions and writes them down."""
        while self._running:
            self._write_first(fetch)

    def _write_first(self, fetch: Fetch) -> None:
        ref, record = self._running.pop(0)
        record["returns"] = fetch(ref)
        self._metrics.evaluation(record)
        if record["replaced"] is None:
            self.latest = record
