"""The loop: it acts, stores what teams played, learns from it, and hands the weights back."""

from __future__ import annotations

from abc import abstractmethod
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any, ClassVar

from ray.rllib.algorithms.algorithm import Algorithm
from ray.rllib.algorithms.algorithm_config import AlgorithmConfig
from ray.rllib.core import DEFAULT_MODULE_ID
from ray.rllib.env.multi_agent_episode import MultiAgentEpisode
from ray.rllib.env.single_agent_episode import SingleAgentEpisode
from ray.rllib.execution.rollout_ops import synchronous_parallel_sample
from ray.rllib.policy.sample_batch import MultiAgentBatch, SampleBatch
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

from muxrl.servers.algorithms.team_replay.replay import TeamReplay
from muxrl.servers.episodes.reward_scale import RewardDeviation

_UPDATES_DUE_STATE = "updates_due"
_REWARD_SCALES_STATE = "reward_scales"


class TeamReplayAlgorithm(Algorithm):
    """Trains each module on steps or episodes of its teams; see `TeamReplayConfig`.

    Two teams that share a module also share its replay: an entry of each is an entry.

    RLlib's checkpoint holds networks, targets, optimisers, the scale of rewards and counters (also
    the one that exploration follows), but not the replay: after a restore, learning goes on once
    ``num_steps_before_learning`` or ``num_episodes_before_learning`` new ones are there. A server
    saves the replay, too.

    Attributes:
        reads_lists: that episodes may be of plain lists; see `ExternalEnvRunner`.
        replay_class: of one module.
        exploration_setting: the setting that says how much is explored, a number or a schedule
            over env steps; its value is a metric of that name. "": there is none.
    """

    reads_lists: ClassVar[bool] = True
    replay_class: ClassVar[type[TeamReplay]]
    exploration_setting: ClassVar[str] = ""

    @staticmethod
    @abstractmethod
    def to_sample_batch(batch: Any) -> SampleBatch:
        """Returns for the learner what `TeamReplay.sample` drew."""

    def setup(self, config: AlgorithmConfig) -> None:
        super().setup(config)
        self._replays: dict[str, TeamReplay] = {}
        self._updates_due: dict[str, float] = defaultdict(float)
        self._reward_scales: dict[str, RewardDeviation] = defaultdict(RewardDeviation)
        self._exploration: Scheduler | None = None
        if self.exploration_setting:
            self._exploration = Scheduler(
                fixed_value_or_schedule=getattr(self.config, self.exploration_setting),
                framework="torch",
            )

    def training_step(self) -> None:
        """Samples once, then makes the updates that are due for what came."""
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
        if self._exploration is not None:
            value = float(self._exploration.update(timestep))
            self.metrics.log_value(self.exploration_setting, value, window=1)
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
        if self._exploration is None:
            return
        # RLlib sends this count to the env runners before it has restored it itself, that is as
        # 0, and exploration would start again.
        self.env_runner_group.sync_env_runner_states(
            config=self.config,
            env_steps_sampled=self._num_env_steps(),
            env_to_module=self.env_to_module_connector,
            module_to_env=self.module_to_env_connector,
        )

    # See `muxrl.servers.learned.resume.SavesReplay`.

    def count_replay_bytes(self) -> int:
        return sum(replay.num_bytes for replay in self._replays.values())

    def get_replay_state(self) -> dict[str, Any]:
        return {module_id: replay.get_state() for module_id, replay in self._replays.items()}

    def set_replay_state(self, state: Mapping[str, Any]) -> None:
        for module_id, one in state.items():
            self._replay(module_id).set_state(one)

    def refill_replay(self, env_steps: int) -> None:
        """An empty replay is filled before anything is learned from it, at any time."""

    def _replay(self, module_id: str) -> TeamReplay:
        replay = self._replays.get(module_id)
        if replay is None:
            capacity = self.config.replay_setting("buffer_capacity")
            replay = self._make_replay(capacity, self.config.seed)
            self._replays[module_id] = replay
        return replay

    def _make_replay(self, capacity: int, seed: int | None) -> TeamReplay:
        return self.replay_class(capacity, seed)

    def _num_env_steps(self) -> int:
        return int(
            self.metrics.peek((ENV_RUNNER_RESULTS, NUM_ENV_STEPS_SAMPLED_LIFETIME), default=0)
        )

    def _store(self, episodes: Iterable[MultiAgentEpisode | SingleAgentEpisode]) -> None:
        config = self.config
        updates_per_entry = getattr(config, config.updates_setting)
        for module_id, episode in by_module(episodes):
            if not self._is_trained(module_id):
                continue
            replay = self._replay(module_id)
            if config.standardize_rewards:
                self._reward_scales[module_id].add(episode.get_rewards())
            num_new = replay.add(episode)
            # Not before learning begins: all of these updates would come in one long burst.
            if len(replay) >= config.num_before_learning:
                self._updates_due[module_id] += num_new * updates_per_entry
        for module_id, replay in self._replays.items():
            name = f"num_{replay.unit}_stored"
            self.metrics.log_value((name, module_id), len(replay), window=1)

    def _is_trained(self, module_id: str) -> bool:
        to_train = self.config.policies_to_train
        if to_train is None or callable(to_train):
            return to_train is None or bool(to_train(module_id, None))
        return module_id in to_train

    def _learn(self, timestep: int) -> set[str]:
        """Makes all updates that are due, and returns the ids of the modules that were updated.

        One update serves all modules that are due.
        """
        updated: set[str] = set()
        while due := self._due():
            with self.metrics.log_time((TIMERS, REPLAY_BUFFER_SAMPLE_TIMER)):
                drawn = {module_id: self._sample(module_id) for module_id in due}
                batch = MultiAgentBatch(
                    {module_id: self.to_sample_batch(b) for module_id, b in drawn.items()},
                    env_steps=max(b.num_steps for b in drawn.values()),
                )
            for module_id in due:
                self._updates_due[module_id] -= 1.0
            updated.update(due)
            with self.metrics.log_time((TIMERS, LEARNER_UPDATE_TIMER)):
                results = self.learner_group.update(
                    batch=batch,
                    timesteps={NUM_ENV_STEPS_SAMPLED_LIFETIME: timestep},
                    # Metrics are those of the last batch, so reduce them after the last update.
                    _no_metrics_reduce=bool(self._due()),
                )
            self._after_update(drawn)
        if updated:
            self.metrics.aggregate(results, key=LEARNER_RESULTS)
        return updated

    def _after_update(self, drawn: Mapping[str, Any]) -> None:
        """Is told what each module has learned from; for replays that want to know."""

    def _sample(self, module_id: str) -> Any:
        batch = self._replays[module_id].sample(self.config.replay_setting("batch_size"))
        if not self.config.standardize_rewards:
            return batch
        return replace(batch, rewards=batch.rewards / self._reward_scales[module_id].std)

    def _due(self) -> list[str]:
        # A little below 1, because ten times 0.1 is not quite 1.
        return [m for m, updates in self._updates_due.items() if updates >= 1.0 - 1e-9]


def by_module(
    episodes: Iterable[MultiAgentEpisode | SingleAgentEpisode],
) -> Iterable[tuple[str, SingleAgentEpisode]]:
    """Yields the teams' episodes, each with the id of its module."""
    for episode in episodes:
        if isinstance(episode, MultiAgentEpisode):
            for agent_episode in episode.agent_episodes.values():
                yield agent_episode.module_id, agent_episode
        else:
            yield episode.module_id or DEFAULT_MODULE_ID, episode
