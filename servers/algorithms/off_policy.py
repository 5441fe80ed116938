"""The base of DQN and SAC: a replay of single steps, and updates for each env step."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from torch import Tensor

from muxrl.servers.agents.keys import ACTION_MASK, OBS
from muxrl.servers.algorithms.columns import TERMINATEDS
from muxrl.servers.algorithms.replay.replay_trainer import ReplayTrainer
from muxrl.servers.algorithms.replay.steps import N_STEP, StepReplay
from muxrl.servers.algorithms.settings.off_policy import PRIORITIZED, OffPolicySettings
from muxrl.servers.algorithms.torch_trainer import tensors_of
from muxrl.servers.algorithms.update import Targets
from muxrl.servers.episodes.trajectories import Trajectory
from muxrl.servers.trainers.interface import PolicySpec, Rows


class OffPolicy(ReplayTrainer):
    """Makes ``updates_per_step`` updates for each env step of its server, once learning begins.

    Subclasses have the losses.
    """

    learns_when_absent = True
    saved = {
        **ReplayTrainer.saved,
        "moved_at": "_moved_at",
        "num_moves": "_num_moves",
        "refilled_at": "_refilled_at",
    }
    Settings: ClassVar[type[OffPolicySettings]]
    settings: OffPolicySettings
    replay: StepReplay
    targets: Targets

    def __init__(self, policy: PolicySpec, settings: Any) -> None:
        super().__init__(policy, settings)
        self.targets = self.make_targets()
        self._moved_at = 0
        """Env steps at the last update of the targets."""
        self._num_moves = 0
        self._refilled_at = 0
        """Env steps before the replay's first step; above 0 after a resumption without replay."""

    @abstractmethod
    def make_targets(self) -> Targets:
        """Returns the target networks, which are in `net`."""

    def make_replay(self) -> StepReplay:
        own, buffer = self.settings, self.settings.replay_buffer_config
        is_prioritized = buffer["type"] == PRIORITIZED
        by_priority = (buffer["alpha"], buffer["beta"]) if is_prioritized else None
        return StepReplay(
            buffer["capacity"],
            self.policy.seed,
            n_step=own.n_step,
            gamma=own.gamma,
            by_priority=by_priority,
        )

    def updates_for(self, stored: Sequence[Trajectory], num_new: int, num_env_steps: int) -> float:
        own = self.settings
        num_late = self.env_steps - self._refilled_at - own.num_steps_sampled_before_learning_starts
        if num_late < 0 or not len(self.replay):
            return 0.0
        # In a large batch, env steps before learning begins bring no updates, but for the last
        # `batch_env_steps` of them.
        return min(num_env_steps, num_late + own.batch_env_steps) * own.updates_per_step

    def discounts_of(self, batch: Mapping[str, Any]) -> Tensor:
        """Returns ``gamma**k (1 - terminated)``, ``[B]``, for rewards over k steps."""
        return self.settings.gamma ** batch[N_STEP] * (1.0 - batch[TERMINATEDS])

    def move_targets(self) -> None:
        """Moves the target networks, if it is time; called after each update."""
        own = self.settings
        if self.env_steps - self._moved_at >= own.target_network_update_freq:
            self.targets.follow(own.tau)
            self._moved_at = self.env_steps
            self._num_moves += 1

    def learn(self, trajectories: Sequence[Trajectory]) -> dict[str, float]:
        return {**super().learn(trajectories), **self.reports()}

    def reports(self) -> dict[str, float]:
        """Returns the metrics that are not of the last update."""
        found: dict[str, float] = {
            "num_target_updates": self._num_moves,
            "num_module_steps_trained_lifetime": self.num_updates * self.settings.batch_size,
        }
        for name, step in self.steps.items():
            found[f"{name}_learning_rate"] = step.lr
            found[f"gradients_{name}_global_norm"] = step.norms.get("", 0.0)
        return found

    def seen(self, rows: Rows) -> tuple[Tensor, Tensor | None]:
        """Returns the observations and masks of rows as tensors on the device."""
        return split({key: one.to(self.device) for key, one in tensors_of(rows.parts).items()})

    # --- state --------------------------------------------------------------------------

    def refill_replay(self, env_steps: int) -> None:
        self._refilled_at = env_steps


def split(observed: Any) -> tuple[Tensor, Tensor | None]:
    """Splits the observations of a replay or of rows into observations and masks, if any."""
    if isinstance(observed, Mapping):
        return observed[OBS], observed.get(ACTION_MASK)
    return observed, None


def at(values: Tensor, actions: Tensor) -> Tensor:
    """Returns the values ``[B]`` of actions ``[B]``, from those of all, ``[B, num_actions]``."""
    return values.gather(-1, actions.long().unsqueeze(-1)).squeeze(-1)
