"""MASAC: its settings, and the loop that acts, stores steps, learns, and hands the weights back."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import asdict, replace
from typing import Any, Literal, Self

from ray.rllib.algorithms.algorithm import Algorithm
from ray.rllib.algorithms.algorithm_config import AlgorithmConfig, NotProvided
from ray.rllib.core.rl_module.rl_module import RLModuleSpec
from ray.rllib.env.multi_agent_episode import MultiAgentEpisode
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

from muxrl.servers.algorithms.masac.learner import MASACTorchLearner, to_sample_batch
from muxrl.servers.algorithms.masac.replay import StepBatch, StepReplay
from muxrl.servers.algorithms.masac.rl_module import MASACTorchRLModule
from muxrl.servers.algorithms.qmix.returns import RewardScale
from muxrl.servers.algorithms.settings import set_given

NUM_STEPS_STORED = "num_steps_stored"
_UPDATES_DUE_STATE = "updates_due"
_REWARD_SCALES_STATE = "reward_scales"

LearningRate = float | list[tuple[int, float]]


class MASACConfig(AlgorithmConfig):
    """Multi-agent soft actor-critic for teams whose members have continuous actions.

    The critics are those of MADDPG (Lowe et al. 2017, arXiv 1706.02275): they see all members and
    their joint action. All else is SAC's (Haarnoja et al. 2018, arXiv 1812.05905). A team is one
    RLlib agent with the spaces of a `ContinuousTeamSpec`.
    """

    def __init__(self, algo_class: type[Algorithm] | None = None) -> None:
        self.exploration_config: dict[str, Any] = {}
        super().__init__(algo_class=algo_class or MASAC)

        # Model.
        self.hidden_dim = 128
        self.obs_agent_id = True

        # Learning.
        self.actor_lr: LearningRate = 3e-4
        self.critic_lr: LearningRate = 1e-3
        self.alpha_lr: LearningRate = 3e-4
        self.gamma = 0.99
        self.tau = 0.005
        self.initial_alpha = 1.0
        self.target_entropy: float | Literal["auto"] = "auto"
        self.grad_clip = 10.0
        self.standardize_rewards = False

        # The learner checks the norms of gradients; RLlib's check is of every tensor.
        self.torch_skip_nan_gradients = True

        # Replay.
        self.batch_size_steps = 256
        self.buffer_capacity_steps = 100_000
        self.num_steps_before_learning = 1_000
        self.updates_per_step = 1.0

        # Each round of the loop has an overhead of about one update.
        self.rollout_fragment_length = 4
        # One result, and one point in a plot, for about this many env steps. Not by time, so that
        # runs on slow and fast machines report at the same steps.
        self.min_sample_timesteps_per_iteration = 1_000

    def training(
        self,
        *,
        hidden_dim: int = NotProvided,
        obs_agent_id: bool = NotProvided,
        actor_lr: LearningRate = NotProvided,
        critic_lr: LearningRate = NotProvided,
        alpha_lr: LearningRate = NotProvided,
        tau: float = NotProvided,
        initial_alpha: float = NotProvided,
        target_entropy: float | Literal["auto"] = NotProvided,
        standardize_rewards: bool = NotProvided,
        batch_size_steps: int = NotProvided,
        buffer_capacity_steps: int = NotProvided,
        num_steps_before_learning: int = NotProvided,
        updates_per_step: float = NotProvided,
        **kwargs: Any,
    ) -> Self:
        """Sets the training related settings.

        Args:
            hidden_dim: Units of both hidden layers, of the actor and of each critic.
            obs_agent_id: Whether the actor is told which member it acts for (one-hot), so that
                members can differ in spite of the shared network.
            actor_lr: Learning rate of the actor; a number or a schedule.
            critic_lr: Of the critics.
            alpha_lr: Of the temperature.
            tau: The fraction by which the target critics move at every update.
            initial_alpha: First temperature, the weight of the entropy.
            target_entropy: Entropy of each member, in -1..1, that the temperature is adapted to;
                ``"auto"``: minus its number of action dimensions.
            standardize_rewards: Whether rewards are divided by the standard deviation of all
                rewards so far; see `RewardScale`.
            batch_size_steps: Steps in one update.
            buffer_capacity_steps: Steps that the replay holds, for each module.
            num_steps_before_learning: Steps of a module before its first update.
            updates_per_step: Updates for each new step of a module; may be a fraction.

        Returns:
            This config.
        """
        set_given(self, locals())
        super().training(**kwargs)
        return self

    def validate(self) -> None:
        super().validate()
        for name in (
            "hidden_dim",
            "batch_size_steps",
            "buffer_capacity_steps",
            "num_steps_before_learning",
        ):
            value = getattr(self, name)
            if not isinstance(value, int) or value < 1:
                self._value_error(f"{name}={value!r} must be a whole number of at least 1")
        if not 0.0 < self.tau <= 1.0:
            self._value_error(f"tau={self.tau} must lie in (0, 1]; 1 copies the networks")
        for name in ("initial_alpha", "updates_per_step"):
            if not getattr(self, name) > 0.0:
                self._value_error(f"{name}={getattr(self, name)} must be above 0")
        target = self.target_entropy
        if target != "auto" and (isinstance(target, bool) or not isinstance(target, int | float)):
            self._value_error(f"target_entropy={target!r} must be a number or 'auto'")
        if self.num_steps_before_learning > self.buffer_capacity_steps:
            self._value_error(
                f"num_steps_before_learning={self.num_steps_before_learning} steps never fit into "
                f"buffer_capacity_steps={self.buffer_capacity_steps}: learning would not begin"
            )
        if self.grad_clip is not None and self.grad_clip_by != "global_norm":
            self._value_error(
                f"grad_clip_by={self.grad_clip_by!r}: MASAC clips by 'global_norm' only"
            )
        if self.num_learners > 0:
            self._value_error(
                f"num_learners={self.num_learners}: MASAC learns in the algorithm's own process; "
                "set num_learners=0"
            )

    def get_default_rl_module_spec(self) -> RLModuleSpec:
        return RLModuleSpec(module_class=MASACTorchRLModule)

    def get_default_learner_class(self) -> type:
        return MASACTorchLearner

    @property
    def _model_config_auto_includes(self) -> dict[str, Any]:
        return super()._model_config_auto_includes | {
            "hidden_dim": self.hidden_dim,
            "obs_agent_id": self.obs_agent_id,
        }


class MASAC(Algorithm):
    """Trains each module on steps of its teams; see `MASACConfig`.

    Two teams that share a module also share its replay: a step of each is a step.

    RLlib's checkpoint holds networks, targets, optimisers, the scale of rewards and counters, but
    neither the temperatures nor the replay: a server saves both, too.
    """

    @classmethod
    def get_default_config(cls) -> AlgorithmConfig:
        return MASACConfig()

    def setup(self, config: AlgorithmConfig) -> None:
        super().setup(config)
        self._replays: dict[str, StepReplay] = {}
        self._updates_due: dict[str, float] = defaultdict(float)
        self._reward_scales: dict[str, RewardScale] = defaultdict(RewardScale)

    def training_step(self) -> None:
        """Samples once, then makes the updates that are due for the new steps."""
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
        updated = self._learn()
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
        state[_REWARD_SCALES_STATE] = {m: asdict(s) for m, s in self._reward_scales.items()}
        return state

    def set_state(self, state: dict[str, Any]) -> None:
        super().set_state(state)
        self._updates_due.update(state.get(_UPDATES_DUE_STATE, {}))
        for module_id, scale in state.get(_REWARD_SCALES_STATE, {}).items():
            self._reward_scales[module_id] = RewardScale(**scale)

    # See `muxrl.servers.resume.SavesReplay`.

    def count_replay_bytes(self) -> int:
        return sum(replay.num_bytes for replay in self._replays.values())

    def get_replay_state(self) -> dict[str, Any]:
        return {module_id: replay.get_state() for module_id, replay in self._replays.items()}

    def set_replay_state(self, state: Mapping[str, Any]) -> None:
        for module_id, one in state.items():
            self._replay(module_id).set_state(one)

    def refill_replay(self, env_steps: int) -> None:
        """An empty replay is filled before anything is learned from it, at any time."""

    def _replay(self, module_id: str) -> StepReplay:
        replay = self._replays.get(module_id)
        if replay is None:
            replay = StepReplay(self.config.buffer_capacity_steps, self.config.seed)
            self._replays[module_id] = replay
        return replay

    def _store(self, episodes: Iterable[MultiAgentEpisode]) -> None:
        config = self.config
        for episode in episodes:
            for team in episode.agent_episodes.values():
                module_id = team.module_id
                replay = self._replay(module_id)
                if config.standardize_rewards:
                    self._reward_scales[module_id].add(team.get_rewards())
                num_steps = replay.add(team)
                # Not before learning begins: all of these updates would come in one long burst.
                if len(replay) >= config.num_steps_before_learning:
                    self._updates_due[module_id] += num_steps * config.updates_per_step
        for module_id, replay in self._replays.items():
            self.metrics.log_value((NUM_STEPS_STORED, module_id), len(replay), window=1)

    def _learn(self) -> set[str]:
        """Makes all updates that are due, and returns the ids of the modules that were updated.

        One update serves all modules that are due.
        """
        updated: set[str] = set()
        lifetime = (ENV_RUNNER_RESULTS, NUM_ENV_STEPS_SAMPLED_LIFETIME)
        timesteps = {NUM_ENV_STEPS_SAMPLED_LIFETIME: int(self.metrics.peek(lifetime, default=0))}
        while due := self._due():
            with self.metrics.log_time((TIMERS, REPLAY_BUFFER_SAMPLE_TIMER)):
                batch = MultiAgentBatch(
                    {module_id: to_sample_batch(self._sample(module_id)) for module_id in due},
                    env_steps=self.config.batch_size_steps,
                )
            for module_id in due:
                self._updates_due[module_id] -= 1.0
            updated.update(due)
            with self.metrics.log_time((TIMERS, LEARNER_UPDATE_TIMER)):
                results = self.learner_group.update(
                    batch=batch,
                    timesteps=timesteps,
                    # Metrics are those of the last batch, so reduce them after the last update.
                    _no_metrics_reduce=bool(self._due()),
                )
        if updated:
            self.metrics.aggregate(results, key=LEARNER_RESULTS)
        return updated

    def _sample(self, module_id: str) -> StepBatch:
        batch = self._replays[module_id].sample(self.config.batch_size_steps)
        if not self.config.standardize_rewards:
            return batch
        return replace(batch, rewards=batch.rewards / self._reward_scales[module_id].std)

    def _due(self) -> list[str]:
        # A little below 1, because ten times 0.1 is not quite 1.
        return [m for m, updates in self._updates_due.items() if updates >= 1.0 - 1e-9]
