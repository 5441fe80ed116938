"""Policies that trainers of people's own learn; see `muxrl.servers.trainers.interface`."""

from __future__ import annotations

import contextlib
import logging
import time
from collections import defaultdict
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from muxrl.servers.agents.observing import Observing
from muxrl.servers.checkpoints.checkpoint import Checkpoint
from muxrl.servers.checkpoints.live import LiveCheckpoint
from muxrl.servers.checkpoints.resuming import Normalization, State, as_begun, raised_by
from muxrl.servers.checkpoints.saved_policies import SavedPolicies, feed_of
from muxrl.servers.config import ServerPlan
from muxrl.servers.episodes.feed import Feed
from muxrl.servers.episodes.reward_scale import RewardScale
from muxrl.servers.episodes.store import EpisodeStore
from muxrl.servers.episodes.trajectories import Trajectory, separated
from muxrl.servers.trainers.acting import Actors
from muxrl.servers.trainers.failures import TrainerFailed
from muxrl.servers.trainers.local_inference import LocalInference
from muxrl.servers.trainers.plain_state import find_not_finite, from_plain, shapes_of, to_plain
from muxrl.servers.training.policies import ServerProblem
from muxrl.servers.training.thread import PolicyLag

if TYPE_CHECKING:
    from muxrl.servers.trainers.entry import TrainerEntry

logger = logging.getLogger(__name__)

_STEPS_EACH, _SECONDS_EACH = "min_sample_timesteps_per_iteration", "min_time_s_per_iteration"
"""Settings, where a trainer's class has them."""


