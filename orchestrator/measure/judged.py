"""Results of servers, their sides and the simulation's metrics in the runs of one experiment."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial

import numpy as np

from muxrl.client.adapters.simulation import COMMON
from muxrl.client.episode_metrics import TRUNCATED
from muxrl.orchestrator.measure.against_random import AgainstRandom, Verdict, against_random
from muxrl.orchestrator.measure.sides import play_against_each_other
from muxrl.orchestrator.measure.statistics import Estimate, Unit, are_proportions
from muxrl.orchestrator.measure.subjects import (
    Measured,
    Subject,
    curve_of,
    last_of_each,
    measured,
)
from muxrl.orchestrator.records.conditions import Condition
from muxrl.orchestrator.records.evaluations import AS_LEARNED, RETURN
from muxrl.orchestrator.records.recorded_run import RecordedRun, TrainingCurve
from muxrl.orchestrator.records.rows import AgentReturns

NO_UPDATE, SIDE_BY_SIDE, PLAYS_ITSELF = "made no update", "side by side", "plays itself"
"""Texts that stand in place of a server's verdict."""
SeedCurve = tuple[tuple[float, float], ...]
"""For each evaluation of one seed: (env steps, mean)."""


@dataclass(frozen=True)
class Judged:
    """The returns of a server's agents, or of one side of a server that plays itself."""

    subject: Subject
    final: AgainstRandom | None
    """The last evaluation of each seed, with random in place if all seeds have such a one."""
    curve: tuple[AgainstRandom, ...]
    """The evaluations at env steps at which all seeds have one."""
    seed_curves: tuple[SeedCurve, ...]
    """For each seed: its evaluations."""

    @property
    def name(self) -> str:
        """The name of the server, or of the side."""
        return self.subject.name

    @property
    def agents(self) -> tuple[str, ...]:
        """The agents whose returns these are."""
        return self.subject.agents

    @property
    def verdict(self) -> Verdict | str:
        """The verdict of the final evaluation; "" without one, or if random was not measured."""
        return (self.final.verdict if self.final else None) or ""


@dataclass(frozen=True)
class ServerResult(Judged):
    """The returns of one server's agents, and how the server was trained."""

    server_id: str
    algorithm: str
    learns: bool
    """False: its policies are fixed, and it has no verdict."""
    env_steps: float
    """Env steps of training, mean over seeds."""
    train_return: float | None
    """The last mean return during training, exploration included, mean over seeds."""
    training: tuple[TrainingCurve, ...]
    """For each seed: returns during training."""
    has_updates: bool
    """False: the server made no update in any run, and acts with its first weights."""
    is_played_by_others: bool = False
    """Whether this is so in any of the runs, see `RecordedRun.is_played_by_others`."""
    plays_itself: bool = False
    """Whether the agents play against each other, so that their mean return says nothing."""
    shadow: str = ""
    """The acting server from whose agents' steps this one learned; "": this one acted."""
    over_acting: AgainstRandom | None = None
    """For a shadow: its last evaluation in place of the acting server, compared with the acting
    server's returns instead of random agents' returns."""
    sides: tuple[Judged, ...] = ()
    """The sides of a server that plays itself, if they were replaced one at a time; each has a
    `final`."""

    @property
    def parts(self) -> dict[str, Judged]:
        """By name: the parts that are judged, which are its sides, or else the whole server."""
        return {f"{self.server_id}/{one.name}": one for one in self.sides} or {self.server_id: self}

    @property
    def trained_by(self) -> str:
        """The algorithm, and whose shadow the server was, if it was one."""
        return self.algorithm + (f", shadow of {self.shadow}" if self.shadow else "")

    @property
    def judgement(self) -> Verdict | str:
        """The verdict on the server's learning, or why there is none, in words; "" if unknown."""
        if self.is_played_by_others:
            return "logged actions"
        if not self.learns:
            return "does not learn"
        if not self.has_updates:
            return NO_UPDATE
        if self.plays_itself:
            return SIDE_BY_SIDE if self.sides else PLAYS_ITSELF
        return self.verdict


@dataclass(frozen=True)
class MetricResult:
    """One of the simulation's metrics, of whole episodes or of one server's agents.

    There are values, but no verdicts: only the simulation's author knows which values are better.
    """

    name: str
    server: str | None
    """The server over whose agents the mean is; None: it is the whole episode's metric."""
    train: float | None
    """The last mean during training, exploration included, mean over seeds."""
    env_steps: float | None
    """Env steps of training before the evaluation, mean over seeds; None: not evaluated."""
    evaluated: Estimate | None
    num_episodes: int
    """Number of evaluated episodes that have the metric, over all seeds."""
    random: dict[str, Estimate]
    """By server: the metric with its agents at random; of a server's metric, only its own."""
    curves: tuple[SeedCurve, ...]
    """For each seed: its evaluations."""
    training: tuple[TrainingCurve, ...]
    """For each seed: means during training; not written, the run's metrics have them."""


