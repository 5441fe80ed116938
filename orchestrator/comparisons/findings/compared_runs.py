"""Reads the runs that are compared, and finds the env steps at which they are compared.

Comparable runs have the same simulation with the same arguments, and were evaluated by the same
rule (greedy or sampled), maybe on different episodes. An error names two runs and how they differ.
Runs are compared at the largest number of env steps at which each of them was evaluated; if there
is none, because clocks ended them, evaluations may differ by up to `TOLERANCE`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from importlib import resources
from pathlib import Path

from muxrl.orchestrator.config import ExperimentConfig
from muxrl.orchestrator.config.load import BENCHMARK, load_written
from muxrl.orchestrator.errors import (
    CannotCompare,
    ConfigError,
    NotARunDirectory,
    NotASweepDirectory,
)
from muxrl.orchestrator.measure.run_notes import TOLERANCE, run_notes
from muxrl.orchestrator.records.evaluations import AS_LEARNED, EvaluationPoint
from muxrl.orchestrator.records.recorded_run import RecordedRun
from muxrl.orchestrator.records.run_directory import TRIALS_FILE
from muxrl.orchestrator.storage.versions import version_notes
from muxrl.orchestrator.sweeps.directory import SweepDirectory, TrialRecord
from muxrl.orchestrator.sweeps.schema import SweepConfig
from muxrl.orchestrator.user_modules import add_user_folders
from muxrl.protocol.suggestions import listed, similar_or_known
from muxrl.servers.config import ServerConfig

_MAX_LISTED = 5
_TWICE = "since an earlier one has the same settings and seed"


@dataclass(frozen=True)
class ComparedRuns:
    """The runs that are compared, and the roles of their sweeps.

    Attributes:
        runs: runs of one simulation, evaluated in the same way.
        roles: role to agent patterns; {} if no sweep names roles.
        scripts: role to the scripted policies that a sweep's trials have in it, finished or not.
        notes: which trials were left out, how runs went, what logs warned of, and which
            versions differ.
    """

    runs: tuple[RecordedRun, ...]
    roles: Mapping[str, Sequence[str]]
    scripts: Mapping[str, Sequence[ServerConfig]]
    notes: tuple[str, ...]


def find_runs(path: str | Path) -> Path:
    """Returns the folder that a path means; "benchmark/TASK" means results that come with muxrl.

    Raises:
        CannotCompare: there are no such results.
    """
    folder, _, task = str(path).rpartition("/")
    if folder != BENCHMARK or Path(path).exists():
        return Path(path)
    results = Path(str(resources.files("muxrl.experiments"))) / BENCHMARK / "results"
    known = sorted(stored.name for stored in results.iterdir())
    if task not in known:
        raise CannotCompare(
            f"{str(path)!r} is neither a folder nor the name of stored results"
            + similar_or_known(task, known, f"in {BENCHMARK}/ there are")
        )
    return results / task


def read_compared_runs(paths: Sequence[Path]) -> ComparedRuns:
    """Reads runs, or the runs of sweeps.

    Args:
        paths: run directories, and sweep directories (they hold a ``trials.jsonl``).

    Raises:
        CannotCompare: a path is neither, or two runs are not comparable.
        MalformedMetrics: a metrics file is broken elsewhere than in its last line.
    """
    runs: list[RecordedRun] = []
    roles: dict[str, Sequence[str]] = {}
    scripts: dict[str, list[ServerConfig]] = {}
    notes: list[str] = []
    of_sweeps: list[ExperimentConfig] = []
    for path in paths:
        if (path / TRIALS_FILE).is_file():
            try:
                sweep = SweepDirectory.open(path)
                trials = sweep.trials()
            except NotASweepDirectory as error:
                raise CannotCompare(str(error)) from error
            left_out: dict[str, list[str]] = {}
            twice: list[str] = []
            for trial in trials:
                # A scheduler ends trials for a bad start, so these are no fair sample either.
                if trial.status != "done" or trial.run_dir is None:
                    left_out.setdefault(trial.status.replace("_", " "), []).append(trial.id)
                    continue
                run = read_run(path / trial.run_dir)
                if (unnamed := replace(run.config, name="")) in of_sweeps:
                    twice.append(run.name)
                else:
                    of_sweeps.append(unnamed)
                    runs.append(run)
            left_out |= {_TWICE: twice} if twice else {}
            notes += [
                f"left out of sweep {sweep.name!r}: {len(those)} of {len(trials)} trials, {why} "
                f"({listed(those, _MAX_LISTED)})"
                for why, those in left_out.items()
            ]
            _add_sweep(sweep, trials, roles, scripts)
        else:
            runs.append(read_run(path))
    if not runs:
        raise CannotCompare(
            f"there is no finished run in {listed(map(str, paths))}"
            + (f": {'; '.join(notes)}" if notes else "")
        )
    for run in runs[1:]:
        _check_comparable(runs[0], run)
    _check_evaluated(runs)
    notes += run_notes(runs)
    notes += _promoted(runs)
    notes += _warned(runs)
    notes += version_notes([run.versions for run in runs])
    return ComparedRuns(tuple(runs), roles, scripts, tuple(notes))


def _promoted(runs: Sequence[RecordedRun]) -> Iterator[str]:
    """Yields notes on how long servers acted that were then replaced by a shadow."""
    for run in runs:
        for server_id, server in run.servers.items():
            acted = [p.env_steps for p in run.points if server_id in p.num_episodes]
            if server.replaced_by and acted:
                yield (
                    f"run {run.name!r} was evaluated with {server_id} up to {acted[-1]:,} env "
                    f"steps, then with {server.replaced_by}, which replaced it: all curves of this "
                    "run, and the env steps at which they reach a threshold, are of both"
                )


def _warned(runs: Sequence[RecordedRun]) -> Iterator[str]:
    """Yields notes on warnings in logs, each once, with its runs."""
    names: dict[str, dict[str, None]] = {}
    for run in runs:
        for name, found in run.status.warnings.items() if run.status else ():
            for one in found:
                of_log = f"the log of {name} warns of {one.what}; see its report"
                what = of_log if name and one.text else one.what
                names.setdefault(what, {})[run.name] = None
    for what, of_runs in names.items():
        yield f"in {len(of_runs)} of {len(runs)} runs ({listed(of_runs, _MAX_LISTED)}): {what}"


def read_run(path: Path) -> RecordedRun:
    """Reads one run, with only the evaluations that have all agents as learned.

    The run's modules are also looked for in the folder in which it was launched.

    Raises:
        CannotCompare: the path is no run's, or its config is absent or cannot be read.
        MalformedMetrics: a metrics file is broken elsewhere than in its last line.
    """
    try:
        run = RecordedRun.read(path)
        learned = tuple(point for point in run.points if AS_LEARNED in point.num_episodes)
        run = replace(run, points=learned)
        run.config  # noqa: B018  # read and kept, or refused
    except NotARunDirectory as error:
        raise CannotCompare(f"{error}; a sweep's directory would hold a {TRIALS_FILE}") from error
    except FileNotFoundError as error:
        raise CannotCompare(f"run {str(path)!r} has no config.yaml: it never began") from error
    except ConfigError as error:
        raise CannotCompare(f"the config of run {str(path)!r} cannot be read: {error}") from error
    add_user_folders(run.status.folders if run.status else ())
    return run


def _add_sweep(
    sweep: SweepDirectory,
    trials: Sequence[TrialRecord],
    roles: dict[str, Sequence[str]],
    scripts: dict[str, list[ServerConfig]],
) -> None:
    """Adds a sweep's roles, and the scripted policies that its trials have in these roles."""
    try:
        config = load_written(sweep.config_file, SweepConfig)
    except ConfigError as error:
        raise CannotCompare(
            f"the config of sweep {sweep.name!r} cannot be read: {error}"
        ) from error
    for role, patterns in config.roles.items():
        roles.setdefault(role, patterns)
        for label, template in config.algorithms.items():
            server = template.server(label, template.agents)
            is_script = server.algorithm.upper() == "SCRIPTED"
            if is_script and any(trial.roles.get(role) == label for trial in trials):
                scripts.setdefault(role, []).append(server)


