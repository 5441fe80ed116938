"""What acts on a server and does not learn: nothing is recorded, and no simulation waits."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from muxrl.servers.config import ServerPlan
from muxrl.servers.episodes.recorder import Recorder
from muxrl.servers.episodes.store import EpisodeStore
from muxrl.servers.feed import Chunk, Feed
from muxrl.servers.policies import SAVE_TIMEOUT_S, Acting, Record
from muxrl.servers.seats import Seat


class StepCounter(Recorder):
    """Counts an episode's env steps and keeps none of them, since no learner reads them."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._num_steps = 0

    @property
    def num_uncut_steps(self) -> int:
        return self._num_steps

    def begin(self, observations: dict[str, Any]) -> None:
        pass

    def add(self, **transition: Any) -> None:
        self._num_steps += 1

    def last_observation(self, seat_id: str) -> Any:
        return None

    def cut(self) -> Chunk | None:
        return None

    def finish(self, *, is_aborted: bool = False) -> Chunk | None:
        return None


class FixedPolicies:
    """See `muxrl.servers.policies.Policies`.

    Args:
        plan: the server.
        seats: who takes part, by seat id.
        acting: chooses the actions.
    """

    iteration = 0

    def __init__(self, plan: ServerPlan, seats: dict[str, Seat], acting: Acting) -> None:
        self.acting = acting
        self.feed = Feed(max_ahead=0)
        self.feed.discard()  # opens its gate for good
        self.store = EpisodeStore(
            plan,
            seats,
            self.feed,
            batch_env_steps=sys.maxsize,  # no batch is ever complete
            needs_whole_episodes=False,
            lookback=0,
            policy_for=lambda seat_id, *args, **kwargs: seats[seat_id].policy_id,
            recorder=StepCounter,
        )

    def start(self) -> None:
        """There is no thread to start."""

    def finish(self, timeout_s: float) -> bool:
        return True

    def close(self) -> None:
        """Nothing is held."""

    def drain_records(self) -> list[Record]:
        return []

    def save(self, path: Path, timeout_s: float = SAVE_TIMEOUT_S) -> Path | None:
        return None

    def save_soon(self, path: Path) -> None:
        """There is nothing to save."""
