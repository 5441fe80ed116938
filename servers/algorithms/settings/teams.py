"""The settings of algorithms that learn for teams from a replay."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Annotated, Any, ClassVar, Literal

from muxrl.protocol.spaces import Box, Discrete, Space
from muxrl.servers.agents.action_forms import MAX_COMBINATIONS
from muxrl.servers.agents.seating import TEAMS
from muxrl.servers.agents.seats import Seat
from muxrl.servers.algorithms.joint_critics.teams import VECTOR_TEAMS
from muxrl.servers.algorithms.settings.model import AlgorithmSettings
from muxrl.servers.trainers.budget import (
    FIRST_COPY,
    FIRST_UPDATE,
    Milestone,
    ReplaySize,
    of_episodes,
    of_steps,
)
from muxrl.servers.trainers.declared_settings import (
    Check,
    Count,
    Limit,
    NotNegative,
    Positive,
    Schedule,
    ScheduleCheck,
)
from muxrl.servers.trainers.interface import LearnsFrom
from muxrl.servers.trainers.spaces import (
    AgentSpaces,
    SpaceCheck,
    SpaceProblem,
    integers_need_bounds,
)


class TeamReplaySettings(AlgorithmSettings):
    """The settings that all team algorithms with a replay have."""

    learns_from: ClassVar[LearnsFrom] = "replay"
    samples_actions: ClassVar[bool] = False
    entry: ClassVar[Literal["episode", "step"]]  # unit of the replay, in names of settings

    min_sample_timesteps_per_iteration = 1_000

    center_rewards: bool = False
    """Whether `standardize_rewards` also subtracts the mean of the rewards; only for tasks whose
    episodes all have the same length."""
    grad_clip: Limit = 10.0
    """Largest norm of the gradient of each loss; None: gradients are not clipped."""
    hidden_dim: Count = 64
    """Units of each hidden layer of the members' network."""
    obs_agent_id: bool = True
    """Whether the members' network also reads the member's id, one-hot."""
    standardize_rewards: bool = False
    """Whether rewards from the replay are divided by the standard deviation of all rewards that
    were stored so far."""
    tau: Annotated[
        float, Check(lambda v: 0.0 < v <= 1.0, "must lie in (0, 1]; 1 copies the networks")
    ] = 1.0
    """How far each update of the target networks moves them towards the networks that learn; 1:
    they become copies."""

    @property
    def num_before_learning(self) -> int:
        """Number of entries in the replay before the first update."""
        return self._of_entries("num_{}s_before_learning")

    @property
    def updates_per_entry(self) -> float:
        """Updates for each new entry, perhaps a fraction."""
        return self._of_entries("updates_per_{}")

    @property
    def batch_size(self) -> int:
        """Entries that an update draws."""
        return self._of_entries("batch_size_{}s")

    def _of_entries(self, setting: str) -> Any:
        return getattr(self, setting.format(self.entry))

    def num_entries_for(self, num_updates: int) -> int:
        """Returns the number of entries that have to be played for a number of updates."""
        # The entry that makes the replay large enough brings updates already.
        return self.num_before_learning - 1 + math.ceil(num_updates / self.updates_per_entry)

    def validate(self) -> None:
        super().validate()
        if self.center_rewards and not self.standardize_rewards:
            raise ValueError(
                "center_rewards=True: it is a part of standardize_rewards, so set that to true, too"
            )
        first, capacity = self.num_before_learning, self._of_entries("buffer_capacity_{}s")
        if first > capacity:
            raise ValueError(
                f"num_{self.entry}s_before_learning={first} {self.entry}s never fit into "
                f"buffer_capacity_{self.entry}s={capacity}: learning would not begin"
            )


def _share(meaning: str) -> Check:
    return Check(lambda v: 0.0 <= v <= 1.0, f"must lie in [0, 1]; {meaning}")


def _check_member(_: Box, action_space: Space) -> SpaceProblem | None:
    if isinstance(action_space, Discrete):
        return None
    return "action", (
        "it learns one value per discrete action, or per combination of several, up to "
        f"{MAX_COMBINATIONS}{integers_need_bounds(action_space)}"
    )


