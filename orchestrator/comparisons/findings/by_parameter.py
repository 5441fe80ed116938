"""What runs reach at each value of a parameter of the episodes (`simulation.parameters`)."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from muxrl.client.adapters.simulation import COMMON
from muxrl.client.episode_parameters import draw
from muxrl.orchestrator.comparisons.findings.compared_runs import Budget, ComparedRun, point_at
from muxrl.orchestrator.comparisons.findings.contestants import Contestant, Subject
from muxrl.orchestrator.config.parameters import of_evaluations
from muxrl.orchestrator.measure.rliable import interquartile_mean_interval
from muxrl.orchestrator.measure.statistics import Estimate, Floats
from muxrl.orchestrator.records.series import EvaluationPoint
from muxrl.orchestrator.storage.checkpoints import LAST, CheckpointFolder
from muxrl.protocol.suggestions import listed

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
    played = {run: list(_played(run, budget)) for run in runs}
    for name in dict.fromkeys(key for run in runs for key in run.config.simulation.parameters):
        counted = {run: [one.counts_for(name) for one in played[run]] for run in runs}
        drawn = {
            run: np.concatenate(
                [one.drawn[name][c] for one, c in zip(played[run], counted[run], strict=True)]
            )
            for run in runs
        }
        groups = _groups(np.concatenate(list(drawn.values())))
        for value, low, high in groups if len(groups) > 1 else ():
            for subject in (s for s in subjects if s.metric != name):
                for contestant in contestants:
                    scores, num_episodes = [], 0
                    for run in contestant.runs:
                        measured = [subject.measured(one.point) for one in played[run]]
                        if list(map(len, measured)) != list(map(len, counted[run])):
                            continue
                        returns = np.concatenate(
                            [m[c] for m, c in zip(measured, counted[run], strict=True)]
                        )
                        inside = (drawn[run] >= low) & (drawn[run] <= high)
                        returns = returns[inside & np.isfinite(returns)]
                        scores += [float(returns.mean())] if len(returns) else []
                        num_episodes += len(returns)
                    if scores:
                        score = interquartile_mean_interval([np.array(scores)])
                        key = contestant.name, subject.key, name, value
                        yield AtValue(*key, score, len(scores), num_episodes)


def parameter_notes(runs: Sequence[ComparedRun]) -> list[str]:
    """Says which parameters evaluations had at different values."""
    given = [of_evaluations(run.config) for run in runs]
    names = dict.fromkeys(name for one in given for name in one)
    differing = [
        name for name in names if any(one.get(name) != given[0].get(name) for one in given)
    ]
    if not differing:
        return []
    return [
        f"runs were evaluated with different values of {listed(differing)}, so only returns at one "
        "value of it say who is better"
    ]


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


def _played(run: ComparedRun, budget: Budget) -> Iterator[_Played]:
    """Yields the run's evaluation, and those of the same policies afterwards."""
    names = list(run.config.simulation.parameters)
    given = of_evaluations(run.config)
    first = run.config.evaluation.seed
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
    for path in sorted((run.path / "evaluations").glob("*.json")):
        told = json.loads(path.read_text())
        checkpoints = {server["checkpoint"] for server in told["servers"].values()} - {""}
        known = {f"checkpoints/{name}/{server}" for name in names for server in run.servers}
        rules = {server["rule"] for server in told["servers"].values()} - {"fixed"}
        rule = "sampled" if run.should_explore else "greedy"
        if checkpoints <= known and not told["replaced"] and rules <= {rule}:
            returns, metrics = told["episode_returns"], told["episode_metrics"]
            point = EvaluationPoint(budget.place, returns={None: returns}, metrics={None: metrics})
            yield point, told["seeds"]
