"""The results of one run, or of several that differ in nothing but the seed."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from itertools import combinations
from typing import Any

import numpy as np

from muxrl.orchestrator.config.experiment_settings import conflicts, experiment_settings
from muxrl.orchestrator.errors import ConfigError, DifferentRuns
from muxrl.orchestrator.measure.against_random import AgainstRandom, Verdict, against_random
from muxrl.orchestrator.measure.fallen import find_fall
from muxrl.orchestrator.measure.metric_results import MetricResult, metric_results
from muxrl.orchestrator.measure.sides import MAX_SIDES, play_against_each_other
from muxrl.orchestrator.measure.statistics import Unit
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
from muxrl.orchestrator.records.run_status import NOT_ENDED, RunStatus
from muxrl.orchestrator.storage.versions import version_notes
from muxrl.protocol.suggestions import listed

_RANDOM_RULE = (
    "Random in its place: this server's agents act uniformly at random, the others as learned. "
)
_UNTRAINED_RULE = "Untrained: they act, by the same rule, as the server began. "

_MAX_CONFLICTS = 3
"""Told of two runs."""
_SPEAKS_OF = {
    Unit.SEEDS: "they speak of training again, with other seeds",
    Unit.EPISODES: "they speak of these policies, in other episodes",
}
_RULES = {None: None, True: "sampled", False: "greedy"}
_WRITTEN = ("algorithm", "agents", "learns", "has_updates", "env_steps", "train_return")
"""Of a server, into ``summary.json``."""
SeedCurve = tuple[tuple[float, float], ...]
"""(env steps, mean return) of each evaluation of one seed."""


@dataclass(frozen=True)
class Judged:
    """The returns of a server's agents, or of one side of a server that plays itself."""

    subject: Subject
    final: AgainstRandom | None
    """Each seed's last evaluation, the last with random in place if there is one."""
    curve: tuple[AgainstRandom, ...]
    """Evaluations that all seeds have."""
    seed_curves: tuple[SeedCurve, ...]
    """For each seed."""

    @property
    def name(self) -> str:
        """Of the server, or the side."""
        return self.subject.name

    @property
    def agents(self) -> tuple[str, ...]:
        """Whose returns they are."""
        return self.subject.agents

    @property
    def verdict(self) -> Verdict | str:
        """That of the final evaluation; "" without one, or where random was not measured."""
        return (self.final.verdict if self.final else None) or ""


@dataclass(frozen=True)
class ServerResult(Judged):
    """The returns of one server's agents."""

    server_id: str
    algorithm: str
    learns: bool
    """False for fixed policies, which have no verdict."""
    env_steps: float
    """Env steps of training, mean over seeds."""
    train_return: float | None
    """Last mean return while training, exploration included, mean over seeds."""
    training: tuple[TrainingCurve, ...]
    """For each seed."""
    has_updates: bool
    """False if its learner made no update in any of the runs: it acts as it began."""
    is_played_by_others: bool = False
    """Whether simulations chose its agents' actions: of one that learns, when it was evaluated; of
    another in training at least."""
    plays_itself: bool = False
    """Whether its agents play against each other, so that their mean return says nothing."""
    sides: tuple[Judged, ...] = ()
    """Those of such a server, if they were replaced one at a time; each has a `final`."""

    @property
    def judgement(self) -> Verdict | str:
        """What the final evaluation says of its learning, in words; "" where it says nothing."""
        if self.is_played_by_others:
            return "logged actions"
        if not self.learns:
            return "does not learn"
        if not self.has_updates:
            return "made no update"
        if self.plays_itself:
            return "side by side" if self.sides else "plays itself"
        return self.verdict


