"""What runs reach at each value of a parameter of the episodes (`simulation.parameters`)."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path

import msgspec
import numpy as np

from muxrl.client.adapters.simulation import COMMON
from muxrl.client.episode_parameters import draw
from muxrl.orchestrator.comparisons.findings.compared_runs import Budget, ComparedRun, point_at
from muxrl.orchestrator.comparisons.findings.contestants import Contestant, Subject
from muxrl.orchestrator.config.parameters import of_evaluations
from muxrl.orchestrator.config.seeds import evaluation_seed
from muxrl.orchestrator.evaluations.evaluate import FORMAT
from muxrl.orchestrator.measure.against_random import share_episodes
from muxrl.orchestrator.measure.rliable import interquartile_mean_interval
from muxrl.orchestrator.measure.statistics import NO_LUCK, Estimate, Floats, shared_luck
from muxrl.orchestrator.records.rows import AgentReturns, Metrics
from muxrl.orchestrator.records.series import EvaluationPoint
from muxrl.orchestrator.storage.checkpoints import LAST, CheckpointFolder
from muxrl.protocol.suggestions import listed
from muxrl.servers.checkpoints.formats import format_problem

_MOST_VALUES = 6
"""Of a parameter with more of them, each quarter of the episodes is one."""


@dataclass(frozen=True)
class AtValue:
    """What a contestant reached in the episodes with one value of a parameter.

    Attributes:
        contestant: its name.
        subject: key of the agents measured.
        parameter: its name.
        value: as text; of one that has many, a range.
        score: interquartile mean over its runs.
        num_runs: that were evaluated so.
        num_episodes: of all these.
    """

    contestant: str
    subject: str
    parameter: str
    value: str
    score: Estimate
    num_runs: int
    num_episodes: int


def compare_by_parameter(
    contestants: Sequence[Contestant], subjects: Sequence[Subject], budget: Budget
) -> Iterator[AtValue]:
    """Yields what each contestant reached, by parameter, value and subject.

    Of each run its evaluation at the budget counts, and of those that ``muxrl evaluate`` wrote of
    the same policies the further episodes whose other parameters are as in the run's own. A
    parameter with one value in all of these is left out.
    """
    runs = [run for contestant in contestants for run in contestant.runs]
    names = dict.fromkeys(key for run in runs for key in run.config.simulation.parameters)
    played = {run: list(_played(run, budget)) for run in runs} if names else {}
    for name in names:
        counted = {
            run: _Counted(name, evaluations)
            for run, evaluations in played.items()
            if name in run.config.simulation.parameters
        }
        groups = _groups(np.concatenate([one.values for one in counted.values()]))
        if len(groups) < 2:
            continue
        told = [subject for subject in subjects if subject.metric != name]
        for (value, low, high), subject, contestant in product(groups, told, contestants):
            of_contestant = [counted[run] for run in contestant.runs if run in counted]
            found = [run.returns(subject, low, high) for run in of_contestant]
            of_runs = [returns for returns in found if len(returns)]
            if of_runs:
                own = [played[run][0].point for run in contestant.runs]
                luck = shared_luck(of_runs) if share_episodes(own) else NO_LUCK
                means = np.array([returns.mean() for returns in of_runs])
                yield AtValue(
                    contestant=contestant.name,
                    subject=subject.key,
                    parameter=name,
                    value=value,
                    score=interquartile_mean_interval([means], luck),
                    num_runs=len(of_runs),
                    num_episodes=sum(map(len, of_runs)),
                )


def parameter_notes(runs: Sequence[ComparedRun]) -> list[str]:
    """Says which parameters evaluations had at different values, and which are passed over."""
    notes = [
        f"returns by parameter leave out {path}: it {found}"
        for run in runs
        if run.config.simulation.parameters
        for path, found in _evaluations(run)
        if isinstance(found, str)
    ]
    given = [of_evaluations(run.config) for run in runs]
    names = dict.fromkeys(name for one in given for name in one)
    differing = [
        name for name in names if any(one.get(name) != given[0].get(name) for one in given)
    ]
    if differing:
        notes.append(
            f"runs were evaluated with different values of {listed(differing)}, so only returns at "
            "one value of it say who is better"
        )
    return notes


def _groups(values: Floats) -> list[tuple[str, float, float]]:
    """Returns each value, or range of values, with its ends, which belong to it."""
    found = np.unique(values[np.isfinite(values)])
    if len(found) <= _MOST_VALUES:
        return [(f"{value:g}", value, value) for value in found]
    ranges = [part for part in np.array_split(found, 4) if len(part)]
    return [(f"{part[0]:.3g} to {part[-1]:.3g}", part[0], part[-1]) for part in ranges]


@dataclass(frozen=True)
class _Played:
    """An evaluation of a run's policies at the budget.

    Attributes:
        point: what was returned.
        drawn: value of each parameter in each episode.
        usual: that of the run's own evaluations in episodes of these seeds.
        is_new: episodes that no evaluation before it has.
    """

    point: EvaluationPoint
    drawn: Mapping[str, Floats]
    usual: Mapping[str, Floats]
    is_new: np.ndarray

    def counts_for(self, name: str) -> np.ndarray:
        """Returns the episodes in which no other parameter has a value of its own."""
        found = self.is_new
        for other in self.drawn.keys() - {name}:
            found = found & np.isclose(self.drawn[other], self.usual[other], equal_nan=True)
        return found


class _Counted:
    """The episodes of a run in which only one parameter, if any, has a value of its own.

    Args:
        name: of that parameter.
        evaluations: of the run.
    """

    def __init__(self, name: str, evaluations: Sequence[_Played]) -> None:
        self._evaluations = evaluations
        self._masks = [one.counts_for(name) for one in evaluations]
        self.values = self._of_counted([one.drawn[name] for one in evaluations])

    def returns(self, subject: Subject, low: float, high: float) -> Floats:
        """Returns what the subject got at values from `low` to `high`.

        That is nothing if an evaluation did not measure the subject in each episode.
        """
        measured = [subject.measured(one.point) for one in self._evaluations]
        if any(len(m) != len(mask) for m, mask in zip(measured, self._masks, strict=True)):
            return np.zeros(0)
        found = self._of_counted(measured)
        is_inside = (self.values >= low) & (self.values <= high)
        return found[is_inside & np.isfinite(found)]

    def _of_counted(self, by_evaluation: Sequence[Floats]) -> Floats:
        return np.concatenate([m[c] for m, c in zip(by_evaluation, self._masks, strict=True)])


def _played(run: ComparedRun, budget: Budget) -> Iterator[_Played]:
    """Yields the run's evaluation, and those of the same policies afterwards."""
    names = list(run.config.simulation.parameters)
    given = of_evaluations(run.config)
    first = evaluation_seed(run.config)
    known: set[tuple[float, ...]] = set()
    own = point_at(run, budget)
    num = max((len(values) for values in own.returns[None].values()), default=0)
    for point, seeds in [(own, list(range(first, first + num))), *_written(run, budget)]:
        empty = np.full(len(seeds), math.nan)
        found = {name: point.episodes([COMMON], metric=name) for name in names}
        drawn = {name: v if len(v) == len(seeds) else empty for name, v in found.items()}
        told = [draw(given, seed) for seed in seeds]
        usual = {name: np.array([one[name] for one in told], np.float64) for name in names}
        keys = [(seed, *(drawn[name][i] for name in names)) for i, seed in enumerate(seeds)]
        is_new = np.array([key not in known for key in keys], bool)
        known.update(keys)
        yield _Played(point, drawn, drawn if point is own else usual, is_new)