class QMIXSettings(TeamReplaySettings):
    """QMIX's settings (Rashid et al. 2018); two defaults differ from PyMARL's.

    Targets are copied every 200 *updates* (PyMARL counts 200 episodes, which at one update per
    episode is the same), and the mixer bounds the state (PyMARL: ``bound_state=False``).
    """

    unused = frozenset({"rollout_fragment_length"})
    model_refused = (
        "its networks are set by agent, hidden_dim, mixing_embed_dim and hypernet_embed among its "
        "settings"
    )
    own_module_refused = "its mixer and its members' networks belong together"
    seating = TEAMS
    entry = "episode"
    # Env steps between two calls of `learn`: with one call for each episode, acting would wait.
    batch_env_steps: ClassVar[int] = 200
    space_check: ClassVar[SpaceCheck] = staticmethod(_check_member)

    adv_hypernet_embed: Count = 64
    """With `mixer: qplex`: units of each hidden layer in the heads of the importance weights."""
    adv_hypernet_layers: Count = 3
    """With `mixer: qplex`: layers of the networks in each head of the importance weights; 1: they
    are linear."""
    agent: Literal["gru", "mlp"] = "gru"
    """The members' network: `gru`, which remembers the episode, or `mlp`, which does not."""
    batch_size_episodes: Count = 32
    """Whole episodes that each update draws from the replay."""
    bound_state: bool = True
    """Whether the mixer divides a global state by its root mean square, if that is above 1."""
    buffer_capacity_episodes: Count = 5_000
    """Episodes that the replay of each policy holds."""
    double_q: bool = True
    """Whether targets are those of double Q-learning."""
    epsilon: Annotated[Schedule, ScheduleCheck(highest=1.0)] = [(0, 1.0), (50_000, 0.05)]
    """Probability that a member explores with a random action."""
    hypernet_embed: Count = 64
    """Hidden units of the hypernetworks, which compute the mixer's weights from the global
    state."""
    importance_lr_factor: Positive = 1.0
    """With `mixer: qplex`: learning rate of the importance weights, as a multiple of `lr`."""
    lr: Schedule = 5e-4
    """Learning rate."""
    max_sequence_steps: Count = 2_000
    """Most steps of one entry of the replay. A longer episode is stored as several entries: each is
    bootstrapped at its end, and the GRU begins anew in each. An update pads its entries to the
    longest of them."""
    mixer: Literal["qmix", "vdn", "qplex", "none"] = "qmix"
    """How the values of the members become the value of the team: `qmix`, `vdn`, `qplex`, or
    `none`, where each member learns by itself."""
    mixing_embed_dim: Count = 32
    """Units of the hidden layer of the mixing network."""
    n_step: Count = 1
    """Number of steps whose rewards a target sums before it adds the value of what follows."""
    num_episodes_before_learning: Count = 32
    """Episodes that a policy stores before its first update."""
    num_kernel: Count = 10
    """With `mixer: qplex`: number of heads of the importance weights."""
    obs_last_action: bool = True
    """Whether the members' network also reads the member's last action, one-hot."""
    optimizer_epsilon: float = 1e-5
    """Epsilon of the optimizer."""
    optimizer_name: Literal["rmsprop", "adam"] = "rmsprop"
    """Optimizer: `rmsprop` or `adam`."""
    prioritized_replay_alpha: Annotated[float, _share("0 draws episodes uniformly")] = 0.0
    """Above 0: episodes are drawn in proportion to their priorities to this power; 0: uniformly."""
    prioritized_replay_beta: Annotated[float, _share("1 makes up for priorities in full")] = 0.4
    """How far weights in the loss make up for the draw by priority; 1: in full."""
    prioritized_replay_eta: Annotated[
        float, _share("1 takes the largest TD error of an episode, 0 the mean of its TD errors")
    ] = 0.9
    """Share of an episode's largest TD error in its priority; the rest is their mean."""
    rmsprop_alpha: float = 0.99
    """RMSprop's smoothing constant."""
    target_update_freq: Count = 200
    """Updates between two copies to the target networks, if `tau` is 1; otherwise every update
    moves them."""
    td_lambda: Annotated[float, _share("0 means one-step targets")] = 0.0
    """Above 0: targets are lambda-returns with this lambda, which needs `n_step: 1`."""
    updates_per_episode: Positive = 1.0
    """Updates for each new episode; may be a fraction. They are made together for at least 200 env
    steps."""

    def find_milestones(self) -> Iterator[Milestone]:
        """Yields the first update, and the first copy to the target network."""
        names = ("num_episodes_before_learning", "updates_per_episode")
        yield Milestone(FIRST_UPDATE, names, episodes=self.num_entries_for(1))
        if self.tau == 1.0:
            num = self.num_entries_for(self.target_update_freq)
            yield Milestone(FIRST_COPY, ("target_update_freq", *names), episodes=num)

    def replay_size(self, seats: Mapping[str, Seat]) -> ReplaySize:
        """Returns the size of the replays for the server's teams."""
        return of_episodes(
            seats,
            self.buffer_capacity_episodes,
            "buffer_capacity_episodes",
            longest=self.max_sequence_steps,
            batch_size=self.batch_size_episodes,
        )

    def learns_jointly(self) -> bool:
        """Returns whether the members' values are mixed and learned together."""
        return self.mixer != "none"

    def validate(self) -> None:
        super().validate()
        if self.n_step > 1 and self.td_lambda > 0.0:
            raise ValueError(
                f"n_step={self.n_step} and td_lambda={self.td_lambda}: a target is an n-step or a "
                "lambda-return; leave one of them at its default"
            )


