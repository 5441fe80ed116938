"""Warns of what is allowed in a config but hardly meant.

Such are plans for which the budget, the simulations or the machine's memory do not suffice, teams
of one, and settings without effect. Each algorithm declares what it needs (see
`muxrl.servers.trainers.budget`). Only `stop.env_steps` is a budget that is known beforehand. For
memory see `memory`.
"""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from muxrl.client.episode_metrics import OWN_METRICS
from muxrl.orchestrator.config.checks import awaited_metrics
from muxrl.orchestrator.config.experiment import Experiment
from muxrl.orchestrator.config.memory import find_overflow, find_replays
from muxrl.orchestrator.config.schema import ExperimentConfig
from muxrl.protocol.spaces import Box
from muxrl.protocol.suggestions import did_you_mean, listed
from muxrl.servers.config import ServerPlan
from muxrl.servers.lookup import find
from muxrl.servers.trainers.algorithm import Algorithm
from muxrl.servers.trainers.budget import Milestone, Schedule

_LONG_EPISODE = 100
"""Length of a long episode, in env steps. How long the episodes of an external simulation are is
unknown beforehand: there is no warning if the budget is enough for episodes of this length."""

_MANY = 0.1
"""Share of a batch's actions that may lag without a warning; the mean lag is at most this."""