def _check_comparable(first: RecordedRun, other: RecordedRun) -> None:
    why = first.differences(other, "simulation.env", "simulation.kwargs", "simulation.metrics")
    if differing := sorted({*first.server_of} ^ {*other.server_of}):
        why.append(f"the agents differ in {listed(differing)}")
    if why:
        raise CannotCompare(
            f"runs {first.name!r} and {other.name!r} cannot be compared: "
            f"{listed(why, _MAX_LISTED)}; expected runs of one simulation, evaluated in the same "
            "way"
        )


def _check_evaluated(runs: Sequence[RecordedRun]) -> None:
    missing = [run.name for run in runs if not run.points]
    if missing:
        raise CannotCompare(
            f"{listed(map(repr, missing), _MAX_LISTED)} {'were' if len(missing) > 1 else 'was'} "
            "never evaluated, and training returns are no measure, since they include "
            "exploration; set evaluation.final_num_episodes, or leave the run out"
        )


@dataclass(frozen=True)
class Budget:
    """After how much training runs are compared.

    Attributes:
        place: env steps at or near which every learning run was evaluated, see `point_at`; 0 if no
            run learns.
        env_steps: the fewest env steps of a run at that evaluation.
        longest: the most env steps after which any run was evaluated.
        is_cut: whether some runs were trained for longer, and that part is left out.
        num_episodes: how many episodes of each run's evaluation count, the same for all runs.
    """

    place: int
    env_steps: int
    longest: int
    is_cut: bool
    num_episodes: int