def _written(run: ComparedRun, budget: Budget) -> Iterator[tuple[EvaluationPoint, list[int]]]:
    """Yields the evaluations that were made of a run's policies at the budget afterwards, and the
    seeds of their episodes."""
    last = CheckpointFolder(run.path / "checkpoints").find(LAST)
    names = {str(budget.place)}
    if last is not None and not budget.is_cut:
        names |= {LAST, last.resolve().name}
    for _, told in _evaluations(run):
        if isinstance(told, str):
            continue
        checkpoints = {server.checkpoint for server in told.servers.values()} - {""}
        known = {f"checkpoints/{name}/{server}" for name in names for server in run.servers}
        rules = {server.rule for server in told.servers.values()} - {"fixed"}
        rule = "sampled" if run.should_explore else "greedy"
        if checkpoints <= known and not told.replaced and rules <= {rule}:
            point = EvaluationPoint(
                budget.place,
                returns={None: told.episode_returns},
                metrics={None: told.episode_metrics},
            )
            yield point, told.seeds


class _Server(msgspec.Struct):
    checkpoint: str
    rule: str


class _Evaluation(msgspec.Struct):
    """What counts here of a file that ``muxrl evaluate`` wrote."""

    servers: Mapping[str, _Server]
    replaced: Mapping[str, str]
    seeds: list[int]
    episode_returns: AgentReturns
    episode_metrics: Metrics


def _evaluations(run: ComparedRun) -> Iterator[tuple[Path, _Evaluation | str]]:
    """Yields each such file of a run, and what it says, or why it cannot be read."""
    for path in sorted((run.path / "evaluations").glob("*.json")):
        try:
            told = msgspec.json.decode(path.read_bytes(), type=dict)
            problem = format_problem(told.get("format", 1), FORMAT)
            yield path, problem or msgspec.convert(told, _Evaluation)
        except ValueError as error:
            yield path, f"is none that this muxrl writes ({error})"
