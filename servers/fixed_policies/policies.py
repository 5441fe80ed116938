"""Serves policies that do not learn: nothing is recorded, and no simulation waits."""

from __future__ import annotations

import dataclasses
from pathlib import Path

from muxrl.protocol.codec import encode
from muxrl.protocol.messages import PolicyWeights
from muxrl.servers.acting import Acting
from muxrl.servers.agents.seats import Seat
from muxrl.servers.checkpoints.checkpoint import Checkpoint, save_checkpoint
from muxrl.servers.checkpoints.resuming import raised_by
from muxrl.servers.config import ServerPlan
from muxrl.servers.episodes.counts import EpisodeCounts
from muxrl.servers.episodes.feed import Feed
from muxrl.servers.episodes.store import EpisodeStore
from muxrl.servers.fixed_names import no_weights
from muxrl.servers.training.policies import SAVE_TIMEOUT_S, Record


class FixedPolicies:
    """Policies that do not learn; see `muxrl.servers.training.policies.Policies`.

    Their checkpoints hold counts and random states only.

    Args:
        plan: the server.
        seats: by seat id.
        acting: chooses the actions.

    Raises:
        ServerProblem: it cannot continue from `plan.resume_from`.
    """

    iteration = 0
    policy_lag = None
    takes_seed = True

    def __init__(self, plan: ServerPlan, seats: dict[str, Seat], acting: Acting) -> None:
        self._plan = plan
        self.acting = acting
        self.feed = Feed(max_ahead=0)
        self.feed.discard()  # opens the gate for good
        self.store = EpisodeStore(plan, seats, self.feed)
        if plan.resume_from:
            with raised_by(plan, "resume from", plan.resume_from):
                checkpoint = Checkpoint.open(Path(plan.resume_from))
                checkpoint.check_resumable(plan)
                state = checkpoint.read_state()
                self.store.restore(EpisodeCounts(**state["counts"]))
                acting.set_random_state(state["acting"])

    def start(self) -> None:
        """Does nothing: there is no thread to start."""

    def finish(self, timeout_s: float) -> bool:
        return True

    def weights(self) -> bytes:
        problem = no_weights(self._plan.algorithm)
        return encode(PolicyWeights(self._plan.server_id, problem=problem))

    def drain_records(self) -> list[Record]:
        return []

    def save(self, path: Path, timeout_s: float = SAVE_TIMEOUT_S) -> Path | None:
        state = self.feed.on_serving_thread(
            lambda: {
                "counts": dataclasses.asdict(self.store.counts),
                "acting": self.acting.get_random_state(),
            }
        )
        counts = {"env_steps": state["counts"]["num_env_steps"], "iteration": self.iteration}
        save_checkpoint(self._plan, path, counts, state)
        return path
