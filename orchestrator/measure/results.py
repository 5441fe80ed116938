"""The results of one run, or of several that differ in nothing but the seed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, is_dataclass
from itertools import combinations
from typing import Any

from muxrl.orchestrator.errors import DifferentRuns
from muxrl.orchestrator.measure.against_random import AgainstRandom
from muxrl.orchestrator.measure.judged import (
    MetricResult,
    ServerResult,
    metric_results,
    server_result,
)
from muxrl.orchestrator.measure.run_notes import headline, notes_of
from muxrl.orchestrator.measure.statistics import Unit
from muxrl.orchestrator.records.recorded_run import RecordedRun
from muxrl.protocol.suggestions import listed

_RANDOM_RULE = (
    "Random in its place: this server's agents act uniformly at random, all others as learned. "
)
_UNTRAINED_RULE = (
    "Untrained: this server's agents act with the weights that the server began with, all others "
    "as learned. "
)

_MAX_CONFLICTS = 3
"""Most differences between two runs that an error names."""
_MEANING = {
    Unit.SEEDS: "what to expect of training again with other seeds",
    Unit.EPISODES: "what to expect of these policies in other episodes",
}
_RULES = {None: None, True: "sampled", False: "greedy"}
_WRITTEN = (
    *("algorithm", "agents", "learns", "has_updates", "env_steps", "train_return"),
    *("shadow", "over_acting"),
)
"""Attributes of a server's result that ``summary.json`` has."""


@dataclass(frozen=True)
class Report:
    """All that is written, printed or drawn of the runs of one experiment."""

    runs: tuple[RecordedRun, ...]
    """One run for each seed."""
    unit: Unit
    """What intervals are over: seeds if there are several runs, unless episodes were asked for."""
    servers: tuple[ServerResult, ...]
    metrics: tuple[MetricResult, ...]
    """The results of metrics; of each metric, that of whole episodes comes first."""
    notes: tuple[str, ...] = ()
    """What a reader must know before trusting the numbers."""

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the runs' folders."""
        return tuple(run.name for run in self.runs)

    @property
    def assignment(self) -> str:
        """The assignment, which is the same in all runs."""
        return self.runs[0].assignment

    @property
    def seeds(self) -> tuple[int | None, ...]:
        """The seeds of the runs."""
        return tuple(run.seed for run in self.runs)

    @property
    def should_explore(self) -> bool | None:
        """Whether evaluated policies sampled their actions; None if nothing was evaluated."""
        return next((r.should_explore for r in self.runs if r.should_explore is not None), None)

    @property
    def resumed_at(self) -> tuple[int, ...]:
        """Env steps at which runs were resumed."""
        return tuple(sorted({n for run in self.runs for n in run.resumed_at}))

    @property
    def restarted_at(self) -> dict[str, tuple[int, ...]]:
        """By process: the env steps at which it was lost and started again, in any of the runs."""
        names = sorted({name for run in self.runs for name in run.restarted_at})
        at = {s: [n for run in self.runs for n in run.restarted_at.get(s, ())] for s in names}
        return {name: tuple(sorted(env_steps)) for name, env_steps in at.items()}

    @property
    def interval_unit(self) -> str:
        """What the intervals are over, in words."""
        return "episodes" if self.unit is Unit.EPISODES else f"{len(self.seeds)} seeds"

    @property
    def has_untrained(self) -> bool:
        """Whether any server's untrained policies were measured, too."""
        judged = (one for server in self.servers for one in (server, *server.parts.values()))
        return any(one.final is not None and one.final.untrained is not None for one in judged)

    @property
    def headline(self) -> tuple[str, ...]:
        """The main results: a sentence for each server that learns, or for each of its sides."""
        return tuple(headline(self.servers, len(self.seeds), self.interval_unit))

    @property
    def caption(self) -> str:
        """A text on how the numbers were measured."""
        finals = [server.final for server in self.servers if server.final is not None]
        if not finals:
            return (
                "Nothing was evaluated: there are only training returns, which include exploration."
            )
        num_seeds = len(self.seeds)
        env_steps = _spread([final.env_steps for final in finals])
        episodes = _spread([final.num_episodes for final in finals])
        random_episodes = _spread(
            [final.num_random_episodes for final in finals if final.num_random_episodes]
        )
        counted = "episodes" if num_seeds == 1 else f"episodes in all, from {num_seeds} seeds"
        counts = f"{episodes} {counted}"
        earlier = _spread([c.num_episodes for s in self.servers for c in s.curve[:-1]])
        if earlier and earlier != episodes:
            counts += f" ({earlier} in each earlier evaluation)"
        if random_episodes and random_episodes != episodes:
            counts += f", {random_episodes} with random agents in its place"
        actions = "sampled (greedy for value-based learners)" if self.should_explore else "greedy"
        seeds = ", ".join(map(str, self.seeds))
        return (
            f"Evaluated after {env_steps} env steps: {counts}, {actions} actions, "
            f"seed{'s' if num_seeds > 1 else ''} {seeds}. "
            "Return: the sum of an agent's rewards in an episode, averaged over the server's "
            "agents. "
            + (_RANDOM_RULE if any(server.learns for server in self.servers) else "")
            + (_UNTRAINED_RULE if self.has_untrained else "")
            + f"Intervals: 95 % over {self.interval_unit}: {_MEANING[self.unit]}. "
            + "Train return: the mean over recent training episodes, exploration included."
        )

    def to_dict(self) -> dict[str, Any]:
        """Returns the content of ``summary.json``."""
        statuses = [run.status for run in self.runs]
        servers = {
            server.server_id: {
                **{name: getattr(server, name) for name in _WRITTEN},
                "final": server.final,
                "plays_itself": server.plays_itself,
                "sides": {
                    side.name: {"agents": side.agents, "final": side.final, "curve": side.curve}
                    for side in server.sides
                },
                "curve": server.curve,
            }
            for server in self.servers
        }
        metrics = [{k: v for k, v in vars(m).items() if k != "training"} for m in self.metrics]
        return {
            "runs": self.names,
            "assignment": self.assignment,
            "seeds": self.seeds,
            "states": [status and status.state for status in statuses],
            "causes": [status and status.cause for status in statuses],
            "resumed_at": self.resumed_at,
            "restarted_at": self.restarted_at,
            "num_lost_episodes": sum(run.num_lost_episodes for run in self.runs),
            "intervals_over": self.unit,
            "evaluated_actions": _RULES[self.should_explore],
            "caption": self.caption,
            "notes": self.notes,
            "servers": _plain(servers),
            "metrics": _plain(metrics),
        }


