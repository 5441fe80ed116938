"""Reads steps in rows: is all of a message plain, so that its episodes can take it as arrays?"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Any

import numpy as np

from muxrl.protocol.errors import MalformedMessage
from muxrl.protocol.messages import Step, StepRows
from muxrl.protocol.rows import Lineup, are_rows, leaves, pick, singles
from muxrl.protocol.values import within
from muxrl.servers.agents.benches import Seen, make_benches
from muxrl.servers.agents.frames import RowFrames
from muxrl.servers.agents.seats import Seat
from muxrl.servers.config import ServerPlan
from muxrl.servers.episodes.lockstep import Lockstep
from muxrl.servers.episodes.reward_scale import RewardScale
from muxrl.servers.episodes.rows import Benches, EpisodeOfRows, RowStep, StepOfMembers
from muxrl.servers.episodes.step_check import MAX_RETURN
from muxrl.servers.episodes.trajectories import stacked

_INT64 = np.dtype(np.int64)
_LAST_T = np.iinfo(_INT64).max
_MAX_LINEUPS = 256
"""That are remembered; agents that come and go make many."""


class RowReader:
    """Reads the `StepRows` of a server's clients.

    Args:
        plan: the server.
        seats: by seat id.
        reward_scales: see `Benches`.
    """

    def __init__(
        self,
        plan: ServerPlan,
        seats: Mapping[str, Seat],
        reward_scales: Mapping[str, RewardScale] = MappingProxyType({}),
    ) -> None:
        self._plan = plan
        self._reward_scales = reward_scales
        self._seats = seats
        self._all = tuple(plan.agents)
        self._state_size = plan.state_size
        self._max_reward = _limit(plan.limits.max_abs_reward)
        self._max_observation = _limit(plan.limits.max_abs_observation)
        self._known: OrderedDict[tuple[str, ...], tuple[Lineup, Benches | None]] = OrderedDict()

    @property
    def can_read_all(self) -> bool:
        """Whether it reads the rows of all agents together."""
        return self._find(self._all)[1] is not None

    def read(
        self, item: StepRows, episodes: Sequence[EpisodeOfRows | None]
    ) -> RowStep | StepOfMembers | None:
        """Returns the step that the rows are; None: it has to be read one by one.

        Nothing of it is recorded yet.

        Args:
            item: what came; its arrays hang together, see `check`.
            episodes: those that it names, None for one that is not open.
        """
        first = episodes[0]
        if first is None:
            return None
        agents = tuple(item.agents) or self._all
        ts = item.t.tolist()
        played: dict[RowReader, tuple[Benches, list[int], list[EpisodeOfRows]]] = {}
        for row, (episode, t) in enumerate(zip(episodes, ts, strict=True)):
            if (
                episode is None
                or episode.is_training is not first.is_training
                or episode.should_explore is not first.should_explore
            ):
                return None
            part = played.get(episode.row_reader)
            if part is None:
                found = episode.row_reader._find(agents)[1]
                if found is None:
                    return None
                part = played[episode.row_reader] = found, [], []
            if not episode.is_plain_at(t, part[0]):
                return None
            part[1].append(row)
            part[2].append(episode)
        if len(set(item.episode_ids)) < len(episodes) or not self._is_sound(item, agents):
            return None
        seen = item.observations, item.rewards, item.state
        if len(played) == 1:
            ((benches, _, own),) = played.values()
            return _row_step(benches, own, ts, *seen)
        parts: list[RowStep] = []
        places = [np.array(rows) for _, rows, _ in played.values()]
        order = np.concatenate(places)
        seen = pick(list(seen), order)
        ts = [ts[row] for row in order.tolist()]
        last = 0
        for benches, rows, own in played.values():
            where = slice(last, last := last + len(rows))
            step = _row_step(benches, own, ts[where], *pick(seen, where))
            if step is None:
                return None
            parts.append(step)
        return StepOfMembers(parts, order)

    def read_next(
        self, item: StepRows, lockstep: Lockstep, episodes: Mapping[str, EpisodeOfRows]
    ) -> tuple[RowStep, list[int]] | None:
        """Does what `read` does, where most episodes are in lockstep.

        Args:
            item: as for `read`.
            lockstep: of the episode in one of its rows.
            episodes: all that are open, by id.

        Returns:
            The step, and the rows of episodes that join.
        """
        changed = lockstep.find_changed(item)
        if changed is None:
            return None
        last = lockstep.last
        agents = tuple(item.agents) or self._all
        reader = last.episodes[0].row_reader
        if reader._find(agents)[1] is not last.benches:
            return None
        of_rows = list(last.episodes) if changed else last.episodes
        for row in changed:
            episode = episodes.get(item.episode_ids[row])
            if (
                episode is None
                or episode.row_reader is not reader
                or episode.is_training is not last.is_training
                or episode.should_explore is not last.should_explore
                or not episode.is_plain_at(int(item.t[row]), last.benches)
            ):
                return None
            of_rows[row] = episode
        if not self._is_sound(item, agents):
            return None
        before = _after(last, list(range(len(of_rows))), changed, of_rows)
        seen = item.observations, item.rewards, item.state
        step = _row_step(last.benches, of_rows, item.t.tolist(), *seen, before=before)
        return None if step is None else (step, changed)

    def _is_sound(self, item: StepRows, agents: tuple[str, ...]) -> bool:
        """Whether all of an item is of its spaces, and within limits."""
        lineup, _ = self._find(agents)
        lead = len(item.t)
        for kind, rows in zip(lineup.observed, item.observations, strict=True):
            if not are_rows(kind.space, rows, (lead, len(kind.agents)), self._max_observation):
                return False
        if item.rewards is not None:
            if not _are_floats(item.rewards, (lead, len(agents)), self._max_reward):
                return False
            is_first = item.t == 0
            if is_first.any() and item.rewards[is_first].any():  # from before the first action
                return False
        return self._state_size is None or _are_floats(
            item.state, (lead, self._state_size), self._max_observation, np.float32
        )

    def singles(self, item: StepRows) -> list[Step]:
        """Returns what has been checked as single steps."""
        return singles(self._find(tuple(item.agents) or self._all)[0], item)

    def check(self, item: StepRows) -> None:
        """Raises `MalformedMessage` unless the arrays have a row for each episode and agent."""
        lead = len(item.episode_ids)
        lineup, _ = self._find(tuple(item.agents) or self._all)
        if len(item.observations) != len(lineup.observed):
            raise MalformedMessage(
                f"rows of {len(lineup.observed)} kinds of observations are expected, of "
                f"{len(item.observations)} came"
            )
        _check_rows("t", item.t, (lead,))
        if item.t.dtype.kind not in "iu" or lead == 0:
            raise MalformedMessage("rows have an integer t for each of at least one episode")
        if item.t.dtype != _INT64:  # one of 8 bits would say 0 after 255
            if item.t.max() > _LAST_T:
                raise MalformedMessage(f"there is no t={item.t.max()}")
            item.t = item.t.astype(_INT64)
        if item.rewards is not None:
            _check_rows("rewards", item.rewards, (lead, len(lineup.agents)))
        if item.state is not None:
            _check_rows("state", item.state, (lead,), is_whole=False)
        for kind, rows in zip(lineup.observed, item.observations, strict=True):
            for leaf in leaves(kind.space, rows):
                shape = (lead, len(kind.agents))
                _check_rows(f"observations of {kind.agents[0]!r}", leaf, shape, is_whole=False)

    def _find(self, agents: tuple[str, ...]) -> tuple[Lineup, Benches | None]:
        """Returns the lineup of some agents, and who reads it: None, they are read one by one.

        Raises:
            MalformedMessage: there is none.
        """
        if agents in self._known:
            self._known.move_to_end(agents)
            return self._known[agents]
        if unknown := [a for a in agents if a not in self._plan.agents]:
            raise MalformedMessage(f"there is no agent {unknown[0]!r} here, but its rows came")
        if len(set(agents)) < len(agents):
            raise MalformedMessage("an agent is named twice in the rows of a step")
        lineup = Lineup(agents, self._plan.agents)
        found = make_benches(self._seats, lineup)
        benches = None
        if found is not None:
            reads_last = any(bench.reads_last_actions for bench in found)
            acting = frozenset(agents)
            is_whole = all(acting.issuperset(s.members) for b in found for s in b.seats)
            benches = Benches(lineup, found, acting, reads_last, is_whole, self._reward_scales)
        self._known[agents] = lineup, benches
        if len(self._known) > _MAX_LINEUPS:
            self._known.popitem(last=False)
        return lineup, benches


def _row_step(
    benches: Benches,
    episodes: list[EpisodeOfRows],
    ts: list[int],
    rows: Sequence[Any],
    rewards: np.ndarray | None,
    state: np.ndarray | None,
    before: _Before | None = None,
) -> RowStep | None:
    """Returns the step that sound rows of plain episodes are; None: as `RowReader.read`."""
    returns, last_actions, module_states, frames = before or _before(episodes, benches)
    if rewards is None:
        rewards = np.zeros_like(returns)
    returns = returns + rewards
    if not within(returns, MAX_RETURN):
        return None
    seen = Seen(rows, state, last_actions, lambda: [e.agents_done for e in episodes], frames)
    observations = [bench.observe(seen) for bench in benches.benches]
    if frames is not None:
        frames.forget()
    if any(rows is None for rows in observations):
        return None
    step = RowStep(
        episodes,
        benches,
        ts,
        observations,
        rewards,
        returns,
        episodes[0].is_training,
        episodes[0].should_explore,
        module_states,
        frames=frames,
    )
    step.scale_rewards()
    return step


_Before = tuple[np.ndarray, np.ndarray | None, list[Any], RowFrames | None]
"""What episodes bring along: returns, last actions, recurrent states and frames."""


def _before(episodes: Sequence[EpisodeOfRows], benches: Benches) -> _Before:
    agents = benches.lineup.agents
    last = [episode.last_row for episode in episodes]
    before = next((step for step, _ in last if step is not None), None)
    if before is None:
        return (
            np.stack([episode.returns_of(agents) for episode in episodes]),
            np.stack([e.last_actions_of(agents) for e in episodes])
            if benches.reads_last_actions
            else None,
            _states_of(episodes, benches),
            _frames(benches, None, None, range(len(episodes)), episodes),
        )
    # Most were in the same step; the others begin, or were told of alone.
    rows = [row if step is before else 0 for step, row in last]
    others = [i for i, (step, _) in enumerate(last) if step is not before]
    return _after(before, rows, others, episodes)


def _after(
    before: RowStep, rows: list[int], others: Sequence[int], episodes: Sequence[EpisodeOfRows]
) -> _Before:
    """Returns what episodes bring along of which all but some `others` were in a step.

    Args:
        before: that step.
        rows: of each in it.
        others: their places among the episodes.
        episodes: all.
    """
    if not others and len(before.episodes) == len(rows) and rows == list(range(len(rows))):
        states = [one.module_state for one in before.chosen]
        frames = _frames(before.benches, before, None, (), episodes)
        return before.returns, before.last_actions, states, frames
    agents = before.benches.lineup.agents
    returns = before.returns[rows]
    last_actions = None if before.last_actions is None else before.last_actions[rows]
    for i in others:
        returns[i] = episodes[i].returns_of(agents)
        if last_actions is not None:
            last_actions[i] = episodes[i].last_actions_of(agents)
    is_stateless = all(one.module_state is None for one in before.chosen)
    states = [None] * len(before.chosen) if is_stateless else _states_of(episodes, before.benches)
    return returns, last_actions, states, _frames(before.benches, before, rows, others, episodes)


def _frames(
    benches: Benches,
    before: RowStep | None,
    rows: list[int] | None,
    others: Iterable[int],
    episodes: Sequence[EpisodeOfRows],
) -> RowFrames | None:
    """Returns what the episodes saw before; None: nothing is stacked."""
    frame_stack = benches.benches[0].seats[0].frame_stack
    if frame_stack == 1:
        return None
    frames = None if before is None else before.frames
    return RowFrames(frame_stack, frames, rows, {i: episodes[i].stacks() for i in others})


def _states_of(episodes: Sequence[EpisodeOfRows], benches: Benches) -> list[Any]:
    """Returns the recurrent states of each bench's seats."""
    return [
        _stacked_states([episode.module_states_of(i, bench.seats) for episode in episodes])
        for i, bench in enumerate(benches.benches)
    ]


