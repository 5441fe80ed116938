"""Prints a sweep's trials with their warnings, and estimates how long they would take.

`muxrl check SWEEP` prints the trials and warnings; `muxrl sweep --dry-run` adds the estimate. For
the estimate each assignment is played alone on the machine: a real run from its start to its
report, with an evaluation, for some seconds after every server that learns has made its first
update. The estimate does not know how trials slow each other down, what changes later in a run, and
whether a return ends a run before its budget.
"""

from __future__ import annotations

import contextlib
import shutil
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from importlib import import_module
from pathlib import Path

from rich.console import Console

from muxrl.orchestrator.config import Experiment, StopConfig
from muxrl.orchestrator.config.checks import compares_untrained
from muxrl.orchestrator.doing import doing, silenced
from muxrl.orchestrator.errors import RunFailed
from muxrl.orchestrator.launch.run import Run
from muxrl.orchestrator.launch.stop_conditions import StopConditions
from muxrl.orchestrator.launch.tally import Tally
from muxrl.orchestrator.launch.whole_run import warner
from muxrl.orchestrator.records.run_directory import make_folder
from muxrl.orchestrator.supervise.local import workers_for
from muxrl.orchestrator.supervise.placement import cpus_wanted
from muxrl.orchestrator.supervise.signals import claim_signals, interruptible
from muxrl.orchestrator.sweeps.checks import find_comparison_problems
from muxrl.orchestrator.sweeps.load import load_sweep
from muxrl.orchestrator.sweeps.plan import SweepPlan, find_trial_warnings, make_plan
from muxrl.orchestrator.sweeps.result import print_trials
from muxrl.orchestrator.sweeps.runner import local_num_cpus, sweep_ray
from muxrl.protocol.suggestions import listed

_PATIENCE_S = 60.0
"""An assignment without an update after `calibration_s` is played for at most this much longer: on
a busy machine the first step alone can take so long."""
_SAMPLE_EPISODES = 8
"""Episodes of each condition of an evaluation; enough to know roughly how long one takes."""


def dry_run(config: str, overrides: Sequence[str], console: Console) -> None:
    """Prints a sweep's trials and how long they would take, without running them.

    Raises:
        ConfigError: something is wrong with the sweep.
        RunFailed: an assignment does not run.
    """
    plan = make_plan(load_sweep(config, overrides))
    print_plan(plan, console)
    sweep = plan.config
    if sweep.searcher != "random" or not sweep.calibration_s:
        return
    timings = []
    with interruptible(), sweep_ray(plan):
        claim_signals()
        for timing in calibrate(plan, _process_s()):
            timings.append(timing)
            console.print(
                f"{timing.assignment}: {_timing_text(timing)}", highlight=False, soft_wrap=True
            )
    console.print(estimate_text(timings, concurrency(plan)), highlight=False, soft_wrap=True)


def print_plan(plan: SweepPlan, console: Console) -> None:
    """Prints a sweep's trials, and warnings about their runs and about comparing them."""
    sweep = plan.config
    for sentence in (*plan.deferred, *find_comparison_problems(sweep)):
        warner(console)(sentence)
    if sweep.searcher != "random":
        num_seeds = len(sweep.all_seeds)
        seeds = "1 seed" if num_seeds == 1 else f"{num_seeds} seeds"
        console.print(
            f"{plan.num_trials} trials: {sweep.num_samples} settings that "
            f"{sweep.searcher} will choose, {seeds} each; how long they take cannot be "
            "estimated, since it depends on the settings that are chosen"
        )
        return
    print_trials(plan.trials, console)
    for sentence in find_trial_warnings(plan):
        warner(console)(sentence)


def _timing_text(timing: Timing) -> str:
    each = f"{timing.env_steps_per_s:,.0f} env steps/s, {timing.start_s:.0f} s to start"
    if timing.trial_s is None:
        return f"{timing.unknown}; {timing.start_s:.0f} s to start"
    without = f" (not counting the learning of {listed(timing.without)}, which made no update)"
    return (
        f"{each}, {duration(timing.trial_s)} a trial{without if timing.without else ''}, "
        f"{timing.num_trials} of them"
    )


