"""How long a sweep will take: each assignment is played for some seconds, then extrapolated.

What is measured is a real run with its servers, learning included, alone on the machine. It cannot
know how trials slow each other down, what happens later than those seconds (a replay buffer that
has to fill before learning begins), and whether a stop by return comes first.
"""

from __future__ import annotations

import contextlib
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from muxrl.orchestrator.config import CheckpointConfig, EvaluationConfig, Experiment, StopConfig
from muxrl.orchestrator.records.metrics import MetricsWriter
from muxrl.orchestrator.records.run_directory import make_folder
from muxrl.orchestrator.runs.run import Run
from muxrl.orchestrator.runs.signals import uninterrupted
from muxrl.orchestrator.runs.stop_conditions import StopConditions
from muxrl.orchestrator.sweeps.plan import SweepPlan


@dataclass(frozen=True)
class Timing:
    """How long a trial of one assignment takes."""

    assignment: str
    num_trials: int
    start_s: float
    """Until servers and simulations were up."""
    env_steps_per_s: float
    train_s: float | None
    """From the first env step to the stop condition at that rate; None: unknown."""
    evaluation_s: float
    """Of evaluations that training waits for, if episodes stay as long and go no faster."""

    @property
    def trial_s(self) -> float | None:
        """One trial from start to end."""
        if self.train_s is None:
            return None
        return self.start_s + self.train_s + self.evaluation_s


def calibrate(plan: SweepPlan) -> Iterator[Timing]:
    """Plays each assignment of a table in turn, on the Ray that this process is connected to.

    Raises:
        RunFailed: an assignment does not run.
    """
    num_trials: dict[str, int] = {}
    first: dict[str, Experiment] = {}
    for spec in plan.trials:
        num_trials[spec.assignment] = num_trials.get(spec.assignment, 0) + 1
        first.setdefault(spec.assignment, plan.experiments[spec.trial_id])
    for assignment, experiment in first.items():
        yield _measure(experiment, assignment, num_trials[assignment], plan.config.calibration_s)


def _measure(experiment: Experiment, assignment: str, num_trials: int, time_s: float) -> Timing:
    config = replace(
        experiment.config,
        name="calibration",
        stop=StopConfig(time_s=time_s),
        evaluation=EvaluationConfig(final_num_episodes=0),
        checkpoint=CheckpointConfig(at_end=False),
        tensorboard=False,
    )
    with tempfile.TemporaryDirectory(prefix="muxrl-calibration-") as temporary:
        folder = make_folder(replace(experiment, config=config), Path(temporary) / "run")
        with MetricsWriter(folder, tensorboard=False) as metrics, contextlib.ExitStack() as cleanup:
            run = Run(replace(experiment, config=config), folder, metrics)
            cleanup.callback(_stop, run)
            began_at = time.monotonic()
            run.start()
            start_s = time.monotonic() - began_at
            run.begin()
            while not run.watch():
                pass
            remaining = StopConditions(experiment.config.stop, experiment.fixed_servers)
            left_s = remaining.time_left_s(run.tally, run.statuses)
            train_s = None if left_s is None else run.tally.time_s + left_s
            return Timing(
                assignment,
                num_trials,
                start_s,
                run.tally.env_steps_per_s,
                train_s,
                _evaluation_s(experiment, run),
            )


def _stop(run: Run) -> None:
    with uninterrupted():
        run.stop()


def _evaluation_s(experiment: Experiment, run: Run) -> float:
    evaluation = experiment.config.evaluation
    # The first one, before training, and the last one; others go on beside the training.
    num_episodes = evaluation.final_num_episodes
    num_episodes += evaluation.num_episodes if evaluation.interval_env_steps else 0
    num_learning = len(experiment.servers) - len(experiment.fixed_servers)
    tally = run.tally
    if not tally.num_episodes or not tally.env_steps_per_s:
        return 0.0
    steps = num_episodes * (1 + num_learning) * tally.env_steps / tally.num_episodes
    return steps / tally.env_steps_per_s