def find_budget(runs: Sequence[RecordedRun], wanted: int | None = None) -> Budget:
    """Returns the largest budget at which all learning runs were evaluated.

    Args:
        runs: all runs that are compared.
        wanted: the budget in env steps; None: the largest possible.

    Raises:
        CannotCompare: there is no such budget, or no evaluation near `wanted`.
    """
    learning = [run for run in runs if run.learns]
    if not learning:
        return Budget(0, 0, 0, False, min(num_episodes_of(run.points[-1]) for run in runs))
    last = {run: run.points[-1].env_steps for run in learning}
    longest, shortest = max(last.values()), min(last.values())
    if wanted is not None and shortest < wanted * (1 - TOLERANCE):
        run = min(last, key=lambda r: last[r])
        raise CannotCompare(
            f"the budget of {wanted:,} env steps is more than run {run.name!r} has: it was last "
            f"evaluated after {last[run]:,}"
        )
    reached = [{point.env_steps for point in run.points} for run in learning]
    everywhere = sorted(set.intersection(*reached) - {0}, reverse=True)
    anywhere = sorted(set.union(*reached), reverse=True)
    for place in [*everywhere, *anywhere] if wanted is None else [wanted]:
        points = [p for run in learning if (p := _point_near(run, place)) is not None]
        if len(points) == len(learning) and (place > 0 or longest == 0):
            fixed = [run.points[-1] for run in runs if not run.learns]
            return Budget(
                place=place,
                env_steps=min(point.env_steps for point in points),
                longest=longest,
                is_cut=longest > max(point.env_steps for point in points),
                num_episodes=min(map(num_episodes_of, [*points, *fixed])),
            )
    if wanted is not None:
        raise CannotCompare(f"not every run was evaluated after about {wanted:,} env steps")
    ends = [next(r for r in learning if last[r] == end) for end in (shortest, longest)]
    raise CannotCompare(
        f"runs have different budgets and no common point to cut them to: {ends[0].name!r} was "
        f"last evaluated after {shortest:,} env steps, {ends[1].name!r} after {longest:,}; train "
        "them for equally many, or set evaluation.interval_env_steps so that they can be cut"
    )


def compared_after(runs: Sequence[RecordedRun], budget: Budget) -> str:
    """Returns after how many env steps learning runs are compared: "5,000", "5,000 to 5,100"."""
    ends = {point_at(run, budget).env_steps for run in runs if run.learns}
    return " to ".join(f"{n:,}" for n in sorted({min(ends), max(ends)})) if ends else ""


def point_at(run: RecordedRun, budget: Budget) -> EvaluationPoint:
    """Returns the evaluation by which a run is scored; if nothing in it learns, its last one.

    Raises:
        ValueError: the run has no evaluation near the budget, so the budget is of other runs.
    """
    point = _point_near(run, budget.place) if run.learns else run.points[-1]
    if point is None:
        raise ValueError(f"run {run.name!r} was not evaluated near {budget.place:,} env steps")
    return point


def num_episodes_of(point: EvaluationPoint) -> int:
    """Returns the number of an evaluation's episodes with all agents as learned."""
    return point.num_episodes[AS_LEARNED]


def _point_near(run: RecordedRun, place: int) -> EvaluationPoint | None:
    """Returns the evaluation after `place` env steps, else the last one within `TOLERANCE`."""
    at = [p for p in run.points if p.env_steps == place]
    near = at or [p for p in run.points if abs(p.env_steps - place) <= TOLERANCE * place]
    return near[-1] if near else None
