"""DQN and SAC: RLlib's networks and losses, on a replay of arrays.

DQN: Mnih et al. 2015; its n-step returns as in Rainbow, Hessel et al. 2018 (arXiv 1710.02298).
SAC: Haarnoja et al. 2018 (arXiv 1801.01290).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Annotated, Any, Literal

from ray.rllib.algorithms.algorithm_config import AlgorithmConfig
from ray.rllib.algorithms.dqn import dqn as rllib_dqn
from ray.rllib.algorithms.sac import sac as rllib_sac

from muxrl.protocol.spaces import Box, Discrete
from muxrl.servers.agents.seating import MASKED_AGENTS
from muxrl.servers.agents.seats import Seat
from muxrl.servers.algorithms.declared_settings import (
    Count,
    DeclaredSettings,
    Schedule,
    ScheduleCheck,
    Share,
    configured_by,
)
from muxrl.servers.algorithms.entry import AgentSpaces, AlgorithmEntry
from muxrl.servers.algorithms.milestones import FIRST_COPY, FIRST_UPDATE, Milestone
from muxrl.servers.algorithms.networks import Networks
from muxrl.servers.algorithms.off_policy.export import ValueGraph
from muxrl.servers.algorithms.off_policy.learners import DQNLearner, SACLearner
from muxrl.servers.algorithms.off_policy.rl_modules import (
    MaskableDQNTorchRLModule,
    MaskableSACTorchRLModule,
    actor_network,
    value_network,
)
from muxrl.servers.algorithms.replay.algorithm import ReplayAlgorithm
from muxrl.servers.algorithms.replay.priorities import PrioritySettings
from muxrl.servers.algorithms.replay.steps import StepReplay
from muxrl.servers.algorithms.replay_size import ReplaySize, of_steps
from muxrl.servers.algorithms.settings import TrainingSettings
from muxrl.servers.setting_values import (
    AlgorithmProblem,
    read_as,
    suggestion,
)

UNIFORM = "MultiAgentEpisodeReplayBuffer"
PRIORITIZED = "MultiAgentPrioritizedEpisodeReplayBuffer"

_REFILLED_STATE = "refilled_at"

# Schaul et al. 2016, proportional variant; RLlib's defaults, too.
_PRIORITIES = {"alpha": 0.6, "beta": 0.4}


def replay_buffer(capacity: int, *, is_prioritized: bool = False) -> dict[str, Any]:
    """Returns RLlib's buffer config for agents' steps, `capacity` of them."""
    if not is_prioritized:
        return {"type": UNIFORM, "capacity": capacity}
    return {"type": PRIORITIZED, "capacity": capacity, **_PRIORITIES}


def read_replay_buffer(what: str, value: Any, default: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the buffer config that RLlib is given: what was set, and the rest at its default.

    Args:
        what: the setting, in words.
        value: as the user wrote it, a mapping.
        default: the algorithm's.

    Raises:
        AlgorithmProblem: it names no buffer that can hold a server's episodes, or
            has a key or value that the buffer does not take.
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


class _OffPolicyConfig(DeclaredSettings):
    """What both have of RLlib's; ``replay_buffer_config`` has RLlib's form."""

    grad_clip_by: Literal["value", "norm", "global_norm"]
    """`value`, `norm` or `global_norm`."""
    n_step: Count
    """Steps of reward before the value."""
    num_steps_sampled_before_learning_starts: int
    """Env steps before the first update."""
    replay_buffer_config: Annotated[dict[str, Any], read_replay_buffer]
    """`type`: `MultiAgentEpisodeReplayBuffer`, or `MultiAgentPrioritizedEpisodeReplayBuffer` with
    `alpha` and `beta`; `capacity` in agents' steps, for each policy."""
    rollout_fragment_length: int | Literal["auto"]
    """Env steps between two updates; `auto`: `n_step`."""
    tau: Share
    """How far the target network moves towards the other at each of its updates."""
    target_network_update_freq: int
    """Env steps between two updates of the target network."""
    train_batch_size: int
    """RLlib's old name of `train_batch_size_per_learner`."""
    train_batch_size_per_learner: int
    """Steps of each policy in an update, drawn from the replay."""
    training_intensity: float | None
    """Steps trained per step played; None: one update per `rollout_fragment_length`."""

    def validate(self) -> None:
        """RLlib's checks, but that its replay needs fragments of `n_step` steps, as none here."""
        fragment = self.rollout_fragment_length
        self.rollout_fragment_length = "auto"
        try:
            super().validate()
        finally:
            self.rollout_fragment_length = fragment


