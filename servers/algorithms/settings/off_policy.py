"""The settings of DQN and SAC, which learn from a replay of single steps."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Annotated, Any, ClassVar, Literal

from muxrl.protocol.spaces import Box, Discrete
from muxrl.servers.agents.seating import MASKED_AGENTS
from muxrl.servers.agents.seats import Seat
from muxrl.servers.algorithms.settings.model import (
    OF_LSTM,
    AlgorithmSettings,
    Initializer,
    ModelSettings,
)
from muxrl.servers.setting_values import AlgorithmProblem, read_as, suggestion
from muxrl.servers.trainers.budget import FIRST_COPY, FIRST_UPDATE, Milestone, ReplaySize, of_steps
from muxrl.servers.trainers.declared_settings import (
    Check,
    Count,
    Positive,
    Schedule,
    ScheduleCheck,
    Share,
)
from muxrl.servers.trainers.interface import LearnsFrom
from muxrl.servers.trainers.spaces import AgentSpaces, SpaceCheck

UNIFORM = "MultiAgentEpisodeReplayBuffer"
PRIORITIZED = "MultiAgentPrioritizedEpisodeReplayBuffer"
"""RLlib's names of the replay buffers."""

# The proportional variant of Schaul et al. 2016; also RLlib's defaults.
_PRIORITIES = {"alpha": 0.6, "beta": 0.4}

NO_MEMORY = "its replay draws single steps, which a recurrent network cannot learn from; use "
"""Why there is no ``use_lstm``."""


def replay_buffer(capacity: int, *, is_prioritized: bool = False) -> dict[str, Any]:
    """Returns a replay's settings in RLlib's form, with a capacity in agent steps."""
    if not is_prioritized:
        return {"type": UNIFORM, "capacity": capacity}
    return {"type": PRIORITIZED, "capacity": capacity, **_PRIORITIES}


def read_replay_buffer(what: str, value: Any, default: Mapping[str, Any]) -> dict[str, Any]:
    """Returns all settings of a replay: those that were given, and defaults for the others.

    Args:
        what: the setting, in words.
        value: the mapping that the user wrote.
        default: of the algorithm.

    Raises:
        AlgorithmProblem: the type is no buffer that can hold a server's episodes, or the buffer
            does not take a key or value.
    """
    kind = value.get("type", default["type"])
    if kind not in (UNIFORM, PRIORITIZED):
        hint = ""
        if isinstance(kind, str) and "Episode" in kind:
            hint = f"; use {PRIORITIZED if 'Prioritized' in kind else UNIFORM}"
        raise AlgorithmProblem(
            f"{what} has the type {kind!r}, which cannot hold a server's episodes of several "
            f"agents{hint or f'; known: {UNIFORM}, {PRIORITIZED}'}"
        )
    buffer = replay_buffer(default["capacity"], is_prioritized=kind == PRIORITIZED)
    for key, entry in value.items():
        if key not in buffer:
            why = f", which {PRIORITIZED} has" if key in _PRIORITIES else ""
            raise AlgorithmProblem(
                f"{what} has no key {key!r} for {kind}{why or suggestion(key, buffer)}"
            )
        if key != "type":
            entry = read_as(f"{what}, key {key!r},", entry, type(buffer[key]))
            if entry < (1 if key == "capacity" else 0):
                raise AlgorithmProblem(f"{what}, key {key!r}, must not be {entry}")
        buffer[key] = entry
    return buffer


_Fragment = Annotated[
    int | Literal["auto"],
    Check(lambda v: v == "auto" or v >= 1, "must be a whole number of at least 1, or 'auto'"),
]


