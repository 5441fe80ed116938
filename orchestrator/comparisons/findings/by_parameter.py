"""Scores runs at each value of a parameter of the episodes (`simulation.parameters`)."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np

from muxrl.client.adapters.simulation import COMMON
from muxrl.client.episode_parameters import draw
from muxrl.orchestrator.comparisons.findings.compared_runs import Budget, point_at
from muxrl.orchestrator.comparisons.findings.contestants import Contestant
from muxrl.orchestrator.comparisons.findings.scores import iqm_or_part
from muxrl.orchestrator.config.parameters import of_evaluations
from muxrl.orchestrator.config.seeds import evaluation_seed
from muxrl.orchestrator.evaluations.evaluate import FORMAT
from muxrl.orchestrator.measure.against_random import share_episodes
from muxrl.orchestrator.measure.statistics import Floats, are_proportions
from muxrl.orchestrator.measure.subjects import Subject
from muxrl.orchestrator.records.evaluations import AS_LEARNED, wide_frame
from muxrl.orchestrator.records.recorded_run import RecordedRun
from muxrl.orchestrator.records.rows import AgentReturns, EvaluationRow, Metrics
from muxrl.orchestrator.storage.checkpoints import LAST, CheckpointFolder
from muxrl.protocol.suggestions import listed
from muxrl.servers.checkpoints.formats import format_problem

if TYPE_CHECKING:
    from pandas import DataFrame

_MOST_VALUES = 6
"""Most values of a parameter that are compared one by one; more are joined to four ranges."""


def compare_by_parameter(
    contestants: Sequence[Contestant],
    subjects: Sequence[Subject],
    budget: Budget,
    asked: Collection[str],
) -> Iterator[dict[str, Any]]:
    """Yields a row for each parameter, value, subject and contestant.

    `value` is text; it is a range if the parameter has many values. `num_runs` is how many runs
    have such episodes. Of each run, the evaluation at the budget counts, and further episodes of
    the same policies that ``muxrl evaluate`` played, if all other parameters are as in the run's
    own evaluations. A parameter with one value in all episodes is left out. `iqm` of proportions
    is computed as in `standings`; `asked` has the keys of subjects that may be proportions.
    """
    runs = [run for contestant in contestants for run in contestant.runs]
    names = dict.fromkeys(key for run in runs for key in run.config.simulation.parameters)
    played = {
        run: _episodes(run, budget, subjects) for run in runs if run.config.simulation.parameters
    }
    parts = {
        key
        for key in asked
        if are_proportions(of[key].to_numpy() for _, of in played.values() if key in of)
    }
    for name in names:
        values = {run: drawn[name] for run, (drawn, _) in played.items() if name in drawn}
        groups = _groups(np.concatenate([one.to_numpy() for one in values.values()]))
        if len(groups) < 2:
            continue
        read = [subject for subject in subjects if subject.metric != name]
        for (value, low, high), subject, contestant in product(groups, read, contestants):
            found = [
                played[run][1].loc[values[run].between(low, high), subject.key].dropna()
                for run in contestant.runs
                if run in values and subject.key in played[run][1]
            ]
            of_runs = [returns.to_numpy() for returns in found if len(returns)]
            if of_runs:
                are_shared = share_episodes(point_at(r, budget).first_seed for r in contestant.runs)
                means = [float(returns.mean()) for returns in of_runs]
                num_episodes = sum(map(len, of_runs))
                num_parts = num_episodes if subject.key in parts else 0
                yield {
                    "contestant": contestant.name,
                    "subject": subject.key,
                    "parameter": name,
                    "value": value,
                    "iqm": iqm_or_part(means, of_runs, num_parts, are_shared=are_shared),
                    "num_runs": len(of_runs),
                    "num_episodes": num_episodes,
                }


def parameter_notes(runs: Sequence[RecordedRun]) -> Iterator[str]:
    """Yields notes on parameters that runs were evaluated with at different values, and on files of
    evaluations that are left out."""
    for run in (run for run in runs if run.config.simulation.parameters):
        for path, found in _evaluations(run):
            if isinstance(found, str):
                yield f"the returns by parameter leave out {path}: the file {found}"
    if first := differing_parameters(runs):
        yield (
            f"runs were evaluated with different values of {listed(first)}, so only returns at the "
            "same value say who is better; this comparison plays its baselines and its head to "
            f"head with {first_values(runs)}, as run {runs[0].name!r}"
        )


def differing_parameters(runs: Sequence[RecordedRun]) -> dict[str, Any]:
    """Returns the parameters in which runs' evaluations differ, with the values of the first run.

    Comparisons play with these values; None: the first run does not set the parameter.
    """
    given = [of_evaluations(run.config) for run in runs]
    names = dict.fromkeys(name for one in given for name in one)
    return {
        name: given[0].get(name)
        for name in names
        if any(one.get(name) != given[0].get(name) for one in given)
    }


def first_values(runs: Sequence[RecordedRun]) -> str:
    """Returns `differing_parameters` in words; "" if there are none."""
    return listed(
        f"{name}={'its default' if value is None else value}"
        for name, value in differing_parameters(runs).items()
    )


def _groups(values: Floats) -> list[tuple[str, float, float]]:
    """Returns each value or range of values as text, with its two ends (inclusive)."""
    found = np.unique(values[np.isfinite(values)])
    if len(found) <= _MOST_VALUES:
        return [(f"{value:g}", value, value) for value in found]
    ranges = [part for part in np.array_split(found, 4) if len(part)]
    return [(f"{part[0]:.3g} to {part[-1]:.3g}", part[0], part[-1]) for part in ranges]


def _episodes(
    run: RecordedRun, budget: Budget, subjects: Sequence[Subject]
) -> tuple[DataFrame, DataFrame]:
    """Returns the episodes of a run's policies at the budget, from all evaluations of these.

    Returns:
        By parameter: its value in each episode, or NaN if an earlier evaluation has the same
        episode, or if another parameter differs from the run's own evaluations. By subject: its
        number in each episode; subjects that an evaluation did not measure are left out.
    """
    from pandas import DataFrame, concat

    own = run.evaluations.loc[(point_at(run, budget).env_steps, AS_LEARNED)]
    first = evaluation_seed(run.config)
    parts = [(own, list(range(first, first + len(own)))), *_written(run, budget)]
    frame = concat([part.reset_index(drop=True) for part, _ in parts], keys=range(len(parts)))
    seeds = [seed for _, of_part in parts for seed in of_part]
    names = list(run.config.simulation.parameters)
    drawn = DataFrame({name: Subject("metric", name, (COMMON,), name).of(frame) for name in names})
    usual = DataFrame([draw(of_evaluations(run.config), seed) for seed in seeds], frame.index)
    is_usual = drawn.apply(lambda one: np.isclose(one, usual[one.name], equal_nan=True))
    is_usual.loc[0] = True
    is_new = ~drawn.assign(seed=seeds).duplicated()
    values = {
        name: drawn[name].where(is_new & is_usual.drop(columns=name).all(axis=1)) for name in names
    }
    returns = DataFrame({subject.key: subject.of(frame) for subject in subjects})
    is_measured = returns.notna().groupby(level=0).any().all()
    return DataFrame(values), returns.loc[:, is_measured]


def _written(run: RecordedRun, budget: Budget) -> Iterator[tuple[DataFrame, list[int]]]:
    """Yields later evaluations of a run's policies at the budget, with the seeds of episodes."""
    last = CheckpointFolder(run.path / "checkpoints").find(LAST)
    names = {str(budget.place)}
    if last is not None and not budget.is_cut:
        names |= {LAST, last.resolve().name}
    for _, read in _evaluations(run):
        if isinstance(read, str):
            continue
        checkpoints = {server.checkpoint for server in read.servers.values()} - {""}
        known = {f"checkpoints/{name}/{server}" for name in names for server in run.servers}
        rules = {server.rule for server in read.servers.values()} - {"fixed"}
        rule = "sampled" if run.should_explore else "greedy"
        if checkpoints <= known and not read.replaced and rules <= {rule}:
            row = EvaluationRow(
                env_steps=budget.place,
                replaced=None,
                returns=read.episode_returns,
                metrics=read.episode_metrics,
            )
            yield wide_frame({(budget.place, AS_LEARNED): row}), read.seeds


class _Server(msgspec.Struct):
    checkpoint: str
    rule: str


class _Evaluation(msgspec.Struct):
    """The fields that are read of a file that ``muxrl evaluate`` wrote."""

    servers: Mapping[str, _Server]
    replaced: Mapping[str, str]
    seeds: list[int]
    episode_returns: AgentReturns
    episode_metrics: Metrics


def _evaluations(run: RecordedRun) -> Iterator[tuple[Path, _Evaluation | str]]:
    """Yields the path of each such file of a run, and its content, or why it cannot be read."""
    for path in sorted((run.path / "evaluations").glob("*.json")):
        try:
            read = msgspec.json.decode(path.read_bytes(), type=dict)
            problem = format_problem(read.get("format", 1), FORMAT)
            yield path, problem or msgspec.convert(read, _Evaluation)
        except ValueError as error:
            yield path, f"is no evaluation that this version of muxrl writes ({error})"
