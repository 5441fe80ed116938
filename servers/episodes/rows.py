"""A step of many episodes at once: acted on, answered and recorded as arrays.

::

    StepRows ──RowReader.read──> RowStep ──take──> its episodes ──act──> ActionRows
                 │ None: something is not plain
                 └──────────────> Steps, one for each episode

A `RowStep` is what the episodes of a `StepRows` have in common: arrays that none of them copies. An
episode keeps which `RowStep` s it was in, and its row in each, until somebody wants its record
(`columns_of`). Whatever is not plain (a repeat, a value out of range, an unknown episode) goes
the way of single steps, which says what is wrong and whose it is. Of episodes that several members
of a pool play, each member has a `RowStep` of its own (`StepOfMembers`).
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, NamedTuple, Protocol

import msgspec
import numpy as np

from muxrl.protocol.messages import ActionRows, Actions
from muxrl.protocol.rows import Lineup, empty, put, row_of
from muxrl.servers.agents.benches import Bench
from muxrl.servers.agents.frames import RowFrames
from muxrl.servers.agents.seats import Seat
from muxrl.servers.episodes.reward_scale import RewardScale
from muxrl.servers.episodes.trajectories import at, stack


class EpisodeOfRows(Protocol):
    """An open episode that can be in rows: see `ServedEpisode`."""

    episode_id: str
    is_training: bool
    should_explore: bool
    seed: int | None
    member: Any
    """See `muxrl.servers.episodes.episode.Member`."""
    row_reader: Any
    """Of its seats: a `muxrl.servers.episodes.row_reader.RowReader`."""

    @property
    def agents_done(self) -> Collection[str]: ...

    @property
    def last_row(self) -> tuple[RowStep | None, int]:
        """The last step, if it came in rows, and the episode's row in it."""

    def is_plain_at(self, t: int, benches: Benches) -> bool: ...

    def returns_of(self, agents: Sequence[str]) -> np.ndarray: ...

    def last_actions_of(self, agents: Sequence[str]) -> np.ndarray: ...

    def stacks(self) -> Mapping[str, np.ndarray]: ...

    def module_states_of(self, bench: int, seats: Sequence[Seat]) -> Any: ...

    def discounted_of(self, bench: int, seats: Sequence[Seat]) -> Any: ...


class Benches(NamedTuple):
    """A lineup, and who reads its rows."""

    lineup: Lineup
    benches: list[Bench]
    agents: frozenset[str]
    reads_last_actions: bool
    is_whole: bool
    """Whether all members of each team act, without whom none may begin."""
    reward_scales: Mapping[str, RewardScale]
    """By policy; none: rewards are recorded as they come."""


class Chosen(msgspec.Struct, frozen=True, gc=False):
    """What a policy chose for the rows of a bench; ``[E, S, ...]`` all of it."""

    actions: np.ndarray
    extra_outputs: Mapping[str, np.ndarray]
    module_state: Any = None
    """Recurrent state after them, a dict of arrays; None where the module has none."""


@dataclass(eq=False)
class RowStep:
    """A step of several episodes, recorded, that waits for its actions or has them.

    Attributes:
        episodes: in the order of the rows.
        benches: who acts.
        observations: what each bench's policy reads.
        rewards: of each agent of the lineup, ``[E, A]``, that followed from the actions before.
        returns: their sums so far, ``[E, A]``.
        is_training, should_explore: of all its episodes.
        module_states: of each bench, dicts of arrays ``[E, S, ...]``; None: the initial ones.
        t: of each episode.
        chosen: by bench, once it has been acted on.
        last_actions: of each agent, float32 ``[E, A]``, if a bench reads them.
        has_failed: whether its actions could not be computed.
        frames: what is stacked, if anything is.
        discounted: of each bench's seats, see `Recorder`, ``[E, S]``; none: nothing is scaled.
    """

    episodes: list[EpisodeOfRows]
    benches: Benches
    t: list[int]
    observations: list[Any]
    rewards: np.ndarray
    returns: np.ndarray
    is_training: bool
    should_explore: bool
    module_states: list[Any]
    chosen: Sequence[Chosen] = ()
    weights_seq_no: int = 0
    answer: ActionRows | None = None
    last_actions: np.ndarray | None = None
    has_failed: bool = False
    frames: RowFrames | None = None
    discounted: list[np.ndarray] = field(default_factory=list)
    stacked: dict[Any, Columns] = field(default_factory=dict)
    """See `columns_of`."""

    @property
    def parts(self) -> Sequence[RowStep]:
        """Itself; see `StepOfMembers`."""
        return (self,)

    @cached_property
    def rewards_by_bench(self) -> list[np.ndarray]:
        """The recorded rewards of each bench's seats, ``[E, S]``."""
        return [bench.rewards(self.rewards) for bench in self.benches.benches]

    def scale_rewards(self) -> None:
        """Scales them, if the server does, in the order of the same steps one by one."""
        if not self.benches.reward_scales or not self.is_training:
            return
        for i, bench in enumerate(self.benches.benches):
            scale = self.benches.reward_scales[bench.policy_id].scale
            before = [episode.discounted_of(i, bench.seats) for episode in self.episodes]
            discounted = np.array(before, np.float64)
            rewards = self.rewards_by_bench[i] = np.array(self.rewards_by_bench[i])
            later = np.array(self.t) > 0
            own = zip(
                *(part[later].ravel().tolist() for part in (rewards, discounted)), strict=True
            )
            scaled = np.array([scale(*one) for one in own])
            scaled = scaled.reshape(-1, len(bench.seats), 2)
            rewards[later], discounted[later] = scaled[..., 0], scaled[..., 1]
            self.discounted.append(discounted)

    def finish(self, chosen: Sequence[Chosen], weights_seq_no: int) -> None:
        """Puts the actions into effect, and makes the answer.

        Args:
            chosen: by bench.
            weights_seq_no: version of the weights that chose them.
        """
        lead = len(self.episodes)
        lineup = self.benches.lineup
        actions = [empty(kind.space, (lead, len(kind.agents))) for kind in lineup.acted]
        for bench, own in zip(self.benches.benches, chosen, strict=True):
            bench.write(own.actions, actions)
        self.chosen, self.weights_seq_no = chosen, weights_seq_no
        if self.benches.reads_last_actions:
            self.last_actions = np.empty((lead, len(lineup.agents)), np.float32)
            for kind, rows in zip(lineup.acted, actions, strict=True):
                if isinstance(rows, np.ndarray) and rows.ndim == 2:
                    self.last_actions[:, kind.places] = rows
        self.answer = ActionRows(actions=actions, weights_seq_no=weights_seq_no)

    def answer_of(self, row: int) -> Actions:
        """Returns what a step of one episode would have been answered."""
        assert self.answer is not None
        episode = self.episodes[row]
        return Actions(episode.episode_id, self.t[row], self.actions_of(row), self.weights_seq_no)

    def actions_of(self, row: int) -> dict[str, Any]:
        """Returns one episode's actions by agent, as they were sent."""
        assert self.answer is not None
        return {
            agent_id: row_of(kind.space, rows, (row, i))
            for kind, rows in zip(self.benches.lineup.acted, self.answer.actions, strict=True)
            for i, agent_id in enumerate(kind.agents)
        }


