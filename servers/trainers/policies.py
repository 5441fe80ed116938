"""The policies of a server whose trainers learn; see `muxrl.servers.trainers.interface`."""

from __future__ import annotations

import contextlib
import dataclasses
import logging
import time
from collections import defaultdict
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from msgspec import structs

from muxrl.protocol.messages import ServerWarning
from muxrl.servers.agents.observing import Observing
from muxrl.servers.checkpoints.checkpoint import Checkpoint, save_checkpoint
from muxrl.servers.checkpoints.live import LiveCheckpoint
from muxrl.servers.checkpoints.resuming import (
    Normalization,
    State,
    as_begun,
    get_random_state,
    raised_by,
    set_random_state,
)
from muxrl.servers.config import ServerPlan
from muxrl.servers.episodes.batches import BatchRule
from muxrl.servers.episodes.columns import pack_chunks, unpack_chunks
from muxrl.servers.episodes.counts import EpisodeCounts
from muxrl.servers.episodes.feed import Feed
from muxrl.servers.episodes.reward_scale import RewardScale
from muxrl.servers.episodes.store import EpisodeStore
from muxrl.servers.episodes.trajectories import Trajectory, separated
from muxrl.servers.trainers.acting import Actors
from muxrl.servers.trainers.failures import TrainerFailed
from muxrl.servers.trainers.local_inference import LocalInference
from muxrl.servers.trainers.plain_state import find_not_finite, from_plain, shapes_of, to_plain
from muxrl.servers.training.callbacks import CallbackFailed, Callbacks
from muxrl.servers.training.policies import SAVE_TIMEOUT_S, Record, ServerProblem
from muxrl.servers.training.thread import LearningThread, PolicyLag

if TYPE_CHECKING:
    from muxrl.servers.trainers.entry import TrainerEntry

logger = logging.getLogger(__name__)

_STEPS_EACH, _SECONDS_EACH = "min_sample_timesteps_per_iteration", "min_time_s_per_iteration"
"""Names of the settings for the least env steps and seconds of an iteration, which a trainer's
class may have."""


@dataclasses.dataclass
class TrainerLearning:
    """Makes trainers learn, for the learning thread; see `muxrl.servers.training.thread.Learning`.

    Attributes:
        acting: the trainers.
        feed: the source of batches.
        env_steps_each: least env steps of an iteration.
        seconds_each: least duration of an iteration.
        begun_at: env steps before the present iteration; None: between iterations.
        policy_lag: of the last batch.
    """

    acting: Actors
    feed: Feed
    env_steps_each: int = 0
    seconds_each: float = 0.0
    begun_at: int | None = None
    policy_lag: PolicyLag = dataclasses.field(default_factory=PolicyLag)

    def train(self) -> Mapping[str, Mapping[str, float]]:
        actors, start_s = self.acting, time.monotonic()
        if self.begun_at is None:  # else a resumed run continues an iteration
            self.begun_at = actors.num_env_steps_sampled
        metrics: dict[str, Mapping[str, float]] = {}
        while True:
            metrics |= self._learn_batch()
            num_env_steps = actors.num_env_steps_sampled - self.begun_at
            has_time = time.monotonic() - start_s >= self.seconds_each
            if has_time and num_env_steps >= self.env_steps_each:
                break
        self.begun_at = None
        return metrics

    def _learn_batch(self) -> Mapping[str, Mapping[str, float]]:
        actors = self.acting
        chunks = self.feed.take()
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
        return metrics