def estimate_text(timings: Sequence[Timing], num_concurrent: int) -> str:
    """Returns a sentence on how long all trials take, as far as that is known."""
    total = sum(t.trial_s * t.num_trials for t in timings if t.trial_s is not None)
    num_trials = sum(t.num_trials for t in timings)
    num_unknown = sum(t.num_trials for t in timings if t.trial_s is None)
    if num_unknown == num_trials:
        return "in all: not known"
    if num_concurrent == 1:
        text = f"about {duration(total)}, one trial after another"
    else:
        text = (
            f"about {duration(total)} if {num_concurrent} trials at a time share what one trial "
            f"had, {duration(total / num_concurrent)} if the machine has room for all of them"
        )
    if not num_unknown:
        return f"in all: {text}"
    return (
        f"{num_trials - num_unknown} of {num_trials} trials: {text}; how long the other "
        f"{num_unknown} take is not known"
    )


def concurrency(plan: SweepPlan) -> int:
    """Returns how many trials a local Ray runs at once, by their logical CPUs."""
    wanted = max(sum(cpus_wanted(one.config)) for one in plan.resolved)
    fit = int(local_num_cpus(plan) / max(wanted, 1e-9))
    most = plan.config.max_concurrent or fit
    return max(1, min(fit, most, len(plan.trials)))


def duration(seconds: float) -> str:
    """Returns a time as text with one or two units: 40 s, 12 min, 3 h 20 min."""
    if seconds < 90:
        return f"{seconds:.0f} s"
    minutes = round(seconds / 60)
    if minutes < 90:
        return f"{minutes} min"
    return f"{minutes // 60} h {minutes % 60} min"


@dataclass(frozen=True)
class Timing:
    """How long a trial of one assignment takes."""

    assignment: str
    num_trials: int
    start_s: float
    """Seconds until servers and simulations were up."""
    env_steps_per_s: float
    train_s: float | None
    """Seconds from the first env step to the stop condition at this rate; None: unknown."""
    evaluation_s: float
    """Seconds of all evaluations, if episodes keep their length and speed."""
    end_s: float = 0.0
    """Seconds of the last checkpoint and the report."""
    unknown: str = ""
    """Why `train_s` is unknown, in a sentence."""
    without: tuple[str, ...] = ()
    """Servers that made no update, so that their learning is not in the estimate."""

    @property
    def trial_s(self) -> float | None:
        """Seconds of one trial from start to end; None: unknown."""
        if self.train_s is None:
            return None
        return self.start_s + self.train_s + self.evaluation_s + self.end_s


def calibrate(plan: SweepPlan, process_s: float) -> Iterator[Timing]:
    """Plays each assignment of a sweep in turn, on the Ray that this process is connected to.

    Args:
        plan: of the sweep.
        process_s: seconds that the process of a trial takes to start.

    Raises:
        RunFailed: an assignment does not run.
    """
    first = {trial.assignment: trial for trial in reversed(plan.trials)}
    nums = Counter(trial.assignment for trial in plan.trials)
    for number, (assignment, num_trials) in enumerate(nums.items(), 1):
        experiment = plan.experiments[first[assignment].id]
        doing("calibration", f"{number} of {len(nums)}, {assignment}")
        with silenced():
            timing = _measure(
                experiment, assignment, num_trials, plan.config.calibration_s, process_s
            )
        yield timing


def _import_trial() -> None:
    import_module("muxrl.orchestrator.sweeps.trial")


def _process_s() -> float:
    """Returns the seconds that the process of a trial takes to start."""
    import ray

    began_at = time.monotonic()
    ray.get(ray.remote(num_cpus=0)(_import_trial).remote())
    return time.monotonic() - began_at


