"""What DQN and SAC have in common: a replay of single steps, and updates for each env step."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Annotated, Any, ClassVar, Literal

import numpy as np
import torch
from torch import Tensor

from muxrl.servers.agents.keys import ACTION_MASK, OBS
from muxrl.servers.agents.seating import MASKED_AGENTS
from muxrl.servers.agents.seats import Seat
from muxrl.servers.algorithms.columns import TERMINATEDS
from muxrl.servers.algorithms.replay.priorities import PrioritySettings
from muxrl.servers.algorithms.replay.replay_trainer import ReplayTrainer
from muxrl.servers.algorithms.replay.steps import N_STEP, StepReplay
from muxrl.servers.algorithms.update import Targets
from muxrl.servers.episodes.trajectories import Trajectory
from muxrl.servers.setting_values import AlgorithmProblem, read_as, suggestion
from muxrl.servers.trainers.declared_settings import (
    Check,
    Count,
    Limit,
    NotNegative,
    Settings,
    Share,
)
from muxrl.servers.trainers.interface import PolicySpec, Rows
from muxrl.servers.trainers.milestones import FIRST_COPY, FIRST_UPDATE, Milestone
from muxrl.servers.trainers.replay_size import ReplaySize, of_steps

UNIFORM = "MultiAgentEpisodeReplayBuffer"
PRIORITIZED = "MultiAgentPrioritizedEpisodeReplayBuffer"
"""RLlib's names."""

# Schaul et al. 2016, proportional variant; RLlib's defaults, too.
_PRIORITIES = {"alpha": 0.6, "beta": 0.4}

NO_MEMORY = "its replay draws single steps, which a recurrent network cannot learn from; use "
"""Why there is no ``use_lstm``."""


def replay_buffer(capacity: int, *, is_prioritized: bool = False) -> dict[str, Any]:
    """Returns a replay's settings in RLlib's form, for so many steps of agents."""
    if not is_prioritized:
        return {"type": UNIFORM, "capacity": capacity}
    return {"type": PRIORITIZED, "capacity": capacity, **_PRIORITIES}