Columns = tuple[Any, np.ndarray, np.ndarray, Any]
"""Observations, actions, rewards and extra outputs, ``[T, ...]`` each, of ``T`` transitions."""


def columns_of(steps: Sequence[RowStep], bench: int, rows: Sequence[int]) -> Columns:
    """Returns what one episode lived through with a bench, ``[T, S, ...]``.

    Episodes that were in the same steps share arrays: they are stacked once for all of them.

    Args:
        steps: one after another, of the same benches; the last one may wait for its actions.
        bench: its number.
        rows: of the episode, by step.

    Returns:
        The transitions between the steps; an observation is the one that follows the action.
    """
    if len(set(rows)) > 1 or len({len(step.episodes) for step in steps}) > 1:
        return _joined(steps, bench, rows)
    known = steps[-1].stacked
    key = (bench, *map(id, steps))  # nobody else has these while the last one is there
    if key not in known:
        known[key] = _joined(steps, bench, [...] * len(steps))
    where = (slice(None), rows[0])
    observations, actions, rewards, outputs = known[key]
    return at(observations, where), actions[where], rewards[where], at(outputs, where)


def _joined(steps: Sequence[RowStep], bench: int, rows: Sequence[Any]) -> Columns:
    """Stacks a row of each step, or all rows of each."""
    before = [(step.chosen[bench], i) for step, i in zip(steps[:-1], rows, strict=False)]
    after = list(zip(steps[1:], rows[1:], strict=True))
    return (
        stack([at(step.observations[bench], i) for step, i in after]),
        np.array([chosen.actions[i] for chosen, i in before]),
        np.array([step.rewards_by_bench[bench][i] for step, i in after]),
        stack([at(chosen.extra_outputs, i) for chosen, i in before]),
    )


@dataclass(eq=False)
class StepOfMembers:
    """A step of episodes that several members of a pool play.

    Attributes:
        parts: of each member.
        order: of all rows, part by part.
    """

    parts: Sequence[RowStep]
    order: np.ndarray

    @property
    def is_training(self) -> bool:
        return self.parts[0].is_training

    @cached_property
    def _answer(self) -> ActionRows:
        lead, acted = len(self.order), self.parts[0].benches.lineup.acted
        actions = [empty(kind.space, (lead, len(kind.agents))) for kind in acted]
        last = 0
        for part in self.parts:
            assert part.answer is not None
            rows = self.order[last : (last := last + len(part.episodes))]
            put(actions, rows, part.answer.actions)
        return ActionRows(actions=actions, weights_seq_no=self.parts[0].weights_seq_no)

    @property
    def answer(self) -> ActionRows | None:
        return None if any(part.answer is None for part in self.parts) else self._answer


class RowOfStep:
    """One episode's step in a `RowStep`, for whoever repeats it alone while it is pending."""

    def __init__(self, step: RowStep, row: int) -> None:
        self.step = step
        self.parts = step.parts
        self.is_training = step.is_training
        self._row = row

    @property
    def answer(self) -> Actions | None:
        return None if self.step.answer is None else self.step.answer_of(self._row)
