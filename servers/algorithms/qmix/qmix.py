"""QMIX's loop: act, store whole episodes, learn from stored ones, hand the weights back."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import replace
from typing import Any

from ray.rllib.algorithms.algorithm import Algorithm
from ray.rllib.algorithms.algorithm_config import AlgorithmConfig
from ray.rllib.core import DEFAULT_MODULE_ID
from ray.rllib.env.multi_agent_episode import MultiAgentEpisode
from ray.rllib.env.single_agent_episode import SingleAgentEpisode
from ray.rllib.execution.rollout_ops import synchronous_parallel_sample
from ray.rllib.policy.sample_batch import MultiAgentBatch
from ray.rllib.utils.metrics import (
    ENV_RUNNER_RESULTS,
    ENV_RUNNER_SAMPLING_TIMER,
    LEARNER_RESULTS,
    LEARNER_UPDATE_TIMER,
    NUM_ENV_STEPS_SAMPLED_LIFETIME,
    REPLAY_BUFFER_ADD_DATA_TIMER,
    REPLAY_BUFFER_SAMPLE_TIMER,
    SYNCH_WORKER_WEIGHTS_TIMER,
    TIMERS,
)
from ray.rllib.utils.schedules.scheduler import Scheduler

from muxrl.servers.algorithms.qmix.config import QMIXConfig
from muxrl.servers.algorithms.qmix.learner import to_sample_batch
from muxrl.servers.algorithms.qmix.replay import EpisodeBatch, EpisodeReplay
from muxrl.servers.algorithms.qmix.reward_scale import RewardScale

EPSILON = "epsilon"
NUM_EPISODES_STORED = "num_episodes_stored"
_UPDATES_DUE_STATE = "updates_due"
_REWARD_SCALES_STATE = "reward_scales"


class QMIX(Algorithm):
    """Trains each module on episodes of its teams; see `QMIXConfig`.

    Two teams that share a module also share its replay: an episode of each is an episode.

    A checkpoint holds networks, targets, optimisers, the scale of rewards and counters (also the
    one that epsilon follows), but not the replay: after a restore, learning goes on once
    ``num_episodes_before_learning`` new episodes are there.
    """

    @classmethod
    def get_default_config(cls) -> AlgorithmConfig:
        return QMIXConfig()

    def setup(self, config: AlgorithmConfig) -> None:
        super().setup(config)
        self._replays: dict[str, EpisodeReplay] = {}
        self._updates_due: dict[str, float] = defaultdict(float)
        self._reward_scales: dict[str, RewardScale] = defaultdict(RewardScale)
        self._epsilon_schedule = Scheduler(
            fixed_value_or_schedule=self.config.epsilon, framework="torch"
        )

    def training_step(self) -> None:
        """Sample once, then make the updates that the new episodes are good for."""
        with self.metrics.log_time((TIMERS, ENV_RUNNER_SAMPLING_TIMER)):
            episodes, env_runner_results = synchronous_parallel_sample(
                worker_set=self.env_runner_group,
                concat=True,
                sample_timeout_s=self.config.sample_timeout_s,
                _uses_new_env_runners=True,
                _return_metrics=True,
            )
        self.metrics.aggregate(env_runner_results, key=ENV_RUNNER_RESULTS)
        with self.metrics.log_time((TIMERS, REPLAY_BUFFER_ADD_DATA_TIMER)):
            self._store(episodes)

        timestep = self._num_env_steps()
        self.metrics.log_value(EPSILON, float(self._epsilon_schedule.update(timestep)), window=1)
        updated = self._learn(timestep)
        if updated:
            with self.metrics.log_time((TIMERS, SYNCH_WORKER_WEIGHTS_TIMER)):
                self.env_runner_group.sync_weights(
                    from_worker_or_learner_group=self.learner_group,
                    policies=sorted(updated),
                    inference_only=True,
                )

    def get_state(self, *args: Any, **kwargs: Any) -> dict[str, Any]:
        state = super().get_state(*args, **kwargs)
        state[_UPDATES_DUE_STATE] = dict(self._updates_due)
        state[_REWARD_SCALES_STATE] = {m: s.get_state() for m, s in self._reward_scales.items()}
        return state

    def set_state(self, state: dict[str, Any]) -> None:
        super().set_state(state)
        self._updates_due.update(state.get(_UPDATES_DUE_STATE, {}))
        for module_id, scale in state.get(_REWARD_SCALES_STATE, {}).items():
            self._reward_scales[module_id].set_state(scale)
        # RLlib hands this count to the env runners before it has restored it itself, that is as
        # 0, and epsilon would start again from there.
        self.env_runner_group.sync_env_runner_states(
            config=self.config,
            env_steps_sampled=self._num_env_steps(),
            env_to_module=self.env_to_module_connector,
            module_to_env=self.module_to_env_connector,
        )

    def _num_env_steps(self) -> int:
        return int(
            self.metrics.peek((ENV_RUNNER_RESULTS, NUM_ENV_STEPS_SAMPLED_LIFETIME), default=0)
        )

    def _store(self, episodes: Iterable[MultiAgentEpisode | SingleAgentEpisode]) -> None:
        config = self.config
        for module_id, episode in _by_module(episodes):
            if not self._is_trained(module_id):
                continue
            replay = self._replays.get(module_id)
            if replay is None:
                replay = EpisodeReplay(config.buffer_capacity_episodes, config.seed)
                self._replays[module_id] = replay
            if config.standardize_rewards:
                self._reward_scales[module_id].add(episode.get_rewards())
            # No debt is run up before learning begins, which would be paid in one long burst.
            if replay.add(episode) and len(replay) >= config.num_episodes_before_learning:
                self._updates_due[module_id] += config.updates_per_episode
        for module_id, replay in self._replays.items():
            self.metrics.log_value((NUM_EPISODES_STORED, module_id), len(replay), window=1)

    def _is_trained(self, module_id: str) -> bool:
        to_train = self.config.policies_to_train
        if to_train is None or callable(to_train):
            return to_train is None or bool(to_train(module_id, None))
        return module_id in to_train

    def _learn(self, timestep: int) -> set[str]:
        """Make all updates that are due, several modules in one where they are.

        Returns:
            The ids of the modules that were updated.
        """
        updated: set[str] = set()
        while due := self._due():
            with self.metrics.log_time((TIMERS, REPLAY_BUFFER_SAMPLE_TIMER)):
                batches = {module_id: self._sample(module_id) for module_id in due}
                batch = MultiAgentBatch(
                    {module_id: to_sample_batch(b) for module_id, b in batches.items()},
                    env_steps=max(b.num_steps for b in batches.values()),
                )
            for module_id in due:
                self._updates_due[module_id] -= 1.0
            updated.update(due)
            with self.metrics.log_time((TIMERS, LEARNER_UPDATE_TIMER)):
                results = self.learner_group.update(
                    batch=batch,
                    timesteps={NUM_ENV_STEPS_SAMPLED_LIFETIME: timestep},
                    # They are of the last batch anyway: gather them after the last update only.
                    _no_metrics_reduce=bool(self._due()),
                )
        if updated:
            self.metrics.aggregate(results, key=LEARNER_RESULTS)
        return updated

    def _sample(self, module_id: str) -> EpisodeBatch:
        batch = self._replays[module_id].sample(self.config.batch_size_episodes)
        if not self.config.standardize_rewards:
            return batch
        return replace(batch, rewards=batch.rewards / self._reward_scales[module_id].std)

    def _due(self) -> list[str]:
        # A hair below 1, or ten times 0.1 would not make one.
        return [m for m, updates in self._updates_due.items() if updates >= 1.0 - 1e-9]


def _by_module(
    episodes: Iterable[MultiAgentEpisode | SingleAgentEpisode],
) -> Iterable[tuple[str, SingleAgentEpisode]]:
    for episode in episodes:
        if isinstance(episode, MultiAgentEpisode):
            for agent_episode in episode.agent_episodes.values():
                yield agent_episode.module_id, agent_episode
        else:
            yield episode.module_id or DEFAULT_MODULE_ID, episode