class _Learner(NamedTuple):
    """A server that learns, as warnings look at it."""

    who: str
    algorithm: Algorithm
    plan: ServerPlan
    num_sharing: int
    """The largest number of units that share a policy; a unit is a team, or an agent in no team."""

    @property
    def milestones(self) -> Iterator[Milestone]:
        return self.algorithm.find_milestones(self.plan)

    def needs(self, milestone: Milestone, num: str) -> str:
        given = self.algorithm.values(self.plan)
        values = (f"{name}: {given[name]}" for name in milestone.settings)
        return f"{self.who}: {milestone.what} needs {num} ({', '.join(values)})"

    def num_env_steps(self, milestone: Milestone) -> int:
        """Returns the env steps that the simulation has to play, if all units act in each."""
        return max(milestone.env_steps, -(-milestone.team_steps // self.num_sharing))

    def num_episodes(self, milestone: Milestone) -> int:
        """Returns the episodes that the simulation has to play; each counts once for every unit."""
        return -(-milestone.episodes // self.num_sharing)


def warned(experiment: Experiment) -> Experiment:
    """Returns the experiment with its warnings, to be shown and recorded."""
    return replace(
        experiment,
        warnings=tuple(find_warnings(experiment)),
        may_be_warned_late=any(size.per_env_step for _, size in find_replays(experiment))
        or any(
            milestone.episodes
            for learner in _learners(experiment)
            for milestone in learner.milestones
        ),
    )


def find_warnings(experiment: Experiment) -> Iterator[str]:
    """Yields a sentence for each thing to know before one believes the results."""
    yield from (f"simulation.env: {note}" for note in experiment.facts.notes)
    yield from _find_absent_metrics(experiment)
    yield from _find_teams_of_one(experiment)
    yield from _find_idle_bounds(experiment)
    yield from _find_idle_serving(experiment)
    if experiment.is_external:
        yield from _find_idle_keys(experiment.config)
    yield from _find_lag(experiment)
    yield from find_overflow(experiment)
    budget = experiment.config.stop.env_steps
    if budget is None:
        return
    yield from _find_idle_intervals(experiment.config, budget)
    for learner in _learners(experiment):
        for milestone in learner.milestones:
            env_steps = learner.num_env_steps(milestone)
            num = learner.num_episodes(milestone)
            for count, unit, of in ((env_steps, "env steps", ""), (num, "episodes", " env steps")):
                if count > budget:
                    needs = learner.needs(milestone, f"{count:,} {unit}")
                    yield f"{needs}, but the run stops at {budget:,}{of}: it never happens"
            if num <= budget < num * (_LONG_EPISODE if experiment.is_external else 1):
                yield (
                    f"{learner.needs(milestone, f'{num:,} episodes')}: where they are longer than "
                    f"{budget // num:,} env steps, it never happens in the {budget:,} of the run"
                )
        for schedule in learner.algorithm.find_schedules(learner.plan):
            if learner.plan.shadow and schedule.setting == "epsilon":
                continue  # a shadow does not explore
            if text := _cut_short(schedule, budget):
                yield f"{learner.who}: {text}"


def _find_absent_metrics(experiment: Experiment) -> Iterator[str]:
    """Yields a sentence for each metric that seems to be misspelt: it may never come."""
    waiting: dict[str, list[str]] = {}
    for key, metric in awaited_metrics(experiment.config):
        waiting.setdefault(metric, []).append(key)
    for metric, hint in experiment.facts.absent_metrics.items():
        who = f", which {listed(waiting[metric])} waits for," if metric in waiting else ""
        yield (
            f"simulation.metrics: {metric!r}{who} was in no info of the episode of random actions "
            f"that was played{hint}"
        )
    for metric, keys in waiting.items() if experiment.is_external else ():
        if metric not in OWN_METRICS and (hint := did_you_mean(metric, OWN_METRICS)):
            yield (
                f"{listed(keys)}: waits for the metric {metric!r}, which simulations have to "
                f"send{hint}"
            )


def _find_idle_intervals(config: ExperimentConfig, budget: int) -> Iterator[str]:
    intervals = {
        "evaluation.interval_env_steps": config.evaluation.interval_env_steps,
        "checkpoint.interval_env_steps": config.checkpoint.interval_env_steps,
        "checkpoint.keep_every_env_steps": config.checkpoint.keep_every_env_steps,
    }
    for key, interval in intervals.items():
        if interval is not None and interval > budget:
            yield (
                f"{key}: is {interval:,}, but the run stops at {budget:,} env steps, so it has no "
                "effect"
            )


def find_late(experiment: Experiment, episode_length: float) -> Iterator[str]:
    """Yields a sentence for each thing for which episodes or memory will not suffice.

    Args:
        experiment: of a run that has begun.
        episode_length: the run's mean so far, in env steps.
    """
    yield from find_overflow(experiment, episode_length)
    budget = experiment.config.stop.env_steps
    if budget is None:
        return
    for learner in _learners(experiment):
        for milestone in learner.milestones:
            num = learner.num_episodes(milestone)
            if num * episode_length > budget:
                yield (
                    f"{learner.needs(milestone, f'{num:,} episodes')}: at {episode_length:,.1f} "
                    f"env steps each, the run will have only {budget / episode_length:,.0f}"
                )


def _find_teams_of_one(experiment: Experiment) -> Iterator[str]:
    """Yields a sentence for each server that has an algorithm for teams, but no groups."""
    for server_id, plan in experiment.learning.items():
        algorithm, server = find(plan.algorithm), experiment.config.servers[server_id]
        if server.groups or len(plan.agents) == 1 or not algorithm.seating.needs_groups:
            continue
        if algorithm.learns_jointly(plan):
            name = "team" if server_id in plan.agents else server_id
            yield (
                f"server {server_id!r}: {plan.algorithm} learns for teams, and without groups each "
                f"of its {len(plan.agents)} agents is a team of its own; to have one team, add to "
                f"the server: groups: {{{name}: {json.dumps(server.agents or [*plan.agents])}}}"
            )


def _find_idle_bounds(experiment: Experiment) -> Iterator[str]:
    for server_id, plan in experiment.servers.items():
        given = experiment.config.servers[server_id].action_bounds
        acts = {str(agent.action_space): agent.action_space for agent in plan.agents.values()}
        if given and not any(isinstance(space, Box) for space in acts.values()):
            yield (
                f"server {server_id!r}: action_bounds {given} have no effect: they are for Box "
                f"actions, and the action spaces of its agents are {listed(acts)}"
            )


def _find_idle_serving(experiment: Experiment) -> Iterator[str]:
    for server_id, plan in experiment.learning.items():
        if experiment.config.servers[server_id].while_learning == "serve" != plan.while_learning:
            yield (
                f"server {server_id!r}: while_learning: serve has no effect: {plan.algorithm} "
                "cannot act while it learns (acts_while_learning), so simulations wait for each "
                "update"
            )


def _find_idle_keys(config: ExperimentConfig) -> Iterator[str]:
    """Yields a sentence on keys that have no effect on an external simulation."""
    alone = () if config.simulation.command else ("num_processes",)
    parts = {
        "simulation": (config.simulation, (*alone, "num_envs_per_process")),
        "evaluation": (config.evaluation, ("num_envs",)),
        "timeouts": (config.timeouts, ("step_s", "make_env_s")),
    }
    given = [
        f"{name}.{key}"
        for name, (part, keys) in parts.items()
        for key in keys
        if getattr(part, key) != getattr(type(part)(), key)
    ]
    if given:
        yield (
            f"{listed(given)}: without effect on an external simulation, which makes and steps its "
            "environments itself"
        )


def _find_lag(experiment: Experiment) -> Iterator[str]:
    """Yields a sentence for each on-policy server with many lagging actions in its batches.

    With `while_learning: wait`, at most one action of each open episode lags in a batch.
    """
    simulation = experiment.config.simulation
    num = simulation.num_processes * simulation.num_envs_per_process
    if experiment.is_external:
        return  # it is unknown how many episodes are open
    for learner in _learners(experiment):
        if learner.algorithm.learns_from != "newest" or learner.plan.while_learning != "wait":
            continue
        batch = learner.algorithm.find_batch_env_steps(learner.plan)
        if batch is not None and num >= _MANY * batch:
            yield (
                f"{learner.who}: {num:,} simulations are many for a batch of {batch:,} env steps "
                f"(train_batch_size_per_learner): each may have one action in it that was chosen "
                f"before the last update, up to {min(1.0, num / batch):.0%} of the batch; with "
                f"{math.floor(num / _MANY) + 1:,} env steps it is less than {_MANY:.0%}"
            )


def _learners(experiment: Experiment) -> Iterator[_Learner]:
    for server_id, plan in experiment.learning.items():
        yield _Learner(f"server {server_id!r}", find(plan.algorithm), plan, _num_sharing(plan))


def _num_sharing(plan: ServerPlan) -> int:
    units = {(a.policy_id, a.group or agent_id) for agent_id, a in plan.agents.items()}
    return max(Counter(policy_id for policy_id, _ in units).values())


def _cut_short(schedule: Schedule, budget: int) -> str:
    steps, values = zip(*schedule.points, strict=True)
    reached = float(np.interp(budget, steps, values))
    if steps[-1] <= budget or reached == values[-1]:
        return ""
    return (
        f"{schedule.setting} changes until env step {steps[-1]:,.0f}, but the run stops at "
        f"{budget:,}, when it is {reached:.3g}, not {values[-1]:g}"
    )
