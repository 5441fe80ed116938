"""The process that plays evaluation episodes; see `Worker`. Heavy imports happen in functions."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence

from muxrl.orchestrator.config.schema import ExperimentConfig
from muxrl.orchestrator.records.conditions import Condition
from muxrl.orchestrator.supervise.episodes import (
    FollowsServers,
    Patience,
    Played,
    ServerAddress,
    connect,
    make_evaluation_copy,
    play_episodes,
)
from muxrl.orchestrator.supervise.process import ProcessReport
from muxrl.orchestrator.supervise.step_clock import StepClock
from muxrl.orchestrator.supervise.working import in_main_thread

logger = logging.getLogger(__name__)


class EvaluationProcess(FollowsServers):
    """A process that plays evaluation episodes, in which some agents may not act as learned.

    Args:
        config: the run's config.
        num_envs: how many environments it makes.
        episode_prefix: beginning of the ids of its episodes.
    """

    def __init__(self, config: ExperimentConfig, num_envs: int, episode_prefix: str = "") -> None:
        self._config, self._episode_prefix = config, episode_prefix
        self._clock = StepClock()
        self._simulations = [
            self._clock.watch(make_evaluation_copy(config, i)) for i in range(num_envs)
        ]

    def connect(self, servers: Mapping[str, ServerAddress]) -> None:
        """Sets where the servers listen; must come before any evaluation."""
        self._servers = dict(servers)

    def report(self) -> ProcessReport:
        """Returns how long the current step takes so far, and how far the evaluation is."""
        num_ended = sum(one.num_ended for one in self._simulations)
        num_steps = max(one.num_steps for one in self._simulations)
        return ProcessReport(step_s=self._clock.step_s, under_way=(num_ended, num_steps))

    @in_main_thread
    def evaluate(
        self,
        conditions: Sequence[Condition],
        first_seed: int,
        num_episodes: int,
        should_explore: Mapping[str, bool],
    ) -> list[Played]:
        """Plays episodes that never train, on the same seeds in every condition.

        Args:
            conditions: each says which agents do not act as learned, if any; played one after
                another.
            first_seed: seed of the first episode's reset; the next episodes count on from it.
            num_episodes: how many episodes to play in each condition.
            should_explore: by server: whether actions are sampled as in training, else greedy.
        """
        seeds = range(first_seed, first_seed + num_episodes)
        return [self._play(condition, seeds, should_explore) for condition in conditions]

    def _play(
        self, condition: Condition, seeds: range, should_explore: Mapping[str, bool]
    ) -> Played:
        for one in self._simulations:
            one.num_ended = one.num_truncated = 0
        with connect(
            self._servers,
            condition,
            seeds.start,
            patience=Patience.of(self._config.timeouts),
            episode_prefix=self._episode_prefix,
        ) as client:
            how = client, self._simulations, seeds, should_explore
            episodes = play_episodes(self._config, *how, on_lost="restart")
        num_truncated = sum(one.num_truncated for one in self._simulations)
        return Played.of(episodes, self._simulations[0].possible_agents, (), num_truncated)

    @in_main_thread
    def close(self) -> None:
        """Closes the environments, which end the programs that they have started."""
        for simulation in self._simulations:
            simulation.close()