class VDNSettings(QMIXSettings):
    """VDN's settings: QMIX's, with a sum as mixer."""

    preset = {"mixer": "vdn"}


class QPLEXSettings(QMIXSettings):
    """QPLEX's settings: QMIX's, with duplex dueling as mixer."""

    preset = {"mixer": "qplex"}


class IQLSettings(QMIXSettings):
    """IQL's settings: QMIX's, without a mixer; members learn independently."""

    preset = {"mixer": "none"}


class JointCriticSettings(TeamReplaySettings):
    """The settings that MADDPG and MASAC share, which learn from a replay of single steps."""

    model_refused = "its networks are set by hidden_dim and obs_agent_id among its settings"
    own_module_refused = "its members' actor and its critics of all members belong together"
    seating = VECTOR_TEAMS
    entry = "step"

    actor_lr: Schedule = 3e-4
    """Learning rate of the actor."""
    batch_size_steps: Count = 256
    """Steps of teams that each update draws from the replay."""
    buffer_capacity_steps: Count = 100_000
    """Steps of teams that the replay of each policy holds; an episode of n steps takes n + 1."""
    critic_lr: Schedule = 1e-3
    """Learning rate of the critics."""
    hidden_dim: Count = 128
    """Units of each of the two hidden layers of the actor and of each critic."""
    num_steps_before_learning: Count = 1_000
    """Steps of teams that a policy stores before its first update."""
    # Handing over a batch takes about as long as an update, whatever the batch's length.
    rollout_fragment_length: Count = 4
    """Env steps that are handed to the learner at a time."""
    tau = 0.005
    updates_per_step: Positive = 1.0
    """Updates for each new step of a team; may be a fraction."""

    @property
    def batch_env_steps(self) -> int:
        """Env steps between two calls of `learn`."""
        return self.rollout_fragment_length

    def find_milestones(self) -> Iterator[Milestone]:
        """Yields the first update, after which targets begin to move."""
        names = ("num_steps_before_learning", "updates_per_step")
        yield Milestone(FIRST_UPDATE, names, team_steps=self.num_entries_for(1))

    def replay_size(self, seats: Mapping[str, Seat]) -> ReplaySize:
        """Returns the size of the replays for the server's teams."""
        capacity = self.buffer_capacity_steps
        return of_steps(seats, capacity, "buffer_capacity_steps", "team steps")


class MADDPGSettings(JointCriticSettings):
    """MATD3's settings.

    ``twin_critics=False``, ``policy_delay=1`` and ``target_noise=0.0`` give MADDPG.
    """

    space_check: ClassVar[SpaceCheck] = AgentSpaces((Box, Discrete), can_act_unbounded=False)

    exploration_noise: Annotated[Schedule, ScheduleCheck()] = [(0, 0.5), (50_000, 0.1)]
    """Standard deviation of the Gaussian noise that training adds to continuous actions in -1..1,
    before they are clipped."""
    policy_delay: Count = 2
    """Updates of the critics for each update of the actor and of the target networks."""
    # As in TD3 (Fujimoto et al. 2018) and MATD3.
    target_noise: NotNegative = 0.2
    """Standard deviation of the noise on the target actor's actions, whose values are the critics'
    targets; 0: no noise."""
    target_noise_clip: NotNegative = 0.5
    """Largest absolute value of the noise on the target actor's actions."""
    twin_critics: bool = True
    """Whether there are two critics, of which targets use the lower value."""


class MASACSettings(JointCriticSettings):
    """MASAC's settings: those of joint critics, and SAC's temperature."""

    samples_actions = True
    space_check: ClassVar[SpaceCheck] = AgentSpaces((Box,), can_act_unbounded=False)

    alpha_lr: Schedule = 3e-4
    """Learning rate of the temperature."""
    initial_alpha: Positive = 1.0
    """Temperature (weight of the entropy) at the beginning."""
    target_entropy: float | Literal["auto"] = "auto"
    """Entropy of each member's actions, which lie in -1..1, that the temperature adapts to reach;
    `auto`: minus the member's number of action dimensions."""