def _judged(
    runs: Sequence[RecordedRun], server_id: str, subject: Subject, in_place: str, unit: Unit
) -> Judged:
    """Returns the results of some of a server's agents; `in_place` is the condition that `final`
    compares them with, if all runs have it."""
    without = sum(not run.has_updates(server_id) for run in runs)
    judge = partial(against_random, unit=unit, num_without_update=without)
    found = [measured(run.evaluations, run.points, subject, in_place) for run in runs]
    last = last_of_each(found, [in_place])
    return Judged(
        subject,
        judge(last) if last else None,
        tuple(map(judge, _aligned(found))),
        tuple(map(curve_of, found)),
    )


def _side_results(runs: Sequence[RecordedRun], server_id: str, unit: Unit) -> Iterator[Judged]:
    """Yields the sides that all runs have, as of each run's last evaluation with sides."""
    last = [next((p for p in run.points[::-1] if server_id in p.sides), None) for run in runs]
    sides = [point.sides[server_id] for point in last if point is not None]
    if len(sides) < len(runs):
        return
    for side, agents in sides[0].items():
        in_place = Condition(server_id, side).key or ""
        found = _judged(runs, server_id, Subject("side", side, agents), in_place, unit)
        is_measured = found.final is not None and found.final.random is not None
        if is_measured and all(other.get(side) == agents for other in sides):
            yield found


def server_result(runs: Sequence[RecordedRun], server_id: str, unit: Unit) -> ServerResult:
    """Returns the results of one server's agents; intervals are over `unit`."""
    server = runs[0].servers[server_id]
    runs = [run.seen_by(server_id) for run in runs]
    training = tuple(run.training[server_id] for run in runs)
    subject = Subject("server", server_id, server.agents)
    sides = tuple(_side_results(runs, server_id, unit)) if server.learns else ()
    over = _judged(runs, server_id, subject, server.shadow, unit).final if server.shadow else None
    return ServerResult(
        **vars(_judged(runs, server_id, subject, server_id, unit)),
        shadow=server.shadow,
        over_acting=over if over and over.advantage else None,
        server_id=server_id,
        algorithm=server.algorithm,
        learns=server.learns,
        env_steps=float(np.mean([run.env_steps[server_id] for run in runs])),
        train_return=_last_mean(training),
        training=training,
        has_updates=any(run.has_updates(server_id) for run in runs),
        is_played_by_others=any(run.is_played_by_others(server_id) for run in runs),
        plays_itself=bool(sides) or any(plays_itself(run, server_id) for run in runs),
        sides=sides,
    )


def metric_results(runs: Sequence[RecordedRun], unit: Unit) -> Iterator[MetricResult]:
    """Yields the results of every metric that was recorded, in training or evaluations."""
    servers = runs[0].acting
    for name in sorted({name for run in runs for name in run.metric_names}):
        for server_id in (None, *servers):
            agents = (COMMON,) if server_id is None else servers[server_id].agents
            subject = Subject("metric", name, agents, name)
            # An episode's length and parameters are no proportions, even if all are 0 or 1.
            is_part = name in (*runs[0].metrics, TRUNCATED) and are_proportions(
                subject.of(run.evaluations).to_numpy() for run in runs
            )
            compared = [s for s, x in servers.items() if x.learns and server_id in (None, s)]
            found = [measured(run.evaluations, run.points, subject) for run in runs]
            last = last_of_each(found, compared)
            judged = {
                s: against_random(
                    [replace(point, in_place=s) for point in last], unit, is_proportion=is_part
                )
                for s in (["", *compared] if last else ())
            }
            curves = (run.metric_training.get((name, server_id)) for run in runs)
            training = tuple(curve for curve in curves if curve is not None)
            learned = judged.get("")
            if training or learned:
                yield MetricResult(
                    name=name,
                    server=server_id,
                    train=_last_mean(training),
                    env_steps=learned.env_steps if learned else None,
                    evaluated=learned.learned if learned else None,
                    num_episodes=learned.num_episodes if learned else 0,
                    random={s: one.random for s, one in judged.items() if s and one.random},
                    curves=tuple(map(curve_of, found)),
                    training=training,
                )


def _last_mean(training: Sequence[TrainingCurve]) -> float | None:
    """Returns the mean over seeds of each curve's last value; None if no episode had ended."""
    last = [curve.returns[-1] for curve in training if len(curve.returns)]
    return float(np.mean(last)) if last else None


def plays_itself(run: RecordedRun, server_id: str) -> bool:
    """Whether a server's agents play against each other, judged by a run's last evaluation."""
    agents = run.servers[server_id].agents
    return bool(run.points) and play_against_each_other(_last_returns(run, server_id), agents)


def _last_returns(run: RecordedRun, server_id: str) -> list[AgentReturns]:
    """Returns the returns of a server's agents in the last evaluation, random and as learned."""
    point = run.points[-1]
    columns = [(RETURN, agent) for agent in run.servers[server_id].agents]
    last = run.evaluations.loc[point.env_steps].reindex(columns=columns).droplevel("metric", axis=1)
    return [
        last.loc[who].to_dict("list")
        for who in (server_id, AS_LEARNED)
        if who in point.num_episodes
    ]


def _aligned(runs: Sequence[Sequence[Measured]]) -> list[list[Measured]]:
    """Returns, for each number of env steps at which all runs were evaluated, their evaluations."""
    at = [{point.env_steps: point for point in points} for points in runs]
    return [[of_run[n] for of_run in at] for n in sorted(set.intersection(*map(set, at)))]