class DQNConfig(_OffPolicyConfig, rllib_dqn.DQNConfig):
    """RLlib's, with fewer updates and a uniform replay."""

    replay_buffer_config = replay_buffer(50_000)
    rollout_fragment_length = 4  # as in the paper; RLlib makes one update for every step

    double_q: bool
    """Whether the online network chooses the action that the target network values."""
    dueling: bool
    """Whether values are made of a state's value and actions' advantages."""
    epsilon: Annotated[Schedule, ScheduleCheck(highest=1.0)]
    """Share of random actions; a number or a schedule."""
    lr: Schedule
    """Learning rate; a number or a schedule."""
    num_atoms: int
    """Above 1: the distribution of returns is learned, on so many atoms; `dueling` does nothing."""
    # Huber's gradient of an episode's end, whose error is large, weighs no more than any other's:
    # on CartPole values rise far above every return.
    td_error_loss_fn: Literal["huber", "mse"] = "mse"
    """`huber` or `mse`."""
    v_max: float
    """Largest return of that distribution."""
    v_min: float
    """Lowest return of that distribution."""


class SACConfig(_OffPolicyConfig, rllib_sac.SACConfig):
    """RLlib's, with the paper's learning rate of the actor and a uniform replay."""

    replay_buffer_config = replay_buffer(100_000)
    min_time_s_per_iteration = None
    min_sample_timesteps_per_iteration = 1_000

    actor_lr: Schedule = 3e-4  # the paper's for all networks; RLlib's is a tenth of it
    """Learning rate of the policy; a number or a schedule."""
    alpha_lr: Schedule
    """Learning rate of the temperature."""
    critic_lr: Schedule
    """Learning rate of the critics."""
    initial_alpha: float
    """First temperature, the weight of the entropy."""
    target_entropy: float | Literal["auto"] | None
    """Entropy that the temperature is adapted to; `auto`: minus the action dimensions of a `Box`,
    0.3 log n of n `Discrete` actions; None: RLlib's rule."""
    twin_q: bool
    """Whether there are two critics, of which the lower value counts."""


class OffPolicyAlgorithm(ReplayAlgorithm):
    """Makes so many updates for each env step that comes, of all policies that have a step."""

    def setup(self, config: AlgorithmConfig) -> None:
        super().setup(config)
        intensity = self.config.training_intensity
        self._updates_per_step = (
            intensity / self.batch_size
            if intensity
            else 1 / self.config.get_rollout_fragment_length()
        )
        self._refilled_at = 0
        """Env steps before the replay's first; not 0 after a resumption without it."""

    def make_replay(self) -> StepReplay:
        config, settings = self.config, self.config.replay_buffer_config
        by_priority = None
        if settings["type"] == PRIORITIZED:
            by_priority = PrioritySettings(settings["alpha"], settings["beta"])
        return StepReplay(
            settings["capacity"],
            config.seed,
            n_step=config.n_step,
            gamma=config.gamma,
            by_priority=by_priority,
        )

    @property
    def batch_size(self) -> int:
        return int(self.config.total_train_batch_size)

    def note_batch(self, num_env_steps: int) -> None:
        config = self.config
        num_late = self.num_env_steps - self._refilled_at
        num_late -= config.num_steps_sampled_before_learning_starts
        if num_late < 0:
            return
        # Of a batch of many, those before learning begins bring none, but for the last fragment.
        num_counted = min(num_env_steps, num_late + config.get_rollout_fragment_length())
        for policy_id in self._replays:
            self.bring_updates(policy_id, num_counted * self._updates_per_step)

    def refill_replay(self, env_steps: int) -> None:
        self._refilled_at = env_steps

    def get_state(self, *args: Any, **kwargs: Any) -> dict[str, Any]:
        return {**super().get_state(*args, **kwargs), _REFILLED_STATE: self._refilled_at}

    def set_state(self, state: dict[str, Any]) -> None:
        super().set_state(state)
        self._refilled_at = state.get(_REFILLED_STATE, 0)