def _plain(value: Any) -> Any:
    """Converts nested results for JSON; comparisons with random also get their verdicts."""
    if isinstance(value, dict):
        return {key: _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    if isinstance(value, AgainstRandom):
        return {**asdict(value), "verdict": value.verdict}
    return asdict(value) if is_dataclass(value) and not isinstance(value, type) else value


def results_of(runs: Sequence[RecordedRun], *, over_episodes: bool = False) -> Report:
    """Computes the results of one run, or of several runs that differ in the seed.

    Args:
        runs: of one experiment.
        over_episodes: whether the intervals of several runs are over episodes, not over seeds.

    Raises:
        ValueError: there is no run.
        DifferentRuns: runs differ in the assignment, servers, settings, or rule of evaluation.
    """
    if not runs:
        raise ValueError("a report needs at least one run")
    for one, other in combinations(runs, 2):
        why = one.differences(other, "")
        if one.assignment != other.assignment:
            why = [f"assignment {one.assignment!r} against {other.assignment!r}"]
        elif one.servers != other.servers:
            mine, theirs = one.servers, other.servers
            why += [f"server {s!r}" for s in {**mine, **theirs} if mine.get(s) != theirs.get(s)]
        if why:
            raise DifferentRuns(one.name, other.name, listed(why, _MAX_CONFLICTS))
    unit = Unit.SEEDS if len(runs) > 1 and not over_episodes else Unit.EPISODES
    servers = tuple(server_result(runs, server_id, unit) for server_id in runs[0].servers)
    metrics = tuple(metric_results(runs, unit))
    return Report(tuple(runs), unit, servers, metrics, tuple(notes_of(runs, servers)))


def _spread(values: Sequence[float]) -> str:
    """Returns the text of the one value, or of the values' range; "" of none."""
    if not values:
        return ""
    low, high = round(min(values)), round(max(values))
    return f"{low:,}" if low == high else f"{low:,} to {high:,}"
