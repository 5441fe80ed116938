"""What `muxrl sweep --dry-run` prints: the trials of a sweep, and how long they would take."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Console

from muxrl.orchestrator.runs.signals import claim_signals, interruptible
from muxrl.orchestrator.sweeps.calibration import Timing, calibrate
from muxrl.orchestrator.sweeps.capacity import concurrency
from muxrl.orchestrator.sweeps.load import load_sweep
from muxrl.orchestrator.sweeps.plan import make_plan
from muxrl.orchestrator.sweeps.runner import sweep_ray
from muxrl.orchestrator.sweeps.table import print_trials


def dry_run(config: str, overrides: Sequence[str], console: Console) -> None:
    """Prints a sweep's trials and how long they would take; runs none.

    Raises:
        ConfigError: something is wrong with the sweep.
        RunFailed: an assignment does not run.
    """
    plan = make_plan(load_sweep(config, overrides))
    sweep = plan.config
    if sweep.searcher != "random":
        num_seeds = max(1, len(sweep.seeds))
        seeds = "1 seed" if num_seeds == 1 else f"{num_seeds} seeds"
        console.print(
            f"{sweep.num_samples * num_seeds} trials: {sweep.num_samples} settings that "
            f"{sweep.searcher} will choose, {seeds} each; how long they take is not "
            "reckoned, since it depends on the choice"
        )
        return
    print_trials(plan.trials, console)
    if not sweep.calibration_s:
        return
    timings = []
    with interruptible(), sweep_ray(plan):
        claim_signals()
        for timing in calibrate(plan):
            timings.append(timing)
            console.print(
                f"{timing.assignment}: {_timing_text(timing)}", highlight=False, soft_wrap=True
            )
    console.print(estimate_text(timings, concurrency(plan)), highlight=False, soft_wrap=True)


def _timing_text(timing: Timing) -> str:
    each = f"{timing.env_steps_per_s:,.0f} env steps/s, {timing.start_s:.0f} s to start"
    if timing.trial_s is None:
        return f"{each}; it cannot be told when it would stop"
    return f"{each}, {duration(timing.trial_s)} a trial, {timing.num_trials} of them"


def estimate_text(timings: Sequence[Timing], num_concurrent: int) -> str:
    """Returns how long all trials take, as far as it is known."""
    known = [timing.trial_s * timing.num_trials for timing in timings if timing.trial_s is not None]
    if len(known) < len(timings):
        return "in all: cannot be told, since trials have no stop condition that comes nearer"
    total = sum(known)
    if num_concurrent == 1:
        return f"in all: about {duration(total)}, one trial after another"
    return (
        f"in all: about {duration(total)} if trials, {num_concurrent} at a time, have to share "
        f"what one had, {duration(total / num_concurrent)} if the machine has room for all of them"
    )


def duration(seconds: float) -> str:
    """Returns a time with one or two units: 40 s, 12 min, 3 h 20 min."""
    if seconds < 90:
        return f"{seconds:.0f} s"
    minutes = round(seconds / 60)
    if minutes < 90:
        return f"{minutes} min"
    return f"{minutes // 60} h {minutes % 60} min"