class TrainerLearning:
    """Trainers, for the learning thread; see `muxrl.servers.training.thread.Learning`.

    Args:
        actors: the trainers.
        feed: where batches come from.
        env_steps_each: that an iteration has at least.
        seconds_each: that an iteration takes at least.
    """

    def __init__(
        self, actors: Actors, feed: Feed, env_steps_each: int = 0, seconds_each: float = 0.0
    ) -> None:
        self.acting = actors
        self._feed = feed
        self._env_steps_each, self._seconds_each = env_steps_each, seconds_each
        self.begun_at: int | None = None
        """Env steps before the iteration that is under way; None: none is."""
        self.policy_lag = PolicyLag()

    @property
    def learners(self) -> Mapping[str, Any]:
        return self.acting.learners

    def train(self) -> Mapping[str, Mapping[str, float]]:
        actors, start_s = self.acting, time.monotonic()
        if self.begun_at is None:  # else it continues after a resumption
            self.begun_at = actors.num_env_steps_sampled
        metrics: dict[str, Mapping[str, float]] = {}
        while True:
            metrics |= self._learn_batch()
            num_env_steps = actors.num_env_steps_sampled - self.begun_at
            has_time = time.monotonic() - start_s >= self._seconds_each
            if has_time and num_env_steps >= self._env_steps_each:
                break
        self.begun_at = None
        return metrics

    def _learn_batch(self) -> Mapping[str, Mapping[str, float]]:
        actors = self.acting
        chunks = self._feed.take()
        self.policy_lag = PolicyLag.of(chunks, actors.weights_seq_no)
        played: dict[str, list[Trajectory]] = defaultdict(list)
        for chunk in chunks:
            for one in chunk.trajectories:
                played[one.policy_id].append(separated(one))
        with contextlib.nullcontext() if actors.has_copies else actors.lock:
            actors.num_env_steps_sampled += sum(chunk.num_env_steps for chunk in chunks)
            num_before = actors.num_updates
            metrics = actors.learners.learn_all(played, actors.num_env_steps_sampled)
            if num_before is None or actors.num_updates != num_before:
                actors.publish()
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
        with raised_by(plan, "make its trainers,", entry.name):
            self.acting: Actors = entry.make_actors(plan, seats)
            first: Any = next(iter(self.acting.learners.values()))
            scales: dict[str, RewardScale] = {}
            if plan.normalize_rewards:
                gamma = first.gamma
                scales = {policy_id: RewardScale(gamma) for policy_id in self.acting.learners}
        feed = feed_of(plan)
        local = LocalInference(plan, entry, seats.values(), observing, self.acting)
        self.weights = local.weights
        for learner in self.acting.learners.values():
            if hasattr(learner, "note_progress"):
                learner.note_progress = feed.note_progress
        store = EpisodeStore(
            plan,
            seats,
            feed,
            batch_env_steps=first.batch_env_steps,
            needs_whole_episodes=getattr(first, "needs_whole_episodes", False),
            max_sequence_steps=getattr(first, "max_sequence_steps", None),
            cuts_after_frames=getattr(first, "updates_by_steps", False),
            reward_scales=scales,
            observing=observing if observing.normalizes else None,
            played=local.check(feed, reports_logged=not getattr(first, "is_trusted", False)),
        )
        self.acting.learners.skipped.warnings = store.warnings
        self.acting.learners.largest_seen = store.far_values.largest
        super().__init__(
            plan,
            TrainerLearning(
                self.acting,
                feed,
                getattr(getattr(first, "settings", None), _STEPS_EACH, 0),
                getattr(getattr(first, "settings", None), _SECONDS_EACH, 0.0) or 0.0,
            ),
            store,
            feed,
            Normalization(observing, scales),
            on_failure=on_failure,
        )
        self._begin()

    def close(self) -> None:
        """Nothing is held."""

    def live(self) -> LiveCheckpoint:
        """Returns the policies as they act now, for a pool on another server; from any thread.

        Raises:
            TrainerFailed: a trainer does not give its weights.
        """
        with self.acting.lock:
            return LiveCheckpoint.of_plan(
                self._plan,
                self.acting.get("weights"),
                self._normalization.observing.get_state(),
                env_steps=self.acting.num_env_steps_sampled,
                weights_seq_no=self.acting.weights_seq_no,
                **self._about,
            )

    @property
    def _about(self) -> dict[str, Any]:
        """What a checkpoint's note says besides what that of every server that learns does."""
        return {
            "trainer": self._entry.name,
            "state_sizes": {p: spec.state_size for p, spec in self.acting.specs.items()},
        }

    def _write(self, path: Path) -> None:
        try:
            self.acting.learners.undo_if_corrupt()
            trainers, weights = self.acting.get("state"), self.acting.get("weights")
            networks = self.acting.get("networks")
        except TrainerFailed as error:
            raise ServerProblem(f"server {self._plan.server_id!r}: {error}") from error
        if where := find_not_finite(trainers, "state"):
            raise ServerProblem(
                f"a tensor of server {self._plan.server_id!r} is not finite any more: {where}"
            )
        skipped = dict(self.acting.learners.skipped.num)
        state = {
            "trainers": trainers,
            "weights": weights,
            "networks": networks,
            "skipped": skipped,
            "begun_at": self._learning.begun_at,  # type: ignore[attr-defined]
        }
        replay, about_replay = self._get_replay()
        self._save(path, self._about | about_replay, state, replay=replay)

    def _replays(self) -> dict[str, Any]:
        """Returns the trainers whose replay is saved apart, by policy."""
        return {p: one for p, one in self.acting.learners.items() if hasattr(one, "replay_state")}

    def _get_replay(self) -> tuple[dict[str, Any] | None, dict[str, Any]]:
        """Returns the replays, if they are to be saved, and a note of them."""
        replays = self._replays()
        if not replays:
            return None, {}
        limit = self._plan.keep_replay_mib
        mib = sum(one.replay_bytes() for one in replays.values()) / 2**20
        if limit is not None and mib > limit:
            left_out = f"{mib:.0f} MiB, more than checkpoint.replay_max_mib ({limit})"
            logger.warning("server %r saves no replay: %s", self._plan.server_id, left_out)
            return None, {"replay": {"mib": round(mib, 1), "left_out": left_out}}
        states = {policy_id: to_plain(one.replay_state()) for policy_id, one in replays.items()}
        return states, {"replay": {"mib": round(mib, 1)}}

    def _restore_replay(self, checkpoint: Checkpoint, env_steps: int) -> None:
        """Continues the replays, or has learning wait until they are filled again."""
        replays = self._replays()
        if not replays:
            return
        states = checkpoint.read_replay()
        if states is not None:
            for policy_id, one in replays.items():
                one.load_replay(from_plain(states[policy_id]))
            return
        for one in replays.values():
            one.refill_replay(env_steps)
        why = checkpoint.about.get("replay", {}).get("left_out", "it was not written")
        self.store.warnings.add(
            "resumed without replay",
            f"server {self._plan.server_id!r} goes on with an empty replay, since the checkpoint "
            f"has none that can be read ({why}); learning goes on when enough is in it again",
        )

    def _restore(self, checkpoint: Checkpoint) -> State:
        state = checkpoint.read_state()
        for change in checkpoint.find_changed_settings(self._plan).values():
            logger.info("server %r goes on with another setting: %s", self._plan.server_id, change)
        _check_shapes(state["networks"], self.acting.get("networks"))
        self.acting.put("state", state["trainers"])
        self._learning.begun_at = state["begun_at"]  # type: ignore[attr-defined]
        self._restore_replay(checkpoint, state["trainer"]["env_steps"])
        self.acting.weights_seq_no = checkpoint.about["weights_seq_no"]
        self.acting.num_env_steps_sampled = state["trainer"]["env_steps"]
        self.acting.learners.skipped.num.update(state["skipped"])
        return state

    def _initialize(self) -> None:
        plan, actors = self._plan, self.acting
        with raised_by(plan, "begin with the policies of", plan.initialize_from):
            checkpoint = Checkpoint.open(Path(plan.initialize_from))
            checkpoint.check_same_policies(plan)
            saved = checkpoint.read_state()
            names = {p: plan.initialize_policies.get(p, p) for p in actors.learners}
            weights, networks = (
                {p: saved[kind][name] for p, name in names.items() if name in saved[kind]}
                for kind in ("weights", "networks")
            )
            is_whole = bool(networks) and plan.initialize_only == "all"
            acts = {p: shapes_of(own) for p, own in actors.get("weights").items()}
            fitting = [p for p in acts if shapes_of(weights[p]) == acts[p]]
            if is_whole:
                _check_shapes(networks, actors.get("networks"), fitting)
                actors.put("networks", networks)
            else:
                _check_shapes(weights if networks else {}, actors.get("weights"))
                actors.load(weights, 0)
            if plan.normalize_observations or plan.normalize_rewards:
                self._normalization.set_state(checkpoint.read_normalization(), names)


def _check_shapes(
    saved: Mapping[str, Any], ours: Mapping[str, Any], fitting: Collection[str] = ()
) -> None:
    """Checks that networks of a checkpoint fit, by policy.

    Args:
        saved: plain values by policy.
        ours: likewise.
        fitting: policies of which what acts fits.

    Raises:
        ValueError: one does not; torch would say so of all that differs, in a page.
    """
    for policy_id, own in saved.items():
        there, here = shapes_of(own), shapes_of(ours[policy_id])
        hint = "; its actor fits, so set initialize_only: actor" if policy_id in fitting else ""
        for key in {**there, **here}:
            if there.get(key) != here.get(key):
                raise ValueError(
                    f"the network of policy {policy_id!r} is another: {key!r} has the shape "
                    f"{there.get(key, 'none')} there and {here.get(key, 'none')} here{hint}"
                )