def _measure(
    experiment: Experiment, assignment: str, num_trials: int, time_s: float, process_s: float
) -> Timing:
    evaluation = experiment.config.evaluation
    num = evaluation.num_episodes if evaluation.interval_env_steps else 0
    sample = min(_SAMPLE_EPISODES, max(num, evaluation.final_num_episodes))
    config = replace(
        experiment.config,
        name="calibration",
        stop=StopConfig(time_s=2 * (time_s + _PATIENCE_S)),  # the run is ended before
        evaluation=replace(
            evaluation,
            interval_env_steps=sys.maxsize if sample else None,
            num_episodes=sample,
            final_num_episodes=0,
        ),
        trackers=[],
    )
    with _temporary_folder() as temporary:
        calibrated = replace(experiment, config=config)
        folder = make_folder(calibrated, temporary / "run")
        evaluated_at: list[float] = []  # when the episodes of all agents as learned were over
        began_at = time.monotonic()
        with contextlib.closing(
            Run(calibrated, folder, None, lambda row: evaluated_at.append(time.monotonic()))
        ) as run:
            rounds = run.play(workers_for(config))
            next(rounds)
            started_at = time.monotonic()
            while not run.is_training:
                next(rounds)
            first_s, others_s = 0.0, 0.0
            if evaluated_at:
                first_s = evaluated_at[0] - started_at
                others_s = time.monotonic() - evaluated_at[0]
            train_s, without = _train_s(experiment, run, rounds, time_s)
            trained_at = time.monotonic()
            if run.tally.env_steps:  # else there is nothing to finish
                run.is_enough = True
                for _ in rounds:
                    pass
            run.end("done")
            return Timing(
                assignment,
                num_trials,
                process_s + started_at - began_at,
                run.tally.env_steps_per_s,
                train_s,
                _evaluation_s(experiment, sample, first_s, others_s) if evaluated_at else 0.0,
                time.monotonic() - trained_at,
                "" if train_s is not None else why_unknown(experiment.config.stop, run.tally),
                without,
            )


@contextlib.contextmanager
def _temporary_folder() -> Iterator[Path]:
    """Makes a folder, which is kept if a run in it fails: the error names a log in the folder."""
    path = Path(tempfile.mkdtemp(prefix="muxrl-calibration-"))
    with contextlib.ExitStack() as cleanup:
        cleanup.callback(shutil.rmtree, path)
        try:
            yield path
        except RunFailed:
            cleanup.pop_all()
            raise


def _train_s(
    experiment: Experiment, run: Run, rounds: Iterator[None], time_s: float
) -> tuple[float | None, tuple[str, ...]]:
    """Plays until each server that learns has made an update, and for `time_s` from then on.

    Returns:
        The seconds of training, None if unknown; and the servers that made no update in time.
    """
    stop = experiment.config.stop
    remaining = StopConditions(stop, experiment.fixed_servers)
    until = time_s
    while True:
        next(rounds)
        statuses = run.servers.statuses
        without = tuple(
            s for s in experiment.learning if s not in statuses or not statuses[s].weights_seq_no
        )
        now = run.tally.time_s
        left_s = remaining.time_left_s(run.tally, statuses)
        if without or (left_s is None and _gets_nearer(stop)):
            until = now + time_s
        if now >= min(until, time_s + _PATIENCE_S) or left_s == 0.0:
            return (None if left_s is None else now + left_s), without


def _gets_nearer(stop: StopConfig) -> bool:
    """Whether a stop condition counts env steps or iterations, to which training gets nearer."""
    return stop.env_steps is not None or stop.iterations is not None


def why_unknown(stop: StopConfig, tally: Tally) -> str:
    """Returns why it is unknown when a run would stop, although it was played for a while."""
    played = f"{tally.env_steps:,} env steps in {duration(tally.time_s)}"
    if not _gets_nearer(stop):
        return f"{played}; its end cannot be estimated, since only a return or a metric ends it"
    if not tally.env_steps:
        return (
            f"no env step in {duration(tally.time_s)}, so nothing can be estimated; if the "
            "simulation is that slow, raise calibration_s"
        )
    return (
        f"{played}, but none of the limits under stop came nearer, so nothing can be estimated; "
        "raise calibration_s"
    )


def _evaluation_s(experiment: Experiment, sample: int, first_s: float, others_s: float) -> float:
    """Returns the seconds that all evaluations of a trial take.

    Args:
        experiment: of the trial.
        sample: number of episodes of each condition that were played.
        first_s: duration of the condition with all agents as learned, including the making of the
            environments.
        others_s: duration of all other conditions, one for each server that learns.
    """
    evaluation, num_learning = experiment.config.evaluation, len(experiment.learning)
    num, interval = 0, evaluation.interval_env_steps
    if interval:  # the first evaluation is before training
        num = -(-(experiment.config.stop.env_steps or interval) // interval)
    others_at_end = (1 + compares_untrained(experiment.config)) * num_learning
    num_episodes = num * evaluation.num_episodes * (1 + num_learning)
    num_episodes += evaluation.final_num_episodes * (1 + others_at_end)
    episode_s = (others_s / num_learning if num_learning else first_s) / sample
    return max(0.0, first_s - sample * episode_s) + num_episodes * episode_s