@dataclass(frozen=True)
class Report:
    """All that is written, printed or drawn of a run."""

    names: tuple[str, ...]
    """Of the runs' folders."""
    assignment: str
    seeds: tuple[int | None, ...]
    should_explore: bool | None
    """Whether evaluated policies sampled their actions; None if nothing was evaluated."""
    unit: Unit
    """What intervals are over: of several runs their seeds, unless their episodes are asked for."""
    servers: tuple[ServerResult, ...]
    notes: tuple[str, ...]
    """What a reader must know before trusting the numbers."""
    statuses: tuple[RunStatus | None, ...] = ()
    """How each run ended; None where nobody wrote that down."""
    resumed_at: tuple[int, ...] = ()
    """Env steps at which runs were resumed."""
    restarted_at: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    """By process, the env steps at which it was lost and started again, in any of the runs."""
    num_lost_episodes: int = 0
    """Training episodes of all runs that were closed early since a process was lost."""
    metrics: tuple[MetricResult, ...] = ()
    """What the simulation says of its episodes."""

    @property
    def interval_unit(self) -> str:
        """What the intervals are over, in words."""
        return "episodes" if self.unit is Unit.EPISODES else f"{len(self.seeds)} seeds"

    @property
    def has_untrained(self) -> bool:
        """Whether any server was measured as it began, beside as it learned."""
        return any(
            final.untrained is not None
            for server in self.servers
            for final in (server.final, *(side.final for side in server.sides))
            if final is not None
        )

    @property
    def caption(self) -> str:
        """Says how the numbers were measured."""
        finals = [server.final for server in self.servers if server.final is not None]
        if not finals:
            return "Nothing was evaluated: training returns only, exploration included."
        num_seeds = len(self.seeds)
        env_steps = _spread([final.env_steps for final in finals])
        episodes = _spread([final.num_episodes for final in finals])
        random_episodes = _spread(
            [final.num_random_episodes for final in finals if final.num_random_episodes]
        )
        counted = "episodes" if num_seeds == 1 else f"episodes in all, of {num_seeds} seeds"
        counts = f"{episodes} {counted}"
        earlier = _spread([c.num_episodes for s in self.servers for c in s.curve[:-1]])
        if earlier and earlier != episodes:
            counts += f" ({earlier} at each earlier point)"
        if random_episodes and random_episodes != episodes:
            counts += f", {random_episodes} with random in place"
        actions = "sampled (of value-based learners greedy)" if self.should_explore else "greedy"
        seeds = ", ".join(map(str, self.seeds))
        return (
            f"Evaluated after {env_steps} env steps: {counts}, {actions} actions, "
            f"seed{'s' if num_seeds > 1 else ''} {seeds}. "
            "Return: sum of an agent's rewards in an episode, mean over the server's agents. "
            + (_RANDOM_RULE if any(server.learns for server in self.servers) else "")
            + (_UNTRAINED_RULE if self.has_untrained else "")
            + f"Intervals: 95 % over {self.interval_unit}: {_SPEAKS_OF[self.unit]}. "
            + "Train return: exploration included, recent episodes."
        )

    def to_dict(self) -> dict[str, Any]:
        """Returns the same for ``summary.json``."""
        return {
            "runs": self.names,
            "assignment": self.assignment,
            "seeds": self.seeds,
            "states": [status and status.state for status in self.statuses],
            "causes": [status and status.cause for status in self.statuses],
            "resumed_at": self.resumed_at,
            "restarted_at": self.restarted_at,
            "num_lost_episodes": self.num_lost_episodes,
            "intervals_over": self.unit,
            "evaluated_actions": _RULES[self.should_explore],
            "caption": self.caption,
            "notes": self.notes,
            "servers": {
                server.server_id: {
                    **{name: getattr(server, name) for name in _WRITTEN},
                    "final": server.final and _comparison(server.final),
                    "plays_itself": server.plays_itself,
                    "sides": {
                        side.name: {
                            "agents": side.agents,
                            "final": side.final and _comparison(side.final),
                            "curve": [*map(_comparison, side.curve)],
                        }
                        for side in server.sides
                    },
                    "curve": [*map(_comparison, server.curve)],
                }
                for server in self.servers
            },
            "metrics": [metric.to_dict() for metric in self.metrics],
        }