class OffPolicySettings(AlgorithmSettings):
    """The settings that DQN and SAC share; ``replay_buffer_config`` has RLlib's form."""

    learns_from: ClassVar[LearnsFrom] = "replay"
    seating = replace(MASKED_AGENTS, one_choice=True)

    min_sample_timesteps_per_iteration = 1_000

    grad_clip_by: Literal["value", "norm", "global_norm"] = "global_norm"
    """What `grad_clip` limits: each number of a gradient (`value`), the norm of each tensor's
    gradient (`norm`), or the norm of all gradients together (`global_norm`)."""
    n_step: Count = 1
    """Number of steps whose rewards a target sums before it adds the value of what follows."""
    num_steps_sampled_before_learning_starts: int = 1_000
    """Env steps before the first update."""
    replay_buffer_config: Annotated[dict[str, Any], read_replay_buffer] = replay_buffer(50_000)
    """The replay of each policy. `type`: `MultiAgentEpisodeReplayBuffer`, or to draw by priority
    `MultiAgentPrioritizedEpisodeReplayBuffer`, with `alpha` and `beta`. `capacity`: steps of agents
    that it holds, where an episode of n steps takes n + 1."""
    rollout_fragment_length: _Fragment = "auto"
    """Env steps between two updates; `auto`: as many as `n_step`."""
    target_network_update_freq: int = 0
    """Env steps between two updates of the target network; 0: with every update."""
    tau: Share = 1.0
    """How far each update moves the target network towards the network that learns; 1: it becomes a
    copy."""
    train_batch_size: Count = 32
    """RLlib's old name of `train_batch_size_per_learner`; if both are set, this one is used."""
    train_batch_size_per_learner: Count = 32
    """Steps that each update of a policy draws from its replay."""
    training_intensity: float | None = None
    """Steps that updates draw from the replay for each env step that is played; None: one update
    every `rollout_fragment_length` env steps."""

    @property
    def batch_env_steps(self) -> int:
        """Env steps between two calls of `learn`."""
        length = self.rollout_fragment_length
        return self.n_step if length == "auto" else length

    @property
    def batch_size(self) -> int:
        """Steps in an update, whichever of the two settings gives them."""
        is_given = self.train_batch_size != type(self).train_batch_size
        return self.train_batch_size if is_given else self.train_batch_size_per_learner

    @property
    def updates_per_step(self) -> float:
        """Updates for each env step."""
        intensity = self.training_intensity
        return intensity / self.batch_size if intensity else 1 / self.batch_env_steps

    def find_milestones(self) -> Iterator[Milestone]:
        """Yields the first update, and the first copy to the target network if it comes later."""
        learning = "num_steps_sampled_before_learning_starts"
        before = self.num_steps_sampled_before_learning_starts
        yield Milestone(FIRST_UPDATE, (learning,), env_steps=before)
        copying = self.target_network_update_freq
        if copying > before:
            yield Milestone(FIRST_COPY, ("target_network_update_freq",), env_steps=copying)

    def replay_size(self, seats: Mapping[str, Seat]) -> ReplaySize:
        """Returns the size of the replays for the server's agents."""
        capacity = self.replay_buffer_config["capacity"]
        return of_steps(seats, capacity, "replay_buffer_config, key 'capacity'", "agent steps")


class DQNModelSettings(ModelSettings):
    """Settings of the Q-network."""

    refused = {
        "use_lstm": f"{NO_MEMORY}IQL, which is recurrent DQN where agents are in no group: its GRU "
        "learns from whole episodes"
    }
    unused = OF_LSTM | {"free_log_std", "log_std_clip_param", "vf_share_layers"}

    fcnet_activation = "relu"


