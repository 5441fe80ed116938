"""QMIX, VDN, QPLEX and independent Q-learning: their settings, and the loop.

The loop acts, stores whole episodes, learns from stored ones and hands the weights back.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import asdict, replace
from typing import Any, Literal, Self, get_args

from ray.rllib.algorithms.algorithm import Algorithm
from ray.rllib.algorithms.algorithm_config import AlgorithmConfig, NotProvided
from ray.rllib.core import DEFAULT_MODULE_ID
from ray.rllib.core.rl_module.rl_module import RLModuleSpec
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

from muxrl.servers.algorithms.qmix.learner import QMIXTorchLearner, to_sample_batch
from muxrl.servers.algorithms.qmix.networks import AGENTS, MIXERS, AgentName, MixerName
from muxrl.servers.algorithms.qmix.replay import EpisodeBatch, EpisodeReplay
from muxrl.servers.algorithms.qmix.returns import RewardScale
from muxrl.servers.algorithms.qmix.rl_module import QMIXTorchRLModule
from muxrl.servers.algorithms.settings import set_given

EPSILON = "epsilon"
NUM_EPISODES_STORED = "num_episodes_stored"
_UPDATES_DUE_STATE = "updates_due"
_REWARD_SCALES_STATE = "reward_scales"

OptimizerName = Literal["rmsprop", "adam"]
OPTIMIZERS: tuple[OptimizerName, ...] = get_args(OptimizerName)

Schedule = float | list[tuple[int, float]]


class QMIXConfig(AlgorithmConfig):
    """QMIX, Rashid et al. 2018; two defaults are not PyMARL's.

    Targets are copied every 200 *updates* (PyMARL counts 200 episodes, which at one update per
    episode is the same), and the mixer bounds the state (PyMARL: ``bound_state=False``).

    .. code-block:: python

        config = (
            QMIXConfig()
            .environment("my_team_env")  # a registered TeamEnv
            .multi_agent(policies={"team"}, policy_mapping_fn=lambda agent_id, *a, **k: "team")
            .training(mixer="qmix", lr=5e-4, epsilon=[(0, 1.0), (50_000, 0.05)])
        )
    """

    def __init__(self, algo_class: type[Algorithm] | None = None) -> None:
        self.exploration_config: dict[str, Any] = {}
        super().__init__(algo_class=algo_class or QMIX)

        # Model.
        self.agent: AgentName = "gru"
        self.hidden_dim = 64
        self.obs_agent_id = True
        self.obs_last_action = True
        self.mixer: MixerName = "qmix"
        self.mixing_embed_dim = 32
        self.hypernet_embed = 64
        self.bound_state = True
        self.num_kernel = 10
        self.adv_hypernet_layers = 3
        self.adv_hypernet_embed = 64

        # Learning.
        self.lr = 5e-4
        self.gamma = 0.99
        self.grad_clip = 10.0
        self.double_q = True
        self.n_step = 1
        self.td_lambda = 0.0
        self.standardize_rewards = False
        self.optimizer_name: OptimizerName = "rmsprop"
        self.rmsprop_alpha = 0.99
        self.optimizer_epsilon = 1e-5
        self.target_update_freq = 200
        self.tau = 1.0

        # The learner checks the gradient's norm; a check of every tensor takes 2 ms an update.
        self.torch_skip_nan_gradients = True

        # Acting.
        self.epsilon: Schedule = [(0, 1.0), (50_000, 0.05)]

        # Replay.
        self.batch_size_episodes = 32
        self.buffer_capacity_episodes = 5_000
        self.num_episodes_before_learning = 32
        self.updates_per_episode = 1.0

        # A GRU must see an episode from its start.
        self.batch_mode = "complete_episodes"
        # One result, and one point in a plot, for about this many env steps. Not by time, so that
        # runs on slow and fast machines report at the same steps.
        self.min_sample_timesteps_per_iteration = 1_000

    def training(
        self,
        *,
        agent: AgentName = NotProvided,
        hidden_dim: int = NotProvided,
        obs_agent_id: bool = NotProvided,
        obs_last_action: bool = NotProvided,
        mixer: MixerName = NotProvided,
        mixing_embed_dim: int = NotProvided,
        hypernet_embed: int = NotProvided,
        bound_state: bool = NotProvided,
        num_kernel: int = NotProvided,
        adv_hypernet_layers: int = NotProvided,
        adv_hypernet_embed: int = NotProvided,
        double_q: bool = NotProvided,
        n_step: int = NotProvided,
        td_lambda: float = NotProvided,
        standardize_rewards: bool = NotProvided,
        optimizer_name: OptimizerName = NotProvided,
        rmsprop_alpha: float = NotProvided,
        optimizer_epsilon: float = NotProvided,
        target_update_freq: int = NotProvided,
        tau: float = NotProvided,
        epsilon: Schedule = NotProvided,
        batch_size_episodes: int = NotProvided,
        buffer_capacity_episodes: int = NotProvided,
        num_episodes_before_learning: int = NotProvided,
        updates_per_episode: float = NotProvided,
        **kwargs: Any,
    ) -> Self:
        """Sets the training related settings.

        Args:
            agent: The network all members of a team share: ``"gru"``, which remembers the
                episode, or ``"mlp"``, which does not.
            hidden_dim: Units of its hidden layers.
            obs_agent_id: Whether it is told which member it acts for (one-hot), so that members
                can differ in spite of the shared network.
            obs_last_action: Whether it is told the member's previous action (one-hot).
            mixer: ``"qmix"``, ``"vdn"``, ``"qplex"``, or ``"none"`` for independent Q-learning.
            mixing_embed_dim: Units of QMIX's mixing network.
            hypernet_embed: Units of the hidden layer of the networks that make QMIX's weights, or
                QPLEX's w and b.
            bound_state: Whether a state whose root mean square is above 1 is scaled down to 1
                before those networks see it.
            num_kernel: Heads of QPLEX's importance weights.
            adv_hypernet_layers: Layers of the networks in these heads; 1 is linear.
            adv_hypernet_embed: Units of their hidden layers.
            double_q: Whether the online network chooses the action that the target network
                values.
            n_step: Rewards that a target adds up before its bootstrap value.
            td_lambda: Above 0, targets are lambda-returns over the rest of the episode; with
                n_step = 1.
            standardize_rewards: Whether rewards are divided by the standard deviation of all
                rewards so far; see `RewardScale`.
            optimizer_name: ``"rmsprop"`` or ``"adam"``.
            rmsprop_alpha: RMSprop's smoothing constant.
            optimizer_epsilon: The optimizer's epsilon.
            target_update_freq: Updates between two copies to the target network, with tau = 1.
            tau: Below 1, the target network moves by this fraction at every update instead.
            epsilon: The share of random actions: a number, or a schedule
                ``[(env step, value), ...]`` that begins at step 0.
            batch_size_episodes: Episodes in one update.
            buffer_capacity_episodes: Episodes that the replay holds, for each module.
            num_episodes_before_learning: Episodes of a module before its first update.
            updates_per_episode: Updates for each new episode of a module; may be a fraction.

        Returns:
            This config.
        """
        set_given(self, locals())
        super().training(**kwargs)
        return self

    def validate(self) -> None:
        super().validate()
        for name, value, known in (
            ("agent", self.agent, AGENTS),
            ("mixer", self.mixer, MIXERS),
            ("optimizer_name", self.optimizer_name, OPTIMIZERS),
        ):
            if value not in known:
                self._value_error(f"{name}={value!r} is unknown; it is one of {', '.join(known)}")
        for name in (
            "hidden_dim",
            "mixing_embed_dim",
            "hypernet_embed",
            "num_kernel",
            "adv_hypernet_layers",
            "adv_hypernet_embed",
            "n_step",
            "target_update_freq",
            "batch_size_episodes",
            "buffer_capacity_episodes",
            "num_episodes_before_learning",
        ):
            value = getattr(self, name)
            if not isinstance(value, int) or value < 1:
                self._value_error(f"{name}={value!r} must be a whole number of at least 1")
        if not 0.0 < self.tau <= 1.0:
            self._value_error(f"tau={self.tau} must lie in (0, 1]; 1 copies the network")
        if not 0.0 <= self.td_lambda <= 1.0:
            self._value_error(f"td_lambda={self.td_lambda} must lie in [0, 1]; 0 is one step")
        if self.n_step > 1 and self.td_lambda > 0.0:
            self._value_error(
                f"n_step={self.n_step} and td_lambda={self.td_lambda}: a target is an n-step or a "
                "lambda-return; leave one of them at its default"
            )
        if self.updates_per_episode <= 0.0:
            self._value_error(f"updates_per_episode={self.updates_per_episode} must be above 0")
        if self.num_episodes_before_learning > self.buffer_capacity_episodes:
            self._value_error(
                f"num_episodes_before_learning={self.num_episodes_before_learning} episodes never "
                f"fit into buffer_capacity_episodes={self.buffer_capacity_episodes}: learning "
                "would not begin"
            )
        if self.grad_clip is not None and self.grad_clip_by != "global_norm":
            self._value_error(
                f"grad_clip_by={self.grad_clip_by!r}: QMIX clips by 'global_norm' only"
            )
        if self.num_learners > 0:
            self._value_error(
                f"num_learners={self.num_learners}: QMIX learns in the algorithm's own process; "
                "set num_learners=0"
            )
        Scheduler.validate(
            fixed_value_or_schedule=self.epsilon, setting_name="epsilon", description="epsilon"
        )
        values = (
            [self.epsilon]
            if isinstance(self.epsilon, (int, float))
            else [value for _, value in self.epsilon]
        )
        if not all(0.0 <= value <= 1.0 for value in values):
            self._value_error(f"epsilon={self.epsilon} must stay within 0 and 1")

    def get_default_rl_module_spec(self) -> RLModuleSpec:
        return RLModuleSpec(module_class=QMIXTorchRLModule)

    def get_default_learner_class(self) -> type:
        return QMIXTorchLearner

    @property
    def _model_config_auto_includes(self) -> dict[str, Any]:
        return super()._model_config_auto_includes | {
            "agent": self.agent,
            "hidden_dim": self.hidden_dim,
            "obs_agent_id": self.obs_agent_id,
            "obs_last_action": self.obs_last_action,
            "mixer": self.mixer,
            "mixing_embed_dim": self.mixing_embed_dim,
            "hypernet_embed": self.hypernet_embed,
            "bound_state": self.bound_state,
            "num_kernel": self.num_kernel,
            "adv_hypernet_layers": self.adv_hypernet_layers,
            "adv_hypernet_embed": self.adv_hypernet_embed,
            "epsilon": self.epsilon,
        }


class QMIX(Algorithm):
    """Trains each module on episodes of its teams; see `QMIXConfig`.

    Two teams that share a module also share its replay: an episode of each is an episode.

    RLlib's checkpoint holds networks, targets, optimisers, the scale of rewards and counters (also
    the one that epsilon follows), but not the replay: after a restore, learning goes on once
    ``num_episodes_before_learning`` new episodes are there. A server saves the replay, too.
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
        """Samples once, then makes the updates that are due for the new episodes."""
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
        state[_REWARD_SCALES_STATE] = {m: asdict(s) for m, s in self._reward_scales.items()}
        return state

    def set_state(self, state: dict[str, Any]) -> None:
        super().set_state(state)
        self._updates_due.update(state.get(_UPDATES_DUE_STATE, {}))
        for module_id, scale in state.get(_REWARD_SCALES_STATE, {}).items():
            self._reward_scales[module_id] = RewardScale(**scale)
        # RLlib sends this count to the env runners before it has restored it itself, that is as
        # 0, and epsilon would start again.
        self.env_runner_group.sync_env_runner_states(
            config=self.config,
            env_steps_sampled=self._num_env_steps(),
            env_to_module=self.env_to_module_connector,
            module_to_env=self.module_to_env_connector,
        )

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

    def _replay(self, module_id: str) -> EpisodeReplay:
        replay = self._replays.get(module_id)
        if replay is None:
            replay = EpisodeReplay(self.config.buffer_capacity_episodes, self.config.seed)
            self._replays[module_id] = replay
        return replay

    def _num_env_steps(self) -> int:
        return int(
            self.metrics.peek((ENV_RUNNER_RESULTS, NUM_ENV_STEPS_SAMPLED_LIFETIME), default=0)
        )

    def _store(self, episodes: Iterable[MultiAgentEpisode | SingleAgentEpisode]) -> None:
        config = self.config
        for module_id, episode in _by_module(episodes):
            if not self._is_trained(module_id):
                continue
            replay = self._replay(module_id)
            if config.standardize_rewards:
                self._reward_scales[module_id].add(episode.get_rewards())
            # Not before learning begins: all of these updates would come in one long burst.
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
        """Makes all updates that are due, and returns the ids of the modules that were updated.

        One update serves all modules that are due.
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
                    # Metrics are those of the last batch, so reduce them after the last update.
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
        # A little below 1, because ten times 0.1 is not quite 1.
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
