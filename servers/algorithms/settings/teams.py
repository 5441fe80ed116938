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
    """Whether `standardize_rewards` subtracts the mean, too: for episodes of equal length."""
    grad_clip: Limit = 10.0
    """Largest norm of the gradient, of each loss by itself; None: no clip."""
    hidden_dim: Count = 64
    """Units of the members' shared network."""
    obs_agent_id: bool = True
    """Whether the members' network reads its member's id, one-hot."""
    standardize_rewards: bool = False
    """Whether rewards are divided by the standard deviation of all rewards stored so far."""
    tau: Annotated[
        float, Check(lambda v: 0.0 < v <= 1.0, "must lie in (0, 1]; 1 copies the networks")
    ] = 1.0
    """How far target networks move towards the others at each update."""

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
    """With `mixer: qplex`: hidden units of the networks in each head."""
    adv_hypernet_layers: Count = 3
    """With `mixer: qplex`: layers of the networks in each head; 1 is linear."""
    agent: Literal["gru", "mlp"] = "gru"
    """Members' network: `gru`, which remembers the episode, or `mlp`, which does not."""
    batch_size_episodes: Count = 32
    """Whole episodes in one update."""
    bound_state: bool = True
    """Whether a state is divided by its root mean square where that is above 1."""
    buffer_capacity_episodes: Count = 5_000
    """Episodes that the replay holds, for each policy."""
    double_q: bool = True
    """Whether the online network chooses the action that the target network values."""
    epsilon: Annotated[Schedule, ScheduleCheck(highest=1.0)] = [(0, 1.0), (50_000, 0.05)]
    """Share of random actions; a number or a schedule."""
    hypernet_embed: Count = 64
    """Hidden units of the hypernetworks."""
    importance_lr_factor: Positive = 1.0
    """With `mixer: qplex`: the importance weights' learning rate, in multiples of `lr`."""
    lr: Schedule = 5e-4
    """Learning rate; a number or a schedule."""
    max_sequence_steps: Count = 2_000
    """Steps of an entry of the replay; a longer episode is several, each bootstrapped at its end,
    with a GRU that begins anew. Updates pad to the longest entry."""
    mixer: Literal["qmix", "vdn", "qplex", "none"] = "qmix"
    """`qmix`, `vdn`, `qplex` or `none`."""
    mixing_embed_dim: Count = 32
    """Units of the mixing network."""
    n_step: Count = 1
    """Steps of reward before the value."""
    num_episodes_before_learning: Count = 32
    """Episodes of a policy before its first update."""
    num_kernel: Count = 10
    """With `mixer: qplex`: heads of the importance weights."""
    obs_last_action: bool = True
    """Whether the members' network reads its member's last action, one-hot."""
    optimizer_epsilon: float = 1e-5
    """The optimizer's epsilon."""
    optimizer_name: Literal["rmsprop", "adam"] = "rmsprop"
    """`rmsprop` or `adam`."""
    prioritized_replay_alpha: Annotated[float, _share("0 draws episodes uniformly")] = 0.0
    """Above 0: episodes are drawn by priority to that power."""
    prioritized_replay_beta: Annotated[float, _share("1 makes up for priorities in full")] = 0.4
    """How far the loss makes up for priorities, from 0 to 1."""
    prioritized_replay_eta: Annotated[
        float, _share("1 is the largest TD error of an episode, 0 their mean")
    ] = 0.9
    """Share of an episode's largest TD error in its priority; the rest is their mean."""
    rmsprop_alpha: float = 0.99
    """RMSprop's smoothing constant."""
    target_update_freq: Count = 200
    """Updates between two copies to the target network, with `tau` 1."""
    td_lambda: Annotated[float, _share("0 is one step")] = 0.0
    """Above 0: lambda-returns; with `n_step` 1."""
    updates_per_episode: Positive = 1.0
    """Updates for each new episode, or a fraction; made for at least 200 env steps at a time."""

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
    """Learning rate of the actor; a number or a schedule."""
    batch_size_steps: Count = 256
    """Steps of a team in one update, drawn from the replay."""
    buffer_capacity_steps: Count = 100_000
    """Steps that the replay holds, for each policy: an episode takes one more than it has."""
    critic_lr: Schedule = 1e-3
    """Learning rate of the critics."""
    hidden_dim: Count = 128
    """Units of both hidden layers, of the actor and of each critic."""
    num_steps_before_learning: Count = 1_000
    """Steps of a policy's teams before its first update."""
    # Handing over a batch takes about as long as an update, whatever the batch's length.
    rollout_fragment_length: Count = 4
    """Env steps that are handed over at a time; the updates for them follow."""
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
    """Standard deviation of the noise in training, in units of actions in -1..1; a number or a
    schedule."""
    policy_delay: Count = 2
    """Updates of the critics for each of actor and targets."""
    # As in TD3 (Fujimoto et al. 2018) and MATD3.
    target_noise: NotNegative = 0.2
    """Standard deviation of the noise on the actions that targets value; 0: none."""
    target_noise_clip: NotNegative = 0.5
    """Largest size of that noise."""
    twin_critics: bool = True
    """Whether targets take the lower value of two critics."""


class MASACSettings(JointCriticSettings):
    """MASAC's settings: those of joint critics, and SAC's temperature."""

    samples_actions = True
    space_check: ClassVar[SpaceCheck] = AgentSpaces((Box,), can_act_unbounded=False)

    alpha_lr: Schedule = 3e-4
    """Learning rate of the temperature."""
    initial_alpha: Positive = 1.0
    """First temperature, the weight of the entropy."""
    target_entropy: float | Literal["auto"] = "auto"
    """Entropy of each member, in -1..1, that the temperature is adapted to; `auto`: minus its
    number of action dimensions."""
