"""The settings of QMIX, VDN, QPLEX and independent Q-learning."""

from __future__ import annotations

from typing import Annotated, Literal

from muxrl.servers.algorithms.qmix.mixers import MixerName
from muxrl.servers.algorithms.qmix.networks import AgentName
from muxrl.servers.algorithms.replay.team_trainer import TeamReplaySettings
from muxrl.servers.trainers.declared_settings import (
    Check,
    Count,
    Positive,
    Schedule,
    ScheduleCheck,
)

OptimizerName = Literal["rmsprop", "adam"]


def _share(meaning: str) -> Check:
    return Check(lambda v: 0.0 <= v <= 1.0, f"must lie in [0, 1]; {meaning}")


class QMIXSettings(TeamReplaySettings):
    """QMIX, Rashid et al. 2018; two defaults are not PyMARL's.

    Targets are copied every 200 *updates* (PyMARL counts 200 episodes, which at one update per
    episode is the same), and the mixer bounds the state (PyMARL: ``bound_state=False``).
    """

    unused = frozenset({"rollout_fragment_length"})
    model_refused = (
        "its networks are set by agent, hidden_dim, mixing_embed_dim and hypernet_embed among its "
        "settings"
    )
    own_module_refused = "its mixer and its members' networks belong together"

    adv_hypernet_embed: Count = 64
    """With `mixer: qplex`: hidden units of the networks in each head."""
    adv_hypernet_layers: Count = 3
    """With `mixer: qplex`: layers of the networks in each head; 1 is linear."""
    agent: AgentName = "gru"
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
    mixer: MixerName = "qmix"
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
    optimizer_name: OptimizerName = "rmsprop"
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

    @property
    def num_before_learning(self) -> int:
        return self.num_episodes_before_learning

    @property
    def updates_per_entry(self) -> float:
        return self.updates_per_episode

    def validate(self) -> None:
        super().validate()
        first, capacity = self.num_episodes_before_learning, self.buffer_capacity_episodes
        if first > capacity:
            raise ValueError(
                f"num_episodes_before_learning={first} episodes never fit into "
                f"buffer_capacity_episodes={capacity}: learning would not begin"
            )
        if self.n_step > 1 and self.td_lambda > 0.0:
            raise ValueError(
                f"n_step={self.n_step} and td_lambda={self.td_lambda}: a target is an n-step or a "
                "lambda-return; leave one of them at its default"
            )