def _stacked_states(states: list[Any]) -> Any:
    """Returns the recurrent states of some episodes, ``[E, S, ...]``; each ``[S, ...]`` or None.

    None: they are all initial. Where only some are, they stay in a list.
    """
    if all(state is None for state in states):
        return None
    return stacked(states) if all(isinstance(state, dict) for state in states) else states


def _are_floats(
    rows: Any, shape: tuple[int | None, ...], most: float, dtype: type = np.float64
) -> bool:
    return (
        isinstance(rows, np.ndarray)
        and rows.dtype == dtype
        and rows.shape == shape
        and within(rows, most)
    )


def _limit(most: float | None) -> float:
    return float("inf") if most is None else most


def _check_rows(what: str, rows: Any, shape: tuple[int, ...], *, is_whole: bool = True) -> None:
    """Raises `MalformedMessage` unless these are an array of a shape, or one that begins so."""
    of_rows = getattr(rows, "shape", ())
    if isinstance(rows, np.ndarray) and (of_rows if is_whole else of_rows[: len(shape)]) == shape:
        return
    raise MalformedMessage(
        f"{what} in rows: an array of shape {shape}{'' if is_whole else ' and more'} was expected; "
        "rows are for msgpack, a step in JSON has dicts by agent",
        expected=f"shape {shape}",
        got=f"shape {of_rows}" if isinstance(rows, np.ndarray) else type(rows).__name__,
    )
