"""QMIX, VDN, QPLEX and independent Q-learning: their settings. The loop is `team_replay`'s."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal, Self, cast, get_args

from ray.rllib.algorithms.algorithm import Algorithm
from ray.rllib.algorithms.algorithm_config import AlgorithmConfig, NotProvided
from ray.rllib.core.rl_module.rl_module import RLModuleSpec

from muxrl.servers.algorithms.qmix.learner import QMIXTorchLearner, to_sample_batch
from muxrl.servers.algorithms.qmix.mixers import MIXERS, MixerName
from muxrl.servers.algorithms.qmix.networks import AGENTS, AgentName
from muxrl.servers.algorithms.qmix.priorities import PrioritySettings
from muxrl.servers.algorithms.qmix.replay import EpisodeBatch, EpisodeReplay
from muxrl.servers.algorithms.qmix.rl_module import QMIXTorchRLModule
from muxrl.servers.algorithms.settings import set_given
from muxrl.servers.algorithms.team_replay.algorithm import TeamReplayAlgorithm
from muxrl.servers.algorithms.team_replay.config import Schedule, TeamReplayConfig

EPSILON = "epsilon"

OptimizerName = Literal["rmsprop", "adam"]
OPTIMIZERS: tuple[OptimizerName, ...] = get_args(OptimizerName)


class QMIXConfig(TeamReplayConfig):
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

    replay_unit = "episodes"
    needs_positive_counts = (
        "hidden_dim",
        "mixing_embed_dim",
        "hypernet_embed",
        "num_kernel",
        "adv_hypernet_layers",
        "adv_hypernet_embed",
        "n_step",
        "target_update_freq",
        "max_sequence_steps",
    )

    def __init__(self, algo_class: type[Algorithm] | None = None) -> None:
        super().__init__(algo_class=algo_class or QMIX)

        # Model.
        self.agent: AgentName = "gru"
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
        self.importance_lr_factor = 1.0
        self.double_q = True
        self.n_step = 1
        self.td_lambda = 0.0
        self.optimizer_name: OptimizerName = "rmsprop"
        self.rmsprop_alpha = 0.99
        self.optimizer_epsilon = 1e-5
        self.target_update_freq = 200

        # Acting.
        self.epsilon: Schedule = [(0, 1.0), (50_000, 0.05)]

        # Replay.
        self.batch_size_episodes = 32
        self.buffer_capacity_episodes = 5_000
        self.max_sequence_steps = 2_000
        self.num_episodes_before_learning = 32
        self.updates_per_episode = 1.0
        self.prioritized_replay_alpha = 0.0
        self.prioritized_replay_beta = 0.4
        self.prioritized_replay_eta = 0.9

        # A GRU must see an episode from its start.
        self.batch_mode = "complete_episodes"

    def training(
        self,
        *,
        agent: AgentName = NotProvided,
        obs_last_action: bool = NotProvided,
        mixer: MixerName = NotProvided,
        mixing_embed_dim: int = NotProvided,
        hypernet_embed: int = NotProvided,
        bound_state: bool = NotProvided,
        num_kernel: int = NotProvided,
        adv_hypernet_layers: int = NotProvided,
        adv_hypernet_embed: int = NotProvided,
        importance_lr_factor: float = NotProvided,
        double_q: bool = NotProvided,
        n_step: int = NotProvided,
        td_lambda: float = NotProvided,
        optimizer_name: OptimizerName = NotProvided,
        rmsprop_alpha: float = NotProvided,
        optimizer_epsilon: float = NotProvided,
        target_update_freq: int = NotProvided,
        epsilon: Schedule = NotProvided,
        batch_size_episodes: int = NotProvided,
        buffer_capacity_episodes: int = NotProvided,
        max_sequence_steps: int = NotProvided,
        num_episodes_before_learning: int = NotProvided,
        updates_per_episode: float = NotProvided,
        prioritized_replay_alpha: float = NotProvided,
        prioritized_replay_beta: float = NotProvided,
        prioritized_replay_eta: float = NotProvided,
        **kwargs: Any,
    ) -> Self:
        """Sets the training related settings.

        Args:
            agent: The network all members of a team share, with ``hidden_dim`` units: ``"gru"``,
                which remembers the episode, or ``"mlp"``, which does not.
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
            importance_lr_factor: How many times ``lr`` the learning rate of QPLEX's importance
                weights is; the authors' code has 1.
            double_q: Whether the online network chooses the action that the target network
                values.
            n_step: Rewards that a target adds up before its bootstrap value.
            td_lambda: Above 0, targets are lambda-returns over the rest of the episode; with
                n_step = 1.
            optimizer_name: ``"rmsprop"`` or ``"adam"``.
            rmsprop_alpha: RMSprop's smoothing constant.
            optimizer_epsilon: The optimizer's epsilon.
            target_update_freq: Updates between two copies to the target network, with tau = 1;
                below 1, it moves by that fraction at every update instead.
            epsilon: The share of random actions.
            batch_size_episodes: Episodes in one update.
            buffer_capacity_episodes: Episodes that the replay holds, for each module.
            max_sequence_steps: Steps of an episode that a policy server puts into one entry of the
                replay; a longer episode is several, each bootstrapped at its end, and for each a
                GRU begins anew. An update pads its batch to the longest.
            num_episodes_before_learning: Episodes of a module before its first update.
            updates_per_episode: Updates for each new episode of a module; may be a fraction.
            prioritized_replay_alpha: Above 0, episodes are drawn in proportion to that power of
                their priority; see `Priorities`.
            prioritized_replay_beta: How much the loss makes up for that, up to 1.
            prioritized_replay_eta: An episode's priority is that share of its largest absolute TD
                error, and the rest of their mean.

        Returns:
            This config.
        """
        return set_given(super().training(**kwargs), locals())

    def validate(self) -> None:
        super().validate()
        for name, value, known in (
            ("agent", self.agent, AGENTS),
            ("mixer", self.mixer, MIXERS),
            ("optimizer_name", self.optimizer_name, OPTIMIZERS),
        ):
            if value not in known:
                self._value_error(f"{name}={value!r} is unknown; it is one of {', '.join(known)}")
        for name, meaning in (
            ("td_lambda", "0 is one step"),
            ("prioritized_replay_alpha", "0 draws episodes uniformly"),
            ("prioritized_replay_beta", "1 makes up for priorities in full"),
            ("prioritized_replay_eta", "1 is the largest TD error of an episode, 0 their mean"),
        ):
            if not 0.0 <= getattr(self, name) <= 1.0:
                self._value_error(f"{name}={getattr(self, name)} must lie in [0, 1]; {meaning}")
        if self.n_step > 1 and self.td_lambda > 0.0:
            self._value_error(
                f"n_step={self.n_step} and td_lambda={self.td_lambda}: a target is an n-step or a "
                "lambda-return; leave one of them at its default"
            )
        self._check_above_0("importance_lr_factor")
        self._check_schedule(EPSILON, highest=1.0)

    def get_default_rl_module_spec(self) -> RLModuleSpec:
        return RLModuleSpec(module_class=QMIXTorchRLModule)

    def get_default_learner_class(self) -> type:
        return QMIXTorchLearner

    def model_settings(self) -> Mapping[str, Any]:
        return {
            **super().model_settings(),
            "agent": self.agent,
            "obs_last_action": self.obs_last_action,
            "mixer": self.mixer,
            "mixing_embed_dim": self.mixing_embed_dim,
            "hypernet_embed": self.hypernet_embed,
            "bound_state": self.bound_state,
            "num_kernel": self.num_kernel,
            "adv_hypernet_layers": self.adv_hypernet_layers,
            "adv_hypernet_embed": self.adv_hypernet_embed,
            EPSILON: self.epsilon,
        }


class QMIX(TeamReplayAlgorithm):
    """Trains each module on episodes of its teams; see `QMIXConfig`."""

    replay_class = EpisodeReplay
    exploration_setting = EPSILON
    to_sample_batch = staticmethod(to_sample_batch)

    @classmethod
    def get_default_config(cls) -> AlgorithmConfig:
        return QMIXConfig()

    def _make_replay(self, capacity: int, seed: int | None) -> EpisodeReplay:
        alpha, beta = self.config.prioritized_replay_alpha, self.config.prioritized_replay_beta
        return EpisodeReplay(capacity, seed, PrioritySettings(alpha, beta) if alpha > 0.0 else None)

    def _after_update(self, drawn: Mapping[str, EpisodeBatch]) -> None:
        learner = cast(QMIXTorchLearner, self.learner_group._learner)  # there are no remote ones
        for module_id, batch in drawn.items():
            if batch.rows is not None:
                replay = cast(EpisodeReplay, self._replays[module_id])
                replay.update_priorities(batch.rows, learner.priorities[module_id])