def results_of(runs: Sequence[RecordedRun], *, over_episodes: bool = False) -> Report:
    """Computes the results of one run, or of one run for each seed of an experiment.

    Args:
        runs: of one experiment.
        over_episodes: whether the intervals of several runs speak of their episodes, not of
            training with any seed.

    Raises:
        ValueError: there is no run.
        DifferentRuns: they differ in the assignment, the servers, or the rule of evaluation.
    """
    if not runs:
        raise ValueError("a report needs at least one run")
    for one, other in combinations(runs, 2):
        _check_same_experiment(one, other)
    unit = Unit.SEEDS if len(runs) > 1 and not over_episodes else Unit.EPISODES
    servers = tuple(_server_result(runs, server_id, unit) for server_id in runs[0].servers)
    return Report(
        names=tuple(run.name for run in runs),
        assignment=runs[0].assignment,
        seeds=tuple(run.seed for run in runs),
        should_explore=next((r.should_explore for r in runs if r.should_explore is not None), None),
        unit=unit,
        servers=servers,
        notes=tuple(_notes(runs, servers)),
        statuses=tuple(run.status for run in runs),
        resumed_at=tuple(sorted({n for run in runs for n in run.resumed_at})),
        restarted_at={
            name: tuple(sorted(n for run in runs for n in run.restarted_at.get(name, ())))
            for name in sorted({name for run in runs for name in run.restarted_at})
        },
        num_lost_episodes=sum(run.num_lost_episodes for run in runs),
        metrics=metric_results(runs, unit),
    )


def _judged(runs: Sequence[RecordedRun], subject: Subject, in_place: str, unit: Unit) -> Judged:
    """Returns what some of a server's agents returned; `final` is of evaluations with random in
    place, if all runs have such a one."""
    found = [measured(run.evaluations, run.points, subject, in_place) for run in runs]
    last = last_of_each(found, [in_place])
    return Judged(
        subject,
        against_random(last, unit) if last else None,
        tuple(against_random(points, unit) for points in _aligned(found)),
        tuple(map(curve_of, found)),
    )


def _side_results(runs: Sequence[RecordedRun], server_id: str, unit: Unit) -> Iterator[Judged]:
    """Yields the sides that all runs have, each at the run's last evaluation side by side."""
    last = [next((p for p in run.points[::-1] if server_id in p.sides), None) for run in runs]
    sides = [point.sides[server_id] for point in last if point is not None]
    if len(sides) < len(runs):
        return
    for side, agents in sides[0].items():
        in_place = Condition(server_id, side).key or ""
        found = _judged(runs, Subject("side", side, agents), in_place, unit)
        is_measured = found.final is not None and found.final.random is not None
        if is_measured and all(other.get(side) == agents for other in sides):
            yield found


def _server_result(runs: Sequence[RecordedRun], server_id: str, unit: Unit) -> ServerResult:
    server = runs[0].servers[server_id]
    training = tuple(run.training[server_id] for run in runs)
    last_returns = [curve.returns[-1] for curve in training if len(curve.returns)]
    subject = Subject("server", server_id, server.agents)
    sides = tuple(_side_results(runs, server_id, unit)) if server.learns else ()
    return ServerResult(
        **vars(_judged(runs, subject, server_id, unit)),
        server_id=server_id,
        algorithm=server.algorithm,
        learns=server.learns,
        env_steps=float(np.mean([run.env_steps[server_id] for run in runs])),
        train_return=float(np.mean(last_returns)) if last_returns else None,
        training=training,
        has_updates=any(run.weights_seq_no.get(server_id, 1) > 0 for run in runs),
        is_played_by_others=any(_is_played_by_others(run, server_id) for run in runs),
        plays_itself=bool(sides)
        or any(
            play_against_each_other(_last_returns(run, server_id), server.agents)
            for run in runs
            if run.points
        ),
        sides=sides,
    )