@configured_by(DQNConfig, DQNLearner)
class DQN(OffPolicyAlgorithm):
    """See `DQNConfig`."""


@configured_by(SACConfig, SACLearner)
class SAC(OffPolicyAlgorithm):
    """See `SACConfig`."""


def find_milestones(config: AlgorithmConfig) -> Iterator[Milestone]:
    """Yields the first update, and the first copy to the target network, after so many env steps.

    They are copied, or moved by `tau`, after an update.
    """
    before = config.num_steps_sampled_before_learning_starts
    learning = "num_steps_sampled_before_learning_starts"
    yield Milestone(FIRST_UPDATE, (learning,), env_steps=before)
    copying = "target_network_update_freq"
    if config.target_network_update_freq > before:
        yield Milestone(FIRST_COPY, (copying,), env_steps=config.target_network_update_freq)


def find_replay_size(config: AlgorithmConfig, seats: Mapping[str, Seat]) -> ReplaySize:
    """Returns what the replays store of the agents."""
    capacity = config.replay_buffer_config["capacity"]
    return of_steps(seats, capacity, "replay_buffer_config, key 'capacity'", "agent steps")


_SINGLE_STEPS = "its replay draws single steps, which a recurrent network cannot learn from; use "
_NO_LSTM_IN_DQN = {
    "use_lstm": f"{_SINGLE_STEPS}IQL, which is recurrent DQN where agents are in no group: its GRU "
    "learns from whole episodes"
}
_NO_LSTM_IN_SAC = {"use_lstm": f"{_SINGLE_STEPS}PPO or A2C"}

DQN_ENTRY = AlgorithmEntry(
    name="DQN",
    summary="deep Q-learning, with double Q, dueling, n-step, atoms (Mnih et al. 2015)",
    learns_from="replay",
    training=TrainingSettings(DQNConfig),
    networks=Networks(
        defaults={"fcnet_activation": "relu"},
        refused=_NO_LSTM_IN_DQN,
        module=MaskableDQNTorchRLModule,
        is_module_for_all=True,
    ),
    seating=replace(MASKED_AGENTS, one_choice=True),
    space_check=AgentSpaces((Discrete,)),
    samples_actions=False,
    graph=ValueGraph,
    acting_network=value_network,
    milestones=find_milestones,
    replay_size=find_replay_size,
)
SAC_ENTRY = AlgorithmEntry(
    name="SAC",
    summary="soft actor-critic, continuous or discrete (Haarnoja et al. 2018)",
    learns_from="replay",
    training=TrainingSettings(SACConfig),
    networks=Networks(
        # With RLlib's tanh the critic hardly learns how the worth of an action depends on the
        # observation.
        defaults={
            "fcnet_activation": "relu",
            "fusionnet_activation": "relu",
            "fusionnet_hiddens": [64, 64],
        },
        refused=_NO_LSTM_IN_SAC,
        module=MaskableSACTorchRLModule,
        is_module_for_all=True,
    ),
    seating=replace(MASKED_AGENTS, one_choice=True),
    space_check=AgentSpaces((Discrete, Box), can_act_unbounded=False),
    acting_network=actor_network,
    milestones=find_milestones,
    replay_size=find_replay_size,
)
