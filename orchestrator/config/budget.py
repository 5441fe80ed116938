"""What cannot happen within a run's env steps: batches, first updates, schedules.

What an algorithm needs is declared by its entry (`muxrl.servers.algorithms.milestones`). Only
`stop.env_steps` is a budget that is known beforehand. Importing this module imports RLlib.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
from ray.rllib.algorithms.algorithm_config import AlgorithmConfig

from muxrl.orchestrator.config.resolve import Experiment
from muxrl.servers.algorithms.milestones import Milestone, Schedule
from muxrl.servers.algorithms.registry import AlgorithmEntry, get_algorithm
from muxrl.servers.config import ServerPlan

_LONG_EPISODE = 100
"""Env steps. How long the episodes of an external simulation are nobody knows beforehand; where
only longer ones than this would be too few, nothing is said."""


class _Learner(NamedTuple):
    """A server that learns."""

    who: str
    algorithm: AlgorithmEntry
    config: AlgorithmConfig
    num_sharing: int
    """Teams, or agents that are in none, that share a policy, at most."""

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
    """Yields a sentence for each thing that settings ask for and the run is too short for."""
    budget = experiment.config.stop.env_steps
    if budget is None:
        return
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


def find_late(experiment: Experiment, episode_length: float) -> Iterator[str]:
    """Yields a sentence for each thing for which there will be too few episodes.

    Args:
        experiment: of a run that has begun.
        episode_length: its mean so far, in env steps.
    """
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


def _learners(experiment: Experiment) -> Iterator[_Learner]:
    for server_id, plan in experiment.servers.items():
        if server_id not in experiment.fixed_servers:
            algorithm = get_algorithm(plan.algorithm)
            config = algorithm.make_config(plan.settings, plan.model, plan.rl_module)
            yield _Learner(f"server {server_id!r}", algorithm, config, _num_sharing(plan))


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