def _last_returns(run: RecordedRun, server_id: str) -> list[AgentReturns]:
    """Returns what a server's agents returned in the last evaluation, at random and as learned."""
    point = run.points[-1]
    columns = [(RETURN, agent) for agent in run.servers[server_id].agents]
    last = run.evaluations.loc[point.env_steps].reindex(columns=columns).droplevel("metric", axis=1)
    return [
        last.loc[who].to_dict("list")
        for who in (server_id, AS_LEARNED)
        if who in point.num_episodes
    ]


def _is_played_by_others(run: RecordedRun, server_id: str) -> bool:
    server = run.servers[server_id]
    if not server.learns:
        return server_id in run.num_logged_actions
    return any(not point.logged_agents.isdisjoint(server.agents) for point in run.points[-1:])


def _aligned(runs: Sequence[Sequence[Measured]]) -> list[list[Measured]]:
    """For each number of env steps at which all runs were evaluated, their points there."""
    at = [{point.env_steps: point for point in points} for points in runs]
    return [[of_run[n] for of_run in at] for n in sorted(set.intersection(*map(set, at)))]


def _check_same_experiment(first: RecordedRun, other: RecordedRun) -> None:
    """Refuses runs that differ in what decides how they play and learn; configs that cannot be
    read are passed over."""
    told = []
    if first.servers != other.servers or first.assignment != other.assignment:
        told = [f"assignment {first.assignment!r} against {other.assignment!r}"]
    elif len({first.should_explore, other.should_explore} - {None}) > 1:
        told = ["one was evaluated greedily, the other by sampling"]
    else:
        with contextlib.suppress(FileNotFoundError, ConfigError):
            told = conflicts(experiment_settings(first.config), experiment_settings(other.config))
    if told:
        raise DifferentRuns(first.name, other.name, listed(told, _MAX_CONFLICTS))