class DQNSettings(OffPolicySettings):
    """DQN's settings: RLlib's defaults, but fewer updates and a uniform replay."""

    samples_actions: ClassVar[bool] = False
    space_check: ClassVar[SpaceCheck] = AgentSpaces((Discrete,))

    model: DQNModelSettings = DQNModelSettings()
    """Settings of the networks."""

    grad_clip = 40.0
    rollout_fragment_length = 4  # as in the paper; RLlib makes one update for every step
    target_network_update_freq = 500

    double_q: bool = True
    """Whether targets are those of double Q-learning."""
    dueling: bool = True
    """Whether the network is a dueling one."""
    epsilon: Annotated[Schedule, ScheduleCheck(highest=1.0)] = [(0, 1.0), (10_000, 0.05)]
    """Probability that an agent explores with a random action."""
    lr: Schedule = 5e-4
    """Learning rate."""
    num_atoms: Count = 1
    """Above 1: the network learns the distribution of returns, on so many atoms, and `dueling` has
    no effect."""
    # With a Huber loss the large error at an episode's end has no larger gradient than any other:
    # on CartPole values rise far above every return.
    td_error_loss_fn: Literal["huber", "mse"] = "mse"
    """Loss of TD errors: `huber` or `mse`."""
    v_max: float = 10.0
    """Largest return in the distribution, if `num_atoms` is above 1."""
    v_min: float = -10.0
    """Lowest return in the distribution, if `num_atoms` is above 1."""

    def validate(self) -> None:
        super().validate()
        if self.num_atoms > 1 and self.v_min >= self.v_max:
            raise ValueError(f"v_min={self.v_min} must be below v_max={self.v_max}")


class SACModelSettings(ModelSettings):
    """Network settings of both the policy and the critics."""

    refused = {
        "use_lstm": f"{NO_MEMORY}PPO or A2C",
        "free_log_std": "the deviation of its actions depends on the observation",
    }
    unused = OF_LSTM | {"log_std_clip_param", "vf_share_layers"}

    # With RLlib's tanh the critic hardly learns how an action's value depends on the observation.
    fcnet_activation = "relu"

    fusionnet_hiddens: list[int] = [64, 64]
    """Units of each layer, except the last, in which a critic combines observation and action."""
    fusionnet_activation: str = "relu"
    """Activation after each of the layers of `fusionnet_hiddens`, named as in
    `fcnet_activation`."""
    fusionnet_kernel_initializer: Initializer = None
    """Initializer of the weights of the layers of `fusionnet_hiddens`, given as
    `fcnet_kernel_initializer` is."""
    fusionnet_kernel_initializer_kwargs: dict[str, Any] | None = None
    """Arguments of `fusionnet_kernel_initializer`."""
    fusionnet_bias_initializer: Initializer = None
    """Initializer of the biases of the layers of `fusionnet_hiddens`, given as
    `fcnet_kernel_initializer` is."""
    fusionnet_bias_initializer_kwargs: dict[str, Any] | None = None
    """Arguments of `fusionnet_bias_initializer`."""


class SACSettings(OffPolicySettings):
    """SAC's settings: RLlib's defaults, but the paper's actor_lr and a uniform replay."""

    space_check: ClassVar[SpaceCheck] = AgentSpaces((Discrete, Box), can_act_unbounded=False)

    model: SACModelSettings = SACModelSettings()
    """Settings of the networks."""

    num_steps_sampled_before_learning_starts = 1_500
    replay_buffer_config = replay_buffer(100_000)
    tau = 0.005
    train_batch_size = 256
    train_batch_size_per_learner = 256

    actor_lr: Schedule = 3e-4  # the paper's rate of all networks; RLlib has a tenth of it
    """Learning rate of the policy."""
    alpha_lr: Schedule = 3e-4
    """Learning rate of the temperature."""
    critic_lr: Schedule = 3e-4
    """Learning rate of the critics."""
    initial_alpha: Positive = 1.0
    """Temperature (weight of the entropy) at the beginning."""
    target_entropy: float | Literal["auto"] | None = "auto"
    """Entropy of the policy that the temperature adapts to reach. `auto`: for a `Box` minus its
    number of dimensions, for `Discrete` actions 0.3 log n, where n are available. None: RLlib's
    rule, which differs for `Discrete` actions: -1."""
    twin_q: bool = True
    """Whether there are two critics, of which the lower value is used."""
