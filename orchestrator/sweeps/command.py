"""What `muxrl sweep` does, and prints."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from rich.console import Console

from muxrl.orchestrator import exit_codes
from muxrl.orchestrator.runs.placement import cpus_wanted
from muxrl.orchestrator.runs.signals import claim_signals, interruptible, uninterrupted
from muxrl.orchestrator.sweeps.calibration import Pace, calibrate
from muxrl.orchestrator.sweeps.load import load_sweep
from muxrl.orchestrator.sweeps.plan import SweepPlan, make_plan
from muxrl.orchestrator.sweeps.result import SweepResult
from muxrl.orchestrator.sweeps.runner import local_num_cpus, resume_sweep, start_sweep, sweep_ray
from muxrl.orchestrator.sweeps.table import print_result, print_rows


def start(config: str, overrides: Sequence[str], sweep_dir: Path | None, console: Console) -> int:
    """Runs a sweep; the exit code: 0 all done, 1 a trial failed, 130 interrupted.

    Raises:
        ConfigError, OSError, RunFailed: as `start_sweep`.
    """
    result = start_sweep(load_sweep(config, overrides), sweep_dir, console=console)
    return _told(result, console)


def resume(sweep_dir: Path, overrides: Sequence[str], console: Console) -> int:
    """Goes on with a sweep; the exit code as of `start`.

    Raises:
        ConfigError, NotASweepDirectory, OSError, RunFailed, SweepIsRunning: as `resume_sweep`.
    """
    return _told(resume_sweep(sweep_dir, overrides, console=console), console)


def _told(result: SweepResult, console: Console) -> int:
    with uninterrupted():
        print_result(result, console)
        console.print(f"sweep directory: {result.sweep_dir}", soft_wrap=True, highlight=False)
        if any(not trial.is_finished for trial in result.trials):
            console.print(
                f"go on with: muxrl sweep {result.sweep_dir} --resume",
                soft_wrap=True,
                highlight=False,
            )
    return result.exit_code


def dry_run(config: str, overrides: Sequence[str], console: Console) -> int:
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
        return exit_codes.DONE
    print_rows(plan.rows, console)
    if not sweep.calibration_s:
        return exit_codes.DONE
    paces = []
    with interruptible(), sweep_ray(plan):
        claim_signals()
        for pace in calibrate(plan):
            paces.append(pace)
            console.print(f"{pace.assignment}: {_pace_text(pace)}", highlight=False, soft_wrap=True)
    console.print(estimate_text(paces, concurrency(plan)), highlight=False, soft_wrap=True)
    return exit_codes.DONE


def concurrency(plan: SweepPlan) -> int:
    """Returns how many trials a local Ray holds at once, by their logical CPUs."""
    wanted = [sum(cpus_wanted(plan.config_of(row))) for row in plan.rows]
    fit = int(local_num_cpus(plan) / max(max(wanted), 1e-9))
    most = plan.config.max_concurrent or fit
    return max(1, min(fit, most, len(plan.rows)))


def _pace_text(pace: Pace) -> str:
    each = f"{pace.env_steps_per_s:,.0f} env steps/s, {pace.start_s:.0f} s to start"
    if pace.trial_s is None:
        return f"{each}; nobody can tell when it would stop"
    return f"{each}, {duration(pace.trial_s)} a trial, {pace.num_trials} of them"


def estimate_text(paces: Sequence[Pace], num_concurrent: int) -> str:
    """Returns how long all trials take, as far as that can be told."""
    known = [pace.trial_s * pace.num_trials for pace in paces if pace.trial_s is not None]
    if len(known) < len(paces):
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
