"""The loop: it stores what was played, learns from it, and hands the weights back."""

from __future__ import annotations

import time
from abc import abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import torch
from ray.rllib.algorithms.algorithm import Algorithm, TrainIterCtx
from ray.rllib.algorithms.algorithm_config import AlgorithmConfig
from ray.rllib.env.multi_agent_episode import MultiAgentEpisode
from ray.rllib.execution.rollout_ops import synchronous_parallel_sample
from ray.rllib.utils.metrics import (
    ENV_RUNNER_RESULTS,
    LEARNER_RESULTS,
    NUM_ENV_STEPS_SAMPLED_LIFETIME,
)

from muxrl.protocol.rows import each_array
from muxrl.servers.algorithms.replay.learner import ReplayLearner
from muxrl.servers.algorithms.replay.replay import ROWS, Replay
from muxrl.servers.checkpoints.formats import OtherFormat
from muxrl.servers.episodes.trajectories import Trajectory
from muxrl.servers.rllib.env_runner import ExternalEnvRunner
from muxrl.servers.rllib.episodes import trajectory_of

_UPDATES_DUE_STATE = "updates_due"
_ITERATION_STATE = "iteration"


class ReplayAlgorithm(Algorithm):
    """Trains each policy on entries of a replay of its own.

    RLlib's checkpoint holds networks, targets, optimisers and counters (also the one that
    exploration follows), but not the replay. A server saves that, too.
    """

    updates_by_steps = True
    """Whether a batch of more env steps than asked for brings as many more updates."""

    def setup(self, config: AlgorithmConfig) -> None:
        super().setup(config)
        learner: Any = self.learner_group._learner  # there are no remote ones
        if not isinstance(learner, ReplayLearner):
            raise TypeError(
                f"{type(self).__name__} learns by a ReplayLearner "
                f"(muxrl.servers.algorithms.replay.learner), and {type(learner).__name__} is none; "
                "put it before RLlib's learner among the bases, or derive the config from RLlib's"
            )
        self.learner: ReplayLearner = learner
        self._replays: dict[str, Replay] = {}
        self._updates_due: dict[str, float] = {}
        self._num_trained = 0
        """In this iteration, as what follows."""
        self._began_at: int | None = None
        """Env steps before it; None: none has begun."""

    def _create_local_replay_buffer_if_necessary(self, config: AlgorithmConfig) -> None:
        """RLlib's is not needed."""

    @abstractmethod
    def make_replay(self) -> Replay:
        """Returns an empty replay for one policy."""

    def note_stored(
        self, policy_id: str, stored: Sequence[Trajectory], num_before: int, num_new: int
    ) -> None:
        """Is told of new entries, which may bring updates; see `bring_updates`.

        Args:
            policy_id: whose.
            stored: what they were made of.
            num_before: entries that the replay held before.
            num_new: those that came.
        """

    def note_batch(self, num_env_steps: int) -> None:
        """Is told that all of a batch is stored, which may bring updates, too."""

    @property
    @abstractmethod
    def batch_size(self) -> int:
        """Entries of each policy in an update."""

    # --- learning -----------------------------------------------------------------------

    def training_step(self) -> None:
        """Takes what was played once, then makes the updates that are due for it."""
        before = self.num_env_steps
        played: dict[str, list[Trajectory]] = {}
        for trajectory in self._sample():
            if self._is_trained(trajectory.policy_id):
                played.setdefault(trajectory.policy_id, []).append(trajectory)
        for policy_id, own in played.items():
            replay = self.replay(policy_id)
            self.note_stored(policy_id, own, len(replay), replay.add_all(own))
        self.note_batch(self.num_env_steps - before)
        if updated := self.make_updates():
            self._hand_over(updated)

    def _sample(self) -> Iterable[Trajectory]:
        if isinstance(self.env_runner, ExternalEnvRunner):
            return [one for chunk in self.env_runner.take() for one in chunk.trajectories]
        episodes, results = synchronous_parallel_sample(
            worker_set=self.env_runner_group,
            concat=True,
            sample_timeout_s=self.config.sample_timeout_s,
            _uses_new_env_runners=True,
            _return_metrics=True,
        )
        self.metrics.aggregate(results, key=ENV_RUNNER_RESULTS)
        singles = [
            single
            for episode in episodes
            for single in (
                episode.agent_episodes.values()
                if isinstance(episode, MultiAgentEpisode)
                else [episode]
            )
        ]
        return [trajectory_of(single.to_numpy()) for single in singles if len(single)]

    @property
    def num_env_steps(self) -> int:
        """Recorded in all."""
        if isinstance(self.env_runner, ExternalEnvRunner):
            return int(self.env_runner.num_env_steps_sampled_lifetime)
        return self._num_env_steps_logged()

    def _num_env_steps_logged(self) -> int:
        return int(
            self.metrics.peek((ENV_RUNNER_RESULTS, NUM_ENV_STEPS_SAMPLED_LIFETIME), default=0)
        )

    def replay(self, policy_id: str) -> Replay:
        if policy_id not in self._replays:
            self._replays[policy_id] = self.make_replay()
        return self._replays[policy_id]

    def _is_trained(self, policy_id: str) -> bool:
        to_train = self.config.policies_to_train
        if to_train is None or callable(to_train):
            return to_train is None or bool(to_train(policy_id, None))
        return policy_id in to_train

    def bring_updates(self, policy_id: str, num: float) -> None:
        """Notes that so many updates are due, perhaps a fraction of one."""
        self._updates_due[policy_id] = self._updates_due.get(policy_id, 0.0) + num

    def make_updates(self) -> set[str]:
        """Makes all updates that are due, and returns the ids of the policies that had one.

        One update serves all policies that are due.
        """
        updated: set[str] = set()
        while due := self._due():
            drawn = {policy_id: self._draw(policy_id) for policy_id in due}
            for policy_id in due:
                self._updates_due[policy_id] -= 1.0
            device = self.learner._device
            self.learner.learn(
                {policy_id: as_tensors(batch, device) for policy_id, batch in drawn.items()},
                self.num_env_steps,
            )
            for policy_id, batch in drawn.items():
                if ROWS in batch:
                    measured = self.learner.priorities[policy_id]
                    self._replays[policy_id].update_priorities(batch[ROWS], measured)
            self._num_trained += self.batch_size
            updated.update(due)
        return updated

    def _due(self) -> list[str]:
        # A little below 1, because ten times 0.1 is not quite 1.
        return [p for p, updates in self._updates_due.items() if updates >= 1.0 - 1e-9]

    def _draw(self, policy_id: str) -> dict[str, Any]:
        return self._replays[policy_id].sample(self.batch_size)

    def _hand_over(self, updated: set[str]) -> None:
        """Has the env runners act with the new weights of these policies."""
        if isinstance(self.env_runner, ExternalEnvRunner):
            learned = {p: self.learner.module[p].unwrapped() for p in sorted(updated)}
            self.env_runner.follow(learned, self.learner._weights_seq_no)
            return
        self.env_runner_group.sync_weights(
            from_worker_or_learner_group=self.learner_group,
            policies=sorted(updated),
            inference_only=True,
        )

    # --- iterations ---------------------------------------------------------------------

    def _run_one_training_iteration(self) -> tuple[dict[str, Any], TrainIterCtx]:
        """RLlib's, which logs times, asks remote workers and counts around each step."""
        config, start_s = self.config, time.monotonic()
        if self._began_at is None:  # else it goes on after a resumption
            self._began_at = self.num_env_steps
        with TrainIterCtx(algo=self) as context:
            while True:
                self.training_step()
                if (
                    time.monotonic() - start_s >= (config.min_time_s_per_iteration or 0)
                    and self.num_env_steps - self._began_at
                    >= (config.min_sample_timesteps_per_iteration or 0)
                    and self._num_trained >= (config.min_train_timesteps_per_iteration or 0)
                ):
                    break
        self._began_at, self._num_trained = None, 0
        self.log_progress()
        return self.metrics.compile(), context

    def log_progress(self) -> None:
        """Logs what has come since the last call."""
        if isinstance(self.env_runner, ExternalEnvRunner):
            self.metrics.aggregate([self.env_runner.get_metrics()], key=ENV_RUNNER_RESULTS)
        self.metrics.aggregate([self.learner.metrics.reduce()], key=LEARNER_RESULTS)

    # --- state --------------------------------------------------------------------------

    def get_state(self, *args: Any, **kwargs: Any) -> dict[str, Any]:
        self.log_progress()
        state = super().get_state(*args, **kwargs)
        state[_UPDATES_DUE_STATE] = dict(self._updates_due)
        state[_ITERATION_STATE] = self._began_at, self._num_trained
        return state

    def set_state(self, state: dict[str, Any]) -> None:
        super().set_state(state)
        self._updates_due.update(state.get(_UPDATES_DUE_STATE, {}))
        self._began_at, self._num_trained = state.get(_ITERATION_STATE, (None, 0))
        # RLlib sends this count to the env runners before it has restored it itself, that is as
        # 0, and exploration would start again.
        self.env_runner_group.sync_env_runner_states(
            config=self.config,
            env_steps_sampled=self._num_env_steps_logged(),
            env_to_module=self.env_to_module_connector,
            module_to_env=self.module_to_env_connector,
        )

    # See `muxrl.servers.learned.resume.SavesReplay`.

    def count_replay_bytes(self) -> int:
        return sum(replay.num_bytes for replay in self._replays.values())

    def get_replay_state(self) -> dict[str, Any]:
        return {policy_id: replay.get_state() for policy_id, replay in self._replays.items()}

    def set_replay_state(self, state: Mapping[str, Any]) -> None:
        for policy_id, one in state.items():
            if not isinstance(one, Mapping) or "rng" not in one:
                raise OtherFormat("it was written by an earlier version")
            self.replay(policy_id).set_state(one)

    def refill_replay(self, env_steps: int) -> None:
        """An empty replay is filled before anything is learned from it, at any time."""


def as_tensors(batch: Mapping[str, Any], device: torch.device) -> dict[str, Any]:
    """Returns a batch in tensors, which share its memory on the CPU."""
    tensors: dict[str, Any] = each_array(lambda one: torch.from_numpy(one).to(device), batch)
    return tensors
