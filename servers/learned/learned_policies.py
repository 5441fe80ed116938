"""Policies that RLlib trains: the algorithm, its feed, and its learning thread."""

from __future__ import annotations

import logging
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import tree
from ray.rllib.algorithms.algorithm import Algorithm
from ray.rllib.utils.metrics import ALL_MODULES, LEARNER_RESULTS

from muxrl.servers.agents.observing import Observing
from muxrl.servers.agents.seats import Seat
from muxrl.servers.algorithms.entry import AlgorithmEntry
from muxrl.servers.checkpoints.checkpoint import Checkpoint, acting_spec
from muxrl.servers.checkpoints.live import LiveCheckpoint
from muxrl.servers.checkpoints.resuming import Normalization, State, as_begun
from muxrl.servers.checkpoints.saved_policies import SavedPolicies, feed_of
from muxrl.servers.config import ServerPlan
from muxrl.servers.episodes.played import PlayedCheck
from muxrl.servers.episodes.reward_scale import RewardScale
from muxrl.servers.episodes.store import EpisodeStore
from muxrl.servers.learned import resume
from muxrl.servers.learned.algorithm_config import rllib_config
from muxrl.servers.learned.local_inference import LocalInference
from muxrl.servers.rllib.connector_callers import find_callers_without_source
from muxrl.servers.rllib.env_runner import ExternalEnvRunner
from muxrl.servers.rllib.inference import Inference
from muxrl.servers.rllib.learner_tables import get_tables
from muxrl.servers.rllib.object_store import keep_objects_here
from muxrl.servers.training.policies import ServerProblem
from muxrl.servers.training.thread import PolicyLag

logger = logging.getLogger(__name__)


class RLlibLearning:
    """An RLlib algorithm, for the learning thread; see `Learning`.

    Args:
        algo: the algorithm.
        runner: its local env runner.
    """

    def __init__(self, algo: Algorithm, runner: ExternalEnvRunner) -> None:
        self._algo = algo
        self._runner = runner
        self.acting = runner.inference

    @property
    def policy_lag(self) -> PolicyLag:
        return self._runner.policy_lag

    @property
    def learners(self) -> Mapping[str, Any]:
        return {"rllib": self._algo}

    def train(self) -> Mapping[str, Mapping[str, float]]:
        result = self._algo.train()
        return {
            module_id: values | self._epsilon(module_id)
            for module_id, values in result.get(LEARNER_RESULTS, {}).items()
            if module_id != ALL_MODULES and isinstance(values, dict)
        }

    def _epsilon(self, module_id: str) -> dict[str, float]:
        """Returns the probability of an action at random, of a module that has one."""
        epsilon = self.acting.epsilon_of(module_id)
        return {} if epsilon is None else {"epsilon": epsilon}