def _notes(runs: Sequence[RecordedRun], servers: Sequence[ServerResult]) -> Iterable[str]:
    for run in runs:
        if run.resumed_at:
            at = ", ".join(f"{n:,}" for n in run.resumed_at)
            yield f"run {run.name} was resumed at {at} env steps (thin vertical line)"
        for name, restarted_at in run.restarted_at.items():
            at = ", ".join(f"{n:,}" for n in restarted_at)
            yield (
                f"in run {run.name}, {name} was lost and started again {len(restarted_at)}×, at "
                f"{at} env steps (thin vertical line)"
            )
        if run.num_lost_episodes:
            yield (
                f"run {run.name} lost {run.num_lost_episodes} training episodes with these "
                "processes; the servers that lived keep them as truncated"
            )
        if run.num_bad_episodes:
            yield (
                f"in run {run.name}, {run.num_bad_episodes} training episodes ended at a value "
                "that a server refused (simulation.on_bad_value); the simulations' logs name each"
            )
        for name, num in run.num_random_episodes.items():
            yield (
                f"run {run.name}: agents of {name} acted at random in {num} training episodes, "
                "while it was lost; their returns are in no training curve of the run, and the "
                "other servers learned from them"
            )
        for name, found in run.status.warnings.items() if run.status else ():
            whose = f"the log of {name} warns of " if name else ""
            for one in found:
                if not one.text:  # of a whole run
                    yield f"run {run.name} was warned: {one.what}"
                    continue
                yield (
                    f"in run {run.name}, {whose}{one.what} {one.num:,}×, first at "
                    f"{one.env_steps:,} env steps: {one.text}"
                )
        for name, num in run.num_logged_actions.items():
            returns = "returns are those"
            if run.servers[name].learns:
                returns = "train return is that"
            yield (
                f"in run {run.name}, simulations chose {num:,} actions of {name} themselves "
                f"(logged_actions): its {returns} of whatever chose them, which may learn, and not "
                "of its algorithm alone"
            )
        for name, planned in run.servers.items():
            if planned.learns and _is_played_by_others(run, name):
                yield (
                    f"in run {run.name}, simulations chose actions of {name} in its last "
                    "evaluation, too: it measures neither what was learned nor random actions; "
                    "take the servers' actions in episodes whose start says is_evaluation"
                )
        for server in servers:
            if server.learns and run.weights_seq_no.get(server.server_id) == 0:
                why = "its first batch needs more env steps"
                was_played = any(run.env_steps.values())  # a run may fail before its first row
                if was_played and run.env_steps[server.server_id] == 0:
                    why = "none of its agents acted in a training episode"
                    if server.server_id in run.restarted_at:
                        why = "it was lost and began again"
                yield (
                    f"in run {run.name}, {server.server_id} made no update: its policies are those "
                    f"that it began with, since {why}"
                )
        is_done = run.status is not None and run.status.state == "done"  # else it says its cause
        has_ended = run.points or any(len(curve.returns) for curve in run.training.values())
        if is_done and not has_ended:
            yield (
                f"run {run.name}: no episode ended, so that there are no returns and no metrics; "
                "its episodes are longer than the run, or the simulation ends none"
            )
        elif unheard := [m for m in run.metrics if m not in run.metric_names]:
            yield (
                f"run {run.name}: no episode had {', '.join(map(repr, unheard))}, which "
                "simulation.metrics asks for; do the simulation's infos have them?"
            )
        status = run.status
        if status is None or (status.state == "done" and not status.cause):
            continue
        if status.state == "done":
            yield f"run {run.name}: {status.cause}"
        elif status.has_ended:
            yield f"run {run.name} ended as {status.state}: {status.cause}"
        else:
            yield f"run {run.name} {NOT_ENDED}"
    finals = [server.final for server in servers if server.final is not None]
    if not finals:
        unevaluated = [run.name for run in runs if not run.points]
        if any(run.points for run in runs):
            yield f"never evaluated: {', '.join(unevaluated)}; so there is no return of all seeds"
        else:
            yield "no evaluation was recorded; training returns include exploration"
    without = [
        s.server_id for s in servers if s.learns and s.final is not None and s.final.random is None
    ]
    if without:
        yield f"never measured with random in its place: {', '.join(without)}"
    for server in servers:
        yield from _judging_notes(server)
    if any(final.env_steps == 0 for final in finals) and any(s.learns for s in servers):
        yield "the last evaluation is the one before training: it shows untrained policies"
    for server in servers:
        if server.learns and (fall := find_fall(server.curve, server.final, server.training)):
            yield (
                f"{server.server_id} returns less than at its own beginning: {fall}; others "
                "may have learned against it, or a schedule of its settings does not fit the run"
            )
    last = [run.points[-1].env_steps for run in runs if run.points]
    if len(runs) > 1 and last and min(last) < max(last):
        yield (
            f"the runs' last evaluations lie between {min(last):,} and {max(last):,} env steps; "
            "the final numbers mix them"
        )
    yield from version_notes([run.versions for run in runs])
    if len(runs) > len({run.seed for run in runs}):
        yield "two of the runs have the same seed; they are not independent"


def _judging_notes(server: ServerResult) -> Iterator[str]:
    if not (server.learns and server.has_updates):
        return
    who = server.server_id
    if server.plays_itself:
        reason = f"{who} plays against itself, so that the mean over its agents says nothing"
        if server.sides:
            yield f"{reason}: each side was replaced alone, the others as learned"
        else:
            yield (
                f"{reason}, and its sides were not replaced one at a time: that is done by the "
                f"final evaluation, of up to {MAX_SIDES} sides"
            )
        judged: list[tuple[str, Judged]] = [(f"{who}/{side.name}", side) for side in server.sides]
    else:
        judged = [(who, server)]
    for name, one in judged:
        if one.verdict is Verdict.NOT_THAN_UNTRAINED:
            yield (
                f"{name} is better than random, but not than untrained: it may owe that to how it "
                "acts (greedily, or by one rule all the time), not to what it learned"
            )


def _comparison(comparison: AgainstRandom) -> dict[str, Any]:
    return {**asdict(comparison), "verdict": comparison.verdict}


def _spread(values: Sequence[float]) -> str:
    """The value, or the ends of the values' range."""
    if not values:
        return ""
    low, high = round(min(values)), round(max(values))
    return f"{low:,}" if low == high else f"{low:,} to {high:,}"