class TrainerPolicies:
    """See `muxrl.servers.training.policies.Policies`.

    Args:
        plan: the server.
        entry: its algorithm.
        on_failure: see `LearningThread`.

    Raises:
        ServerProblem: a trainer or the callbacks cannot be made, or the server cannot begin with,
            or continue from, the checkpoint that the plan names.
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
        self._plan = plan
        self._entry = entry
        self.num_refused_checkpoints = 0
        self.checkpoint_problem = ""
        """Why the last checkpoint was not written; "" if it was."""
        observing = Observing(plan)
        seats = entry.seating.make_seats(plan, observing)
        with raised_by(plan, "make its trainers,", entry.name):
            self.acting: Actors = entry.make_actors(plan, seats)
            first: Any = next(iter(self.acting.learners.values()))
            scales: dict[str, RewardScale] = {}
            if plan.normalize_rewards:
                gamma = first.gamma
                scales = {policy_id: RewardScale(gamma) for policy_id in self.acting.learners}
        self._normalization = Normalization(observing, scales)
        self.feed = Feed(
            0 if plan.while_learning == "wait" else max(1, plan.max_policy_lag),
            acts_while_learning=self.acting.has_copies,
        )
        local = LocalInference(plan, entry, seats.values(), observing, self.acting)
        self.weights = local.weights
        for learner in self.acting.learners.values():
            if hasattr(learner, "note_progress"):
                learner.note_progress = self.feed.note_progress
        self.store = EpisodeStore(
            plan,
            seats,
            self.feed,
            BatchRule(
                first.batch_env_steps,
                getattr(first, "needs_whole_episodes", False),
                getattr(first, "max_sequence_steps", None),
                cuts_after_frames=getattr(first, "updates_by_steps", False),
            ),
            reward_scales=scales,
            observing=observing if observing.normalizes else None,
            played=local.check(self.feed, reports_logged=not getattr(first, "is_trusted", False)),
        )
        self.acting.learners.skipped.warnings = self.store.warnings
        self.acting.learners.largest_seen = self.store.far_values.largest
        settings = getattr(first, "settings", None)
        self._learning = TrainerLearning(
            self.acting,
            self.feed,
            getattr(settings, _STEPS_EACH, 0),
            getattr(settings, _SECONDS_EACH, 0.0) or 0.0,
        )
        callbacks = None
        if plan.callbacks:
            try:
                callbacks = Callbacks(plan.callbacks)
            except CallbackFailed as error:
                raise ServerProblem(f"server {plan.server_id!r}: {error}") from error
            self.store.ended = callbacks.ended
            self.feed.on_taken = callbacks.shape
        self._thread = LearningThread(
            self._learning,
            plan,
            self.feed,
            self.store.counts,
            on_failure=on_failure,
            callbacks=callbacks,
        )
        if plan.initialize_from and not plan.resume_from:
            self._initialize()
        if plan.keeps_untrained:  # a checkpoint replaces them by those of its run's beginning
            self.acting.keep_untrained()
        if plan.resume_from:
            with raised_by(plan, "resume from", plan.resume_from):
                self._restore(Checkpoint.open(Path(plan.resume_from)))
            logger.info("server %r resumes from %s", plan.server_id, plan.resume_from)

    @property
    def iteration(self) -> int:
        return self._thread.iteration

    @property
    def policy_lag(self) -> PolicyLag:
        return self._learning.policy_lag

    def start(self) -> None:
        self._thread.start()

    def finish(self, timeout_s: float) -> bool:
        has_ended = self._thread.stop(timeout_s)
        self._normalization.observing.freeze()  # statistics stay as they are now
        return has_ended

    def drain_records(self) -> list[Record]:
        return self._thread.drain_records()

    def live(self) -> LiveCheckpoint:
        """Returns the policies as they act now, for a pool on another server, in any thread.

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

    # --- saving -------------------------------------------------------------------------

    def save(self, path: Path, timeout_s: float = SAVE_TIMEOUT_S) -> Path | None:
        try:
            self._thread.between_updates(lambda: self._write(path), timeout_s)
        except Exception as error:
            self.num_refused_checkpoints += 1
            self.checkpoint_problem = str(error)
            raise
        self.checkpoint_problem = ""
        return path

    @property
    def _about(self) -> dict[str, Any]:
        """Entries of a checkpoint's note that only servers with trainers have."""
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
        if where := find_not_finite(trainers):
            raise ServerProblem(
                f"a tensor of server {self._plan.server_id!r} is not finite any more: {where}"
            )
        replay, about_replay = self._get_replay()
        progress = self._thread.get_state()
        about = {
            "env_steps": progress["env_steps"],
            "iteration": progress["iteration"],
            "weights_seq_no": self.acting.weights_seq_no,
            **self._about,
            **about_replay,
        }
        state = {
            **self._get_serving_state(),
            "trainer": progress,
            "trainers": trainers,
            "weights": weights,
            "networks": networks,
            "skipped": dict(self.acting.learners.skipped.num),
            "begun_at": self._learning.begun_at,
        }
        defaults = self._entry.settings()
        save_checkpoint(self._plan, path, about, state, replay=replay, defaults=defaults)
        logger.info("checkpoint in %s", path)

    def _get_serving_state(self) -> State:
        """Returns counts, samples not learned from yet, and the states of random generators."""

        def serving() -> State:
            return {
                "counts": dataclasses.asdict(self.store.counts),
                "warnings": [structs.asdict(one) for one in self.store.warnings.found],
                "pending": self.store.pending,
                "batches": self.feed.unlearned,
                "acting": self.acting.get_random_state(),
                "normalization": self._normalization.get_state(),
                "untrained": self.acting.untrained,
                "random": get_random_state(),
            }

        state = self.feed.on_serving_thread(serving)
        state["pending"] = pack_chunks(state["pending"])
        state["batches"] = [pack_chunks(batch) for batch in state["batches"]]
        return state

    def _replays(self) -> dict[str, Any]:
        """Returns the trainers whose replay is saved apart, by policy id."""
        return {p: one for p, one in self.acting.learners.items() if hasattr(one, "replay_state")}

    def _get_replay(self) -> tuple[dict[str, Any] | None, dict[str, Any]]:
        """Returns the replays, None if they are not saved, and an entry for the note."""
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

    # --- resuming -----------------------------------------------------------------------

    def _restore(self, checkpoint: Checkpoint) -> None:
        state, acting = checkpoint.read_state(), self.acting
        for change in checkpoint.find_changed_settings(self._plan).values():
            logger.info(
                "server %r continues with another setting: %s", self._plan.server_id, change
            )
        _check_shapes(state["networks"], acting.get("networks"))
        acting.put("state", state["trainers"])
        self._learning.begun_at = state["begun_at"]
        self._restore_replay(checkpoint, state["trainer"]["env_steps"])
        acting.weights_seq_no = checkpoint.about["weights_seq_no"]
        acting.num_env_steps_sampled = state["trainer"]["env_steps"]
        acting.learners.skipped.num.update(state["skipped"])
        self._thread.set_state(state["trainer"])
        self.store.restore(EpisodeCounts(**state["counts"]), unpack_chunks(state["pending"]))
        self.store.warnings.restore(ServerWarning(**one) for one in state["warnings"])
        for batch in state["batches"]:
            self.feed.put(unpack_chunks(batch))
        acting.set_random_state(state["acting"])
        self._normalization.set_state(state["normalization"])
        if state["untrained"] is not None and self._plan.keeps_untrained:
            acting.untrained = state["untrained"]  # else they were made anew from the same seed
        set_random_state(state["random"])  # last, since building and loading draw

    def _restore_replay(self, checkpoint: Checkpoint, env_steps: int) -> None:
        """Loads the replays, or makes learning wait until they are filled again."""
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
            f"server {self._plan.server_id!r} continues with an empty replay, since the checkpoint "
            f"has none that can be read ({why}); learning goes on when enough is in it again",
        )

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
            ours = actors.get("weights")
            if plan.initialize_only == "actor":
                weights = {
                    p: _with_critic(own, ours[p], getattr(actors.learners[p], "critic_weights", ()))
                    for p, own in weights.items()
                }
            acts = {p: shapes_of(own) for p, own in ours.items()}
            fitting = [p for p in acts if shapes_of(weights[p]) == acts[p]]
            if is_whole:
                _check_shapes(networks, actors.get("networks"), fitting)
                actors.put("networks", networks)
            else:
                _check_shapes(weights if networks else {}, ours)
                actors.load(weights, 0)
            if plan.normalize_observations or plan.normalize_rewards:
                self._normalization.set_state(checkpoint.read_normalization(), names)


def _with_critic(
    weights: Mapping[str, Any], ours: Mapping[str, Any], begin: tuple[str, ...]
) -> dict[str, Any]:
    """Returns a policy's weights from a checkpoint, but its critic's from `ours`.

    Args:
        weights: of the checkpoint, by name.
        ours: as they are now, by name.
        begin: prefixes of the names of the critic's weights.
    """
    theirs = {name: one for name, one in weights.items() if not name.startswith(begin)}
    return theirs | {name: one for name, one in ours.items() if name.startswith(begin)}


def _check_shapes(
    saved: Mapping[str, Any], ours: Mapping[str, Any], fitting: Collection[str] = ()
) -> None:
    """Checks that the networks of a checkpoint have the right shapes.

    torch's own error would list every difference on a page.

    Args:
        saved: plain values of the checkpoint, by policy id.
        ours: plain values as they are now, by policy id.
        fitting: ids of the policies whose acting networks fit.

    Raises:
        ValueError: a network does not fit.
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
