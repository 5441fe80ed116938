"""What settings ask for and a run cannot give: too few env steps, too many simulations, no memory.

What an algorithm needs is declared by its entry (`muxrl.servers.algorithms.milestones`). Only
`stop.env_steps` is a budget that is known beforehand. Of memory see `memory`. Importing this module
imports RLlib.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
from ray.rllib.algorithms.algorithm_config import AlgorithmConfig

from muxrl.orchestrator.config.memory import find_overflow
from muxrl.orchestrator.config.resolve import Experiment
from muxrl.orchestrator.config.schema import ExperimentConfig
from muxrl.servers.algorithms.milestones import Milestone, Schedule
from muxrl.servers.algorithms.registry import AlgorithmEntry, TrainerEntry, find_entry
from muxrl.servers.config import ServerPlan, WhileLearning

_LONG_EPISODE = 100
"""Env steps. How long the episodes of an external simulation are nobody knows beforehand; where
only longer ones than this would be too few, nothing is said."""

_MANY = 0.1
"""Part of a batch's actions that may lag without a word; the mean lag is at most that."""


class _Learner(NamedTuple):
    """A server that learns."""

    who: str
    algorithm: AlgorithmEntry
    config: AlgorithmConfig
    num_sharing: int
    """Teams, or agents that are in none, that share a policy, at most."""
    while_learning: WhileLearning

    def needs(self, milestone: Milestone, num: str) -> str:
        values = (f"{name}: {getattr(self.config, name)}" for name in milestone.settings)
        return f"{self.who}: {milestone.what} needs {num} ({', '.join(values)})"

    def num_env_steps(self, milestone: Milestone) -> int:
        """Returns how many the simulation has to play; in each of them every team acts, at best."""
        return max(milestone.env_steps, -(-milestone.team_steps // self.num_sharing))

    def num_episodes(self, milestone: Milestone) -> int:
        """Returns how many the simulation has to play; each is one for every team."""
        return -(-milestone.episodes // self.num_sharing)


def find_warnings(experiment: Experiment) -> Iterator[str]:
    """Yields a sentence for each thing that settings ask for and the run cannot give, and for each
    that is not as it should be of the environment."""
    yield from (f"simulation.env: {note}" for note in experiment.facts.notes)
    yield from _find_lag(experiment)
    yield from find_overflow(experiment)
    budget = experiment.config.stop.env_steps
    if budget is None:
        return
    yield from _find_idle_intervals(experiment.config, budget)
    for learner in _learners(experiment):
        for milestone in learner.algorithm.find_milestones(learner.config):
            env_steps = learner.num_env_steps(milestone)
            if env_steps > budget:
                needs = learner.needs(milestone, f"{env_steps:,} env steps")
                yield f"{needs}, but the run stops at {budget:,}: it never happens"
            num = learner.num_episodes(milestone)
            if num * (_LONG_EPISODE if experiment.is_external else 1) > budget:
                yield (
                    f"{learner.needs(milestone, f'{num:,} episodes')}: where they are longer than "
                    f"{budget // num:,} env steps, it never happens in the {budget:,} of the run"
                )
        for schedule in learner.algorithm.find_schedules(learner.config):
            if text := _cut_short(schedule, budget):
                yield f"{learner.who}: {text}"


def _find_idle_intervals(config: ExperimentConfig, budget: int) -> Iterator[str]:
    intervals = {
        "evaluation.interval_env_steps": config.evaluation.interval_env_steps,
        "checkpoint.interval_env_steps": config.checkpoint.interval_env_steps,
        "checkpoint.keep_every_env_steps": config.checkpoint.keep_every_env_steps,
    }
    for key, interval in intervals.items():
        if interval is not None and interval > budget:
            yield (
                f"{key}: is {interval:,}, but the run stops at {budget:,} env steps: it never "
                "comes to it"
            )


def find_late(experiment: Experiment, episode_length: float) -> Iterator[str]:
    """Yields a sentence for each thing for which there will be too few episodes, or no memory.

    Args:
        experiment: of a run that has begun.
        episode_length: its mean so far, in env steps.
    """
    yield from find_overflow(experiment, episode_length)
    budget = experiment.config.stop.env_steps
    if budget is None:
        return
    for learner in _learners(experiment):
        for milestone in learner.algorithm.find_milestones(learner.config):
            num = learner.num_episodes(milestone)
            if num * episode_length > budget:
                yield (
                    f"{learner.needs(milestone, f'{num:,} episodes')}: at {episode_length:,.1f} "
                    f"env steps each, the run will have {budget / episode_length:,.0f}"
                )


def _find_lag(experiment: Experiment) -> Iterator[str]:
    """Yields a sentence for each on-policy server whose batches have many actions that are older
    than its weights: with `while_learning: wait`, at most one of each open episode."""
    simulation = experiment.config.simulation
    num = simulation.num_processes * simulation.num_envs_per_process
    if experiment.is_external:
        return  # how many episodes are open is for others to say
    for learner in _learners(experiment):
        if learner.algorithm.learns_from != "newest" or learner.while_learning != "wait":
            continue
        batch = learner.algorithm.batch_env_steps(learner.config)
        if num >= _MANY * batch:
            yield (
                f"{learner.who}: {num:,} simulations are many for a batch of {batch:,} env steps "
                f"(train_batch_size_per_learner): each plays on by a step while the batch is made, "
                f"so up to {min(1.0, num / batch):.0%} of the actions in it are one update older "
                f"than the weights; with {math.floor(num / _MANY) + 1:,} env steps it is less than "
                f"{_MANY:.0%}"
            )


def _learners(experiment: Experiment) -> Iterator[_Learner]:
    for server_id, plan in experiment.learning.items():
        algorithm = find_entry(plan.algorithm)
        if isinstance(algorithm, TrainerEntry):
            continue  # its settings mean something to it alone
        config = algorithm.make_config(plan.settings, plan.model, plan.rl_module)
        who = f"server {server_id!r}"
        yield _Learner(who, algorithm, config, _num_sharing(plan), plan.while_learning)


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
        f"{budget:,}: at {reached:.3g}, not at {values[-1]:g}"
    )
