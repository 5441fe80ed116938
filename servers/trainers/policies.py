"""Policies that trainers of people's own learn; see `muxrl.servers.trainers.interface`."""

from __future__ import annotations

import contextlib
import logging
from collections import defaultdict
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from muxrl.protocol.codec import encode
from muxrl.protocol.messages import PolicyWeights
from muxrl.servers.agents.observing import Observing
from muxrl.servers.checkpoints.checkpoint import Checkpoint
from muxrl.servers.checkpoints.live import LiveCheckpoint
from muxrl.servers.checkpoints.resuming import Normalization, State, as_begun, told_of
from muxrl.servers.checkpoints.saved_policies import SavedPolicies, feed_of
from muxrl.servers.config import ServerPlan
from muxrl.servers.episodes.feed import Feed
from muxrl.servers.episodes.reward_scale import RewardScale
from muxrl.servers.episodes.store import EpisodeStore
from muxrl.servers.episodes.trajectories import Trajectory, apart
from muxrl.servers.trainers.acting import Actors, TrainerFailed
from muxrl.servers.trainers.plain_state import find_not_finite
from muxrl.servers.training.policies import ServerProblem
from muxrl.servers.training.thread import PolicyLag

if TYPE_CHECKING:
    from muxrl.servers.trainers.entry import TrainerEntry

logger = logging.getLogger(__name__)


class TrainerLearning:
    """Trainers, for the learning thread; see `muxrl.servers.training.thread.Learning`.

    Args:
        actors: the trainers.
        feed: where batches come from.
    """

    def __init__(self, actors: Actors, feed: Feed) -> None:
        self.acting = actors
        self._feed = feed
        self.policy_lag = PolicyLag()

    @property
    def learners(self) -> Mapping[str, Any]:
        return self.acting.learners

    def train(self) -> Mapping[str, Mapping[str, float]]:
        actors = self.acting
        chunks = self._feed.take()
        self.policy_lag = PolicyLag.of(chunks, actors.weights_seq_no)
        played: dict[str, list[Trajectory]] = defaultdict(list)
        for chunk in chunks:
            for one in chunk.trajectories:
                played[one.policy_id].append(apart(one))
        with contextlib.nullcontext() if actors.has_copies else actors.lock:
            metrics = {policy_id: actors.learn(policy_id, own) for policy_id, own in played.items()}
            actors.publish()
            actors.num_env_steps_sampled += sum(chunk.num_env_steps for chunk in chunks)
            actors.weights_seq_no += 1
        self._feed.finish_learning()
        return metrics


class TrainerPolicies(SavedPolicies):
    """See `muxrl.servers.training.policies.Policies`.

    Args:
        plan: the server.
        entry: its algorithm.
        on_failure: see `LearningThread`.

    Raises:
        ServerProblem: a trainer cannot be made, or cannot continue from `plan.resume_from`.
    """

    def __init__(
        self,
        plan: ServerPlan,
        entry: TrainerEntry,
        *,
        on_failure: Callable[[str], None],
    ) -> None:
        if plan.resume_from:
            plan = as_begun(plan, entry.settings())
        self._entry = entry
        observing = Observing.of(plan)
        seats = entry.seating.make_seats(plan, observing)
        with told_of(plan, "make its trainers,", entry.name):
            self.acting: Actors = entry.make_actors(plan, seats)
            first = next(iter(self.acting.learners.values()))
            scales: dict[str, RewardScale] = {}
            if plan.normalize_rewards:
                gamma = first.gamma  # type: ignore[attr-defined]
                scales = {policy_id: RewardScale(gamma) for policy_id in self.acting.learners}
        feed = feed_of(plan)
        store = EpisodeStore(
            plan,
            seats,
            feed,
            batch_env_steps=first.batch_env_steps,
            needs_whole_episodes=getattr(first, "needs_whole_episodes", False),
            lookback=0,
            reward_scales=scales,
            observing=observing if observing.normalizes else None,
        )
        self.acting.skipped.warnings = store.warnings
        self.acting.largest_seen = store.far_values.largest
        super().__init__(
            plan,
            TrainerLearning(self.acting, feed),
            store,
            feed,
            Normalization(observing, scales),
            on_failure=on_failure,
        )
        self._begin()

    def close(self) -> None:
        """Nothing is held."""

    def weights(self) -> bytes:
        problem = f"only the server can act with a trainer of one's own ({self._entry.name})"
        return encode(PolicyWeights(self._plan.server_id, problem=problem))

    def live(self) -> LiveCheckpoint:
        """Returns the policies as they act now, for a pool on another server; from any thread.

        Raises:
            TrainerFailed: a trainer does not give its weights.
        """
        with self.acting.lock:
            return LiveCheckpoint.of_plan(
                self._plan,
                {policy_id: (None, own) for policy_id, own in self.acting.get_weights().items()},
                self._normalization.observing.get_state(),
                env_steps=self.acting.num_env_steps_sampled,
                weights_seq_no=self.acting.weights_seq_no,
                **self._about,
            )

    @property
    def _about(self) -> dict[str, Any]:
        """What a checkpoint's note says beside what that of every server that learns does."""
        return {
            "is_of_trainers": True,
            "trainer": self._entry.name,
            "state_sizes": {p: spec.state_size for p, spec in self.acting.specs.items()},
        }

    def _write(self, path: Path) -> None:
        try:
            self.acting.undo_if_spoilt()
            trainers, weights = self.acting.get_state(), self.acting.get_weights()
        except TrainerFailed as error:
            raise ServerProblem(f"server {self._plan.server_id!r}: {error}") from error
        if where := find_not_finite(trainers, "state"):
            raise ServerProblem(
                f"a tensor of server {self._plan.server_id!r} is not finite any more: {where}"
            )
        skipped = dict(self.acting.skipped.num)
        state = {"trainers": trainers, "weights": weights, "skipped": skipped}
        self._save(path, self._about, state)

    def _restore(self, checkpoint: Checkpoint) -> State:
        state = checkpoint.read_state()
        self.acting.set_state(state["trainers"])
        self.acting.weights_seq_no = checkpoint.about["weights_seq_no"]
        self.acting.num_env_steps_sampled = state["trainer"]["env_steps"]
        self.acting.skipped.num.update(state.get("skipped", {}))
        return state

    def _initialize(self) -> None:
        plan = self._plan
        with told_of(plan, "begin with the policies of", plan.initialize_from):
            checkpoint = Checkpoint.open(Path(plan.initialize_from))
            checkpoint.check_same_policies(plan)
            saved = checkpoint.read_state()["weights"]
            names = {p: plan.initialize_policies.get(p, p) for p in self.acting.learners}
            self.acting.load({p: saved[name] for p, name in names.items()}, 0)
            if plan.normalize_observations or plan.normalize_rewards:
                self._normalization.set_state(checkpoint.read_normalization(), names)