def read_replay_buffer(what: str, value: Any, default: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the whole settings of a replay: what was set, and the rest at its default.

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


_Fragment = Annotated[
    int | Literal["auto"],
    Check(lambda v: v == "auto" or v >= 1, "must be a whole number of at least 1, or 'auto'"),
]


class OffPolicySettings(Settings):
    """What both have; ``replay_buffer_config`` has RLlib's form."""

    gamma: Share = 0.99
    """Discount of each step's reward."""
    grad_clip: Limit = None
    """Largest norm of the gradient; None: no clip."""
    grad_clip_by: Literal["value", "norm", "global_norm"] = "global_norm"
    """`value`, `norm` or `global_norm`."""
    min_sample_timesteps_per_iteration: int = 1_000
    """Env steps per training record, at least."""
    min_time_s_per_iteration: NotNegative | None = None
    """Seconds per training record, at least."""
    n_step: Count = 1
    """Steps of reward before the value."""
    num_steps_sampled_before_learning_starts: int = 1_000
    """Env steps before the first update."""
    replay_buffer_config: Annotated[dict[str, Any], read_replay_buffer] = replay_buffer(50_000)
    """`type`: `MultiAgentEpisodeReplayBuffer`, or `MultiAgentPrioritizedEpisodeReplayBuffer` with
    `alpha` and `beta`; `capacity` in agents' steps, for each policy."""
    rollout_fragment_length: _Fragment = "auto"
    """Env steps between two updates; `auto`: `n_step`."""
    target_network_update_freq: int = 0
    """Env steps between two updates of the target network."""
    tau: Share = 1.0
    """How far the target network moves towards the other at each of its updates."""
    train_batch_size: Count = 32
    """RLlib's old name of `train_batch_size_per_learner`."""
    train_batch_size_per_learner: Count = 32
    """Steps of each policy in an update, drawn from the replay."""
    training_intensity: float | None = None
    """Steps trained per step played; None: one update per `rollout_fragment_length`."""

    @property
    def fragment(self) -> int:
        """Env steps between two calls of `learn`."""
        length = self.rollout_fragment_length
        return self.n_step if length == "auto" else length

    @property
    def batch_size(self) -> int:
        """Steps in an update, under whichever name they were given."""
        is_given = self.train_batch_size != type(self).train_batch_size
        return self.train_batch_size if is_given else self.train_batch_size_per_learner

    @property
    def updates_per_step(self) -> float:
        """Updates for each env step."""
        intensity = self.training_intensity
        return intensity / self.batch_size if intensity else 1 / self.fragment


class OffPolicy(ReplayTrainer):
    """Makes so many updates for each env step of its server, once its replay holds a step.

    A subclass has `targets` among its networks' attributes, and the losses.
    """

    seating = replace(MASKED_AGENTS, one_choice=True)
    learns_when_absent = True
    Settings: ClassVar[type[OffPolicySettings]]
    settings: OffPolicySettings
    replay: StepReplay

    def __init__(self, policy: PolicySpec, settings: Any) -> None:
        super().__init__(policy, settings)
        self.targets = self.make_targets()
        self._moved_at = 0
        """Env steps when the targets moved last."""
        self._num_moves = 0
        self._refilled_at = 0
        """Env steps before the replay's first; not 0 after a resumption without it."""

    @abstractmethod
    def make_targets(self) -> Targets:
        """Returns the target networks, of those in `net`."""

    def make_replay(self) -> StepReplay:
        own, buffer = self.settings, self.settings.replay_buffer_config
        by_priority = None
        if buffer["type"] == PRIORITIZED:
            by_priority = PrioritySettings(buffer["alpha"], buffer["beta"])
        return StepReplay(
            buffer["capacity"],
            self.policy.seed,
            n_step=own.n_step,
            gamma=own.gamma,
            by_priority=by_priority,
        )

    @property
    def batch_env_steps(self) -> int:
        """Env steps between two calls of `learn`."""
        return self.settings.fragment

    @property
    def batch_size(self) -> int:
        return self.settings.batch_size

    def updates_for(
        self, stored: Sequence[Trajectory], num_before: int, num_new: int, num_env_steps: int
    ) -> float:
        own = self.settings
        num_late = self.env_steps - self._refilled_at - own.num_steps_sampled_before_learning_starts
        if num_late < 0 or not len(self.replay):
            return 0.0
        # Of a batch of many, those before learning begins bring none, but for the last fragment.
        return min(num_env_steps, num_late + own.fragment) * own.updates_per_step

    def discounts_of(self, batch: Mapping[str, Any]) -> Tensor:
        """Returns ``gamma**k (1 - terminated)``, ``[B]``, of k steps of reward."""
        discounts: Tensor = self.settings.gamma ** batch[N_STEP] * (1.0 - batch[TERMINATEDS])
        return discounts

    def move_targets(self) -> None:
        """Has the target networks follow, if it is time; after each update."""
        own = self.settings
        if self.env_steps - self._moved_at >= own.target_network_update_freq:
            self.targets.follow(own.tau)
            self._moved_at = self.env_steps
            self._num_moves += 1

    def learn(self, trajectories: Sequence[Trajectory]) -> dict[str, float]:
        return {**super().learn(trajectories), **self.reports()}

    def reports(self) -> dict[str, float]:
        """Returns metrics beside those of the last update."""
        found: dict[str, float] = {
            "num_target_updates": self._num_moves,
            "num_module_steps_trained_lifetime": self.num_updates * self.batch_size,
        }
        for name, step in self.steps.items():
            found[f"{name}_learning_rate"] = step.lr
            found[f"gradients_{name}_global_norm"] = step.norms.get("", 0.0)
        return found

    def seen(self, rows: Rows) -> tuple[Tensor, Tensor | None]:
        """Returns observations and masks as tensors, for what is asked beside acting."""
        parts = {key: torch.from_numpy(np.array(one)) for key, one in rows.parts.items()}
        return split({key: one.to(self.device) for key, one in parts.items()})

    # --- state --------------------------------------------------------------------------

    def refill_replay(self, env_steps: int) -> None:
        self._refilled_at = env_steps

    def more_state(self) -> dict[str, Any]:
        return {
            **super().more_state(),
            "moved_at": self._moved_at,
            "num_moves": self._num_moves,
            "refilled_at": self._refilled_at,
        }

    def load_more(self, state: Mapping[str, Any]) -> None:
        super().load_more(state)
        self._moved_at, self._num_moves = state["moved_at"], state["num_moves"]
        self._refilled_at = state["refilled_at"]

    # --- the budget ---------------------------------------------------------------------

    @classmethod
    def find_milestones(cls, settings: OffPolicySettings) -> Iterator[Milestone]:
        """Yields the first update, and the first copy to the target network, which comes after an
        update, with the env steps before it."""
        learning = "num_steps_sampled_before_learning_starts"
        before = settings.num_steps_sampled_before_learning_starts
        yield Milestone(FIRST_UPDATE, (learning,), env_steps=before)
        copying = settings.target_network_update_freq
        if copying > before:
            yield Milestone(FIRST_COPY, ("target_network_update_freq",), env_steps=copying)

    @classmethod
    def replay_size(cls, settings: OffPolicySettings, seats: Mapping[str, Seat]) -> ReplaySize:
        """Returns what the replays store of the agents."""
        capacity = settings.replay_buffer_config["capacity"]
        return of_steps(seats, capacity, "replay_buffer_config, key 'capacity'", "agent steps")


def split(observed: Any) -> tuple[Tensor, Tensor | None]:
    """Returns the observations and the masks, if any, of what a replay or a row has of both."""
    if isinstance(observed, Mapping):
        return observed[OBS], observed.get(ACTION_MASK)
    return observed, None


def at(values: Tensor, actions: Tensor) -> Tensor:
    """Returns the values ``[B]`` of actions ``[B]``, of ``[B, num_actions]``."""
    return values.gather(-1, actions.long().unsqueeze(-1)).squeeze(-1)
