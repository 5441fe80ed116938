"""The table of open episodes: at most one in each slot, with a column for each agent.

Every request for actions goes through it: of one episode or several in dicts, or of the copies of a
simulation in arrays.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Mapping
from typing import Any

from muxrl.client.assignment import Assignment
from muxrl.client.episode import Episode
from muxrl.client.episode_columns import NONE
from muxrl.client.episode_steps import EpisodeSteps
from muxrl.client.errors import EpisodeMisuse
from muxrl.client.outbox import Outbox
from muxrl.client.transport import Transport
from muxrl.protocol.messages import AnyItem, EndEpisode, Mode


class Episodes(EpisodeSteps):
    """Open episodes on ``S`` servers, in ``N`` slots, with ``A`` columns.

    Args:
        transports: by server id.
        assignment: which server serves which agents.
        by_id: all open episodes of the client, including those of this table.
        prefix: the beginning of ids that are made here.
        num_slots: N; the table grows if an episode begins without a slot and none is free.
    """

    def __init__(
        self,
        transports: Mapping[str, Transport],
        assignment: Assignment,
        by_id: dict[str, Episode],
        prefix: str = "",
        num_slots: int = 0,
    ) -> None:
        super().__init__(transports, assignment)
        self._by_id = by_id
        self._prefix = prefix
        self._free: set[int] = set()
        self._grow(num_slots)

    def _grow(self, num_more: int) -> None:
        self._free.update(range(len(self.by_slot), len(self.by_slot) + num_more))
        super()._grow(num_more)

    def begin(
        self,
        outbox: Outbox,
        slot: int | None = None,
        *,
        mode: Mode = "train",
        should_explore: bool | Mapping[str, bool] | None = None,
        seed: int | None = None,
        episode_id: str = "",
    ) -> Episode:
        """Opens an episode, and adds a start for every server to the outbox.

        Args:
            outbox: where items are added.
            slot: a free slot; None: any free one.
            mode: "train", or "eval": measured, never trained on.
            should_explore: None: explore in mode "train" only; a dict: by server id.
            seed: the seed of the draws that servers make once an episode; see `StartEpisode`.
            episode_id: "" makes one.

        Raises:
            EpisodeMisuse: an episode with this id is open already.
        """
        episode_id = episode_id or self._prefix + uuid.uuid4().hex
        if episode_id in self._by_id:
            raise EpisodeMisuse(f"episode {episode_id} is open already")
        if slot is None:
            if not self._free:
                self._grow(len(self.by_slot) or 8)
            slot = min(self._free)
        self._free.discard(slot)
        episode = Episode(
            self, slot, episode_id, self._assignment.specs, mode, should_explore, seed
        )
        self._by_id[episode_id] = self.by_slot[slot] = episode
        self._ids[slot], self._split_of[slot] = episode_id, None
        self.is_open[slot] = True
        self._clear(slot, time.monotonic())
        outbox.add_all(
            episode, {server_id: episode.start_on(server_id) for server_id, _ in self._servers}
        )
        return episode

    def end(
        self,
        outbox: Outbox,
        slot: int,
        observations: Mapping[str, Any] = NONE,
        *,
        is_truncated: bool,
        state: Any = None,
        metrics: Mapping[str, Any] | None = None,
    ) -> Episode:
        """Closes an episode, frees its slot, and adds an end for every server to the outbox.

        Args:
            outbox: where items are added.
            slot: of the episode.
            observations: final observations of the agents that have not ended yet.
            is_truncated: whether these agents were truncated rather than terminated.
            state: the global state, for servers that read it.
            metrics: numbers about the episode that only the simulation knows.

        Raises:
            AssignmentError, EpisodeMisuse: as `step`.
        """
        episode = self.by_slot[slot]
        assert episode is not None
        if self._unanswered:
            self._check_answered([slot], "end")
        if is_truncated and (observations or slot not in self._pending):
            episode.is_truncated = True
        if slot in self._pending:
            self.log(slot, NONE, final_observations=observations)
            observations = NONE
        assignment = self._assignment
        last: dict[int, dict[str, Any]] = {}
        for agent_id, observation in observations.items():
            agent_id = assignment.name(agent_id)
            last.setdefault(assignment.place_of[agent_id], {})[agent_id] = observation
        of_episode = {
            name: {str(a): n for a, n in one.items()} if isinstance(one, Mapping) else one
            for name, one in (metrics or {}).items()
        }
        items: dict[str, AnyItem] = {}
        for place, (server_id, spec) in enumerate(self._servers):
            rewards, pending = self._pop_pending(slot, place)
            items[server_id] = EndEpisode(
                episode.episode_id,
                int(self.t[place, slot]),
                is_truncated,
                rewards,
                pending.terminations,
                pending.truncations,
                last.get(place, pending.final_observations),
                None if spec.state_size is None else state,
                of_episode,
                pending.late_rewards,
            )
        outbox.add_all(episode, items)
        outbox.ended.append(episode)
        episode.leave()
        return episode

    def free(self, slot: int) -> None:
        """Frees a slot for another episode; called by `Episode.leave`."""
        self.by_slot[slot], self.is_open[slot] = None, False
        self._fresh.pop(slot, None)
        self._pending.pop(slot, None)
        self._done.pop(slot, None)
        self._unanswered.discard(slot)
        self._free.add(slot)
