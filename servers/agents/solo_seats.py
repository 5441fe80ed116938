"""Agents that are recorded under their own names, each alone."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from muxrl.protocol.rows import Lineup
from muxrl.protocol.spaces import ACTION_MASK_KEY, Space
from muxrl.servers.agents.action_forms import ActionForm, action_form
from muxrl.servers.agents.keys import ACTION_MASK, OBS
from muxrl.servers.agents.masks import masked_space, none_available
from muxrl.servers.agents.memory import Memory, Slots
from muxrl.servers.agents.observing import Observing, Reader
from muxrl.servers.agents.parts import OfKind, Seen, by_kind, places_of
from muxrl.servers.agents.seats import Seat
from muxrl.servers.agents.spaces import split_mask, without_mask
from muxrl.servers.config import AgentPlan


class SoloPart:
    """Agents alone, of one policy.

    Args:
        seats: of the same policy, with the same action space.
        lineup: they are in it. Of a kind that is recorded when it does not act some are, or none.
    """

    remembers_actions = False

    def __init__(self, seats: Sequence[Any], lineup: Lineup) -> None:
        self.seats: tuple[Seat, ...] = tuple(seats)
        self.policy_id: str = seats[0].policy_id
        self._form = seats[0].form
        self._is_masked = seats[0].is_masked
        names = [seat.seat_id for seat in seats]
        self._here = [name for name in names if name in lineup.agents]
        self._places = places_of(names, lineup)
        self._acts = by_kind(names, lineup.acted, lineup)
        self._acts_alike = [len(some.agents) for some, _ in self._acts] == [len(seats)]
        self._seen = [
            (some, where, seats[int(np.arange(len(seats))[where][0])].read)
            for some, where in by_kind(names, lineup.observed, lineup)
        ]
        self._are_alike = [len(some.agents) for some, _, _ in self._seen] == [len(seats)]
        """Whether they are all here, and of one kind."""
        self.writes_as_is: int | None = None
        if self._acts_alike and self._acts[0][0].is_whole and self._form.is_plain:
            self.writes_as_is = self._acts[0][0].kind

    def observe(self, seen: Seen) -> Any:
        found: Any = None
        for some, where, read in self._seen:
            one = self._masked(seen, some, read) if self._is_masked else seen.read(some, read)
            if self._are_alike:
                return one
            found = _put(found, one, where, len(self.seats))
        return found

    def _masked(self, seen: Seen, some: OfKind, read: Reader) -> Any:
        rows = some.of(seen.observations)
        mask = self._form.read_masks(rows[ACTION_MASK_KEY])
        is_any = mask.any(axis=-1)
        if not is_any.all():
            if not seen.is_final:
                raise none_available(some.agents[int(np.argmin(is_any.all(axis=0)))])
            mask = np.where(is_any[..., None], mask, np.float32(1.0))
        return {OBS: seen.stacked(some, read(without_mask(rows))), ACTION_MASK: mask}

    def rewards(self, rewards: np.ndarray) -> np.ndarray:
        return rewards[:, self._places]

    def write(self, actions: np.ndarray, into: list[Any]) -> None:
        for some, where in self._acts:
            own = actions if self._acts_alike else actions[:, where]
            some.write(self._form.write_rows(own), into)

    def remember(self, actions: np.ndarray, memory: Memory, where: Slots) -> None:
        """Its networks read no actions."""


def _put(into: Any, rows: Any, where: slice | np.ndarray, num: int) -> Any:
    """Puts the rows of some seats among those of all, which are made with the first, of zeros."""
    if isinstance(rows, dict):
        return {
            key: _put(None if into is None else into[key], part, where, num)
            for key, part in rows.items()
        }
    if into is None:
        into = np.zeros((len(rows), num, *rows.shape[2:]), rows.dtype)
    into[:, where] = rows
    return into


class SoloSeat:
    """An agent that is recorded under its own name.

    Args:
        agent_id: the agent.
        plan: its own.
        observing: how its observations are read; None: as they are.
        form: how its actions become those of its network; None: the usual one.
        follows_mask: whether an action mask is kept apart from the rest of the observation (see
            `masked_space`), or is flattened with it.
    """

    def __init__(
        self,
        agent_id: str,
        plan: AgentPlan,
        observing: Observing | None = None,
        *,
        form: ActionForm | None = None,
        follows_mask: bool = False,
    ) -> None:
        observing = observing or Observing({agent_id: plan})
        self.seat_id = agent_id
        self.frame_stack = observing.frame_stack
        self.policy_id = plan.policy_id
        self.members: tuple[str, ...] = (agent_id,)
        space, has_mask = split_mask(plan.observation_space)
        self.is_masked = follows_mask and has_mask
        if not self.is_masked:
            space = plan.observation_space
        self.observation_space: Space = observing.space(space)
        self.form = form or action_form(plan.action_space)
        self.action_space = self.form.space
        if self.is_masked:
            self.observation_space = masked_space(self.observation_space, self.action_space)
        self.reads_as = observing.reads_as and (
            observing.reads_as,
            self.is_masked,
            self.form.is_one_choice,
            self.form.is_scaled,
        )
        """Equal for seats of an agent that read and write alike; None: no other does."""
        self.read = observing.reader(agent_id, space)

    @property
    def part_class(self) -> type[SoloPart]:
        return SoloPart

    def read_logged(self, logged: Mapping[str, Any]) -> Any:
        value = logged.get(self.seat_id)
        return None if value is None else self.form.read(value)

    def read_log_prob(self, log_probs: Mapping[str, float]) -> float | None:
        log_prob = log_probs.get(self.seat_id)
        return None if log_prob is None else log_prob + self.form.log_scale