class LearnedPolicies(SavedPolicies):
    """See `muxrl.servers.training.policies.Policies`.

    Args:
        plan: the server.
        entry: its algorithm.
        on_failure: see `LearningThread`.

    Raises:
        ServerProblem: the algorithm cannot be built, or cannot go on from `plan.resume_from`.
    """

    def __init__(
        self,
        plan: ServerPlan,
        entry: AlgorithmEntry,
        *,
        on_failure: Callable[[str], None],
    ) -> None:
        if plan.resume_from:
            plan = as_begun(plan, entry.settings())
        self._entry = entry
        observing = Observing.of(plan)
        seats = entry.seating.make_seats(plan, observing)
        self.algo = build_algorithm(plan, entry, seats)
        runner = self.algo.env_runner
        assert isinstance(runner, ExternalEnvRunner)
        self.acting: Inference = runner.inference
        feed = feed_of(plan)
        runner.attach(
            feed,
            seats,
            needs_log_probabilities=entry.needs_log_probabilities,
            corrects_off_policy=entry.corrects_off_policy,
            fills_replay=entry.fills_replay_by_agent,
        )
        if is_lean(self.algo):
            self.algo.learner_group._learner.note_progress = feed.note_progress
        config = self.algo.config
        assert config is not None
        scales: dict[str, RewardScale] = {}
        if plan.normalize_rewards:
            scales = {seat.policy_id: RewardScale(config.gamma) for seat in seats.values()}
        normalization = Normalization(observing, scales)
        self._local = LocalInference(plan, entry, seats.values(), observing, self.acting)
        self.weights = self._local.weights
        store = EpisodeStore(
            plan,
            seats,
            feed,
            batch_env_steps=entry.batch_env_steps(config),
            needs_whole_episodes=config.batch_mode == "complete_episodes",
            max_sequence_steps=getattr(config, "max_sequence_steps", None),
            cuts_after_frames=getattr(self.algo, "updates_by_steps", False),
            lookback=1 if self.acting.is_stateful else 0,
            reward_scales=scales,
            observing=observing if observing.normalizes else None,
            # As old as the server's own actions can be: see `Feed`.
            played=PlayedCheck(
                plan.agents,
                self._local.problem,
                lambda: self._local.version,
                max_lag=feed.max_ahead + 1 if entry.needs_log_probabilities else None,
                states=self._local.states,
                epsilon=self._local.epsilon,
            ),
        )
        skipped = getattr(self.algo.learner_group._learner, "skipped", None)
        if skipped is not None:
            skipped.warnings = store.warnings
        super().__init__(
            plan,
            RLlibLearning(self.algo, runner),
            store,
            feed,
            normalization,
            on_failure=on_failure,
        )
        self._begin()

    def close(self) -> None:
        self.algo.stop()

    def live(self) -> LiveCheckpoint:
        """Returns the policies as they act now, for a pool on another server; from any thread."""

        def read() -> LiveCheckpoint:
            modules = {
                name: (
                    acting_spec(module),
                    tree.map_structure(np.array, module.get_state(inference_only=True)),
                )
                for name, module in self.acting.modules.items()
            }
            return LiveCheckpoint.of_plan(
                self._plan,
                modules,
                self._normalization.observing.get_state(),
                env_steps=self.acting.num_env_steps_sampled,
                weights_seq_no=self.acting.weights_seq_no,
            )

        return self.acting.read(read)

    def _initialize(self) -> None:
        resume.initialize(self.algo, self._plan, self._normalization)

    def _restore(self, checkpoint: Checkpoint) -> State:
        return resume.restore(self.algo, self._plan, checkpoint, self.store.warnings)

    def _write(self, path: Path) -> None:
        if what := resume.find_not_finite(self.algo):
            raise ServerProblem(f"{what} of server {self._plan.server_id!r} is not finite any more")
        replay, about_replay = self._get_replay()
        tables = get_tables(self.algo.learner_group._learner)
        about, state = {"replay": about_replay}, {"learner": tables}
        self._save(path, about, state, algo=self.algo, replay=replay)

    def _get_replay(self) -> tuple[dict[str, Any] | None, dict[str, Any] | None]:
        """Returns the replay, if it is to be saved, and a note of it."""
        replay = resume.replay_of(self.algo)
        if replay is None:
            return None, None
        limit, mib = self._plan.keep_replay_mib, replay.count_replay_bytes() / 2**20
        if limit is not None and mib > limit:
            left_out = f"{mib:.0f} MiB, more than checkpoint.replay_max_mib ({limit})"
            logger.warning("server %r saves no replay: %s", self._plan.server_id, left_out)
            return None, {"mib": round(mib, 1), "left_out": left_out}
        return replay.get_replay_state(), {"mib": round(mib, 1)}


def is_lean(algo: Algorithm) -> bool:
    """Whether its learner, by its attribute `is_lean`, makes its batches in one pass."""
    return getattr(algo.learner_group._learner, "is_lean", False)


def build_algorithm(plan: ServerPlan, entry: AlgorithmEntry, seats: dict[str, Seat]) -> Algorithm:
    """Builds the RLlib algorithm of a server, without any environment.

    Raises:
        ServerProblem: RLlib refuses the config; its reason is in the sentence.
    """
    try:
        config = rllib_config(plan, entry, seats)
        config.env_runners(env_runner_cls=ExternalEnvRunner, num_env_runners=0)
        config.learners(
            num_learners=0, num_gpus_per_learner=1 if plan.resources.num_gpus > 0 else 0
        )
        # Else a thread asks the system about its load for ever, for results that nobody reads, and
        # a server that stops waits 0.7 s for it.
        config.debugging(seed=plan.seed, log_sys_usage=False)
        keep_objects_here()
        find_callers_without_source()
        algo = config.build_algo()
        if hasattr(algo, "_pre_queue_episode_refs"):  # IMPALA and its kin
            algo._pre_queue_episode_refs = _whole_batches
    except Exception as error:  # RLlib and the user's module may raise anything
        raise ServerProblem(
            f"server {plan.server_id!r} cannot build {plan.algorithm}: "
            f"{type(error).__name__}: {error}"
        ) from error
    # Tune makes a results folder in the user's home for every Trainable; ours writes nothing there.
    shutil.rmtree(algo.logdir, ignore_errors=True)
    return algo


def _whole_batches(episode_refs: list[Any], package_size: int) -> list[list[Any]]:
    """Makes each `sample()` of a server's env runner one train batch of IMPALA, of whatever length.

    RLlib takes it for a fragment, and waits for more of them.
    """
    return [[ref] for ref in episode_refs]
