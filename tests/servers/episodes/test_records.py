"""The records of any episode equal those of a plain loop over its seats."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import zip_longest
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.servers.scripted_store import ScriptedStore, each, make_plan, seen

from muxrl.protocol.messages import AbortEpisode, EndEpisode, Step
from muxrl.servers.agents.seating import TEAMS, Seating
from muxrl.servers.algorithms.settings.actor_critic import CENTRAL
from muxrl.servers.episodes.trajectories import Chunk

AGENTS, TEAM = "abc", "ab"


@dataclass
class Life:
    """One life of a seat: what it observed, did and was paid."""

    seen: list[Any] = field(default_factory=list)
    acted: list[Any] = field(default_factory=list)
    paid: list[float] = field(default_factory=list)
    ends: tuple[bool, bool] = (False, False)
    """Whether it was terminated, and whether it was truncated."""
    owed: float = 0.0


class Loop:
    """Records an episode as the documentation describes it, seat by seat and step by step.

    Args:
        seating: how agents form seats; "a" and "b" are a team if the seating has teams.
        is_mean: whether a team is paid the mean of its members' rewards.
        agents_return: whether only the end of an episode ends it, not its agents' ends.
        num_frames: observations of an agent that are stacked.
    """

    def __init__(
        self, seating: Seating, *, is_mean: bool, agents_return: bool, num_frames: int
    ) -> None:
        self.num_frames = num_frames
        self.seen_at: dict[str, list[int]] = {a: [] for a in AGENTS}
        """By agent: the times at which it has observed in its life."""
        team, alone = [*TEAM], {a: [a] for a in AGENTS}
        self.is_mean, self.is_team, self.agents_return = is_mean, seating is TEAMS, agents_return
        members = {Seating(): alone, TEAMS: {"team": team, "c": ["c"]}}
        self.members = members.get(seating, {"a": team, "b": team, "c": ["c"]})
        """By seat: the agents that end it when the last of them ends."""
        self.is_central = seating is CENTRAL
        self.lives: dict[str, list[Life]] = {seat: [] for seat in self.members}
        self.over: set[str] = set()
        self.done: set[str] = set()
        self.last: dict[str, int] = {}
        """By agent: its last action."""
        self.returns: Counter[str] = Counter()
        self.flags = (False, False)
        self.version, self.versions = 0, list[int]()
        """The version of the weights behind the last actions, and behind the actions before each
        env step."""

    def take(self, item: Step | EndEpisode, version: int) -> None:
        """Takes in the consequences of the last actions, and which agents have to act next.

        Args:
            item: a step or the episode's end.
            version: of the weights that choose the next actions.
        """
        t = item.t
        now = item.observations.keys() if isinstance(item, Step) else set()
        terminated, truncated = ({a for a, f in some.items() if f} for some in
                                 (item.terminations, item.truncations))  # fmt: skip
        if isinstance(item, EndEpisode):
            rest = {*AGENTS} - self.done - terminated - truncated
            (truncated if item.is_truncated else terminated).update(rest)
        ending = (terminated | truncated) - self.done
        gone = self.done | ending
        for a in now | item.rewards.keys() | item.late_rewards.keys():
            self.returns[a] += item.rewards.get(a, 0.0) + item.late_rewards.get(a, 0.0)
        num_here, ended_truncated = len(self.members.keys() - self.over), []
        is_plain = not (isinstance(item, EndEpisode) or terminated or truncated or self.done & now)
        if t and (num_here or is_plain):
            self.versions.append(self.version)
        self.version = version
        for seat, members in self.members.items():
            if seat not in self.over:
                life = self.lives[seat][-1] if self.lives[seat] else None
                if life:
                    paid = sum(item.rewards.get(m, 0.0) for m in members)
                    life.owed += paid / len(members) if self.is_mean and len(members) > 1 else paid
                if ending & {*members} and gone >= {*members}:
                    self.over.add(seat)
                    is_cut = bool(ending & {*members} & truncated - terminated)
                    ended_truncated.append(is_cut and life is not None)
                    if life:
                        life.ends = not is_cut, is_cut
                        self._end(seat, life, item, gone, self.done | terminated)
        is_end = isinstance(item, EndEpisode)
        if num_here and (is_end or (not self.agents_return and self.over == self.members.keys())):
            self.flags = not any(ended_truncated), any(ended_truncated)
        back = now & gone
        for seat, members in self.members.items():
            if back & {*members} and gone >= {*members}:
                self.over.discard(seat)
                self.lives[seat].append(Life())
        self.done = gone - back
        for a in back:
            self.last.pop(a, None)
            self.seen_at[a] = []
        for seat, members in self.members.items():
            if now & {*members}:
                if not self.lives[seat]:
                    self.lives[seat].append(Life())
                life = self.lives[seat][-1]
                if life.seen:
                    life.paid.append(life.owed)
                life.owed = 0.0
                life.seen.append(self._look(seat, now, t, self.done))
                self.last.update(dict.fromkeys(now, t % 3) if self.is_team else {})
                life.acted.append([t % 3] * len(members) if seat == "team" else t % 3)
        for a in now:
            self.seen_at[a].append(t)

    def _end(self, seat: str, life: Life, item: Any, gone: set[str], departed: set[str]) -> None:
        finals, is_step = item.final_observations, isinstance(item, Step)
        others = {a for a in item.observations if a not in gone} if is_step and finals else set()
        last_seen = (others | finals.keys()) - (departed if life.ends[1] else set())
        is_seen = not last_seen.isdisjoint(self.members[seat])
        look = self._look(seat, last_seen, item.t, departed) if is_seen else life.seen[-1]
        life.seen.append(look)
        life.paid.append(life.owed)

    def _look(self, seat: str, here: Iterable[str], t: int, departed: set[str]) -> Any:
        """Returns what a seat observes while some agents are here and some have departed."""
        rows = {}
        for a in AGENTS:
            times = [*self.seen_at[a], t][-self.num_frames :]
            times = [times[0]] * (self.num_frames - len(times)) + times
            found = [x for at in times for x in seen(a, at).tolist()]
            rows[a] = found if a in here else [0.0] * len(found)
        view = AGENTS if seat == "c" else TEAM
        state = [x for a in view for x in rows[a]] + [float(a in departed) for a in view]
        if seat == "team":
            alive = [float(a in here) for a in TEAM]
            last = [float(self.last.get(a, -1)) if a in here else -1.0 for a in TEAM]
            return [rows[a] for a in TEAM], alive, last, state
        if not self.is_central:
            return rows[seat]
        if seat in departed and seat not in here:
            state = [0.0] * len(state)
        return (rows[seat], *([[float(seat in here)]] if seat in TEAM else []), state)


def recorded(chunks: Sequence[Chunk], key: str) -> Life:
    """Returns a seat's life, its pieces in all chunks joined."""
    life = Life()
    for one in [one for chunk in chunks for one in chunk.trajectories if one.key == key]:
        rows: list[Any] = []
        for row in each(one.observations):
            parts = row if isinstance(row, dict) else {"obs": row}
            keys = ("obs", "alive", "last_action", "state")
            found = [parts[k].tolist() for k in keys if k in parts]
            rows.append(tuple(found) if len(found) > 1 else found[0])
        assert not life.seen or life.seen[-1] == rows[0], "it begins with what ended the one before"
        assert not any(life.ends), "nothing follows its end"
        assert (one.id, one.t) == (f"{one.episode_id}_{key}", len(life.paid))
        life.seen += rows[bool(life.seen) :]
        life.acted += one.actions.tolist()
        life.paid += one.rewards.tolist()
        life.ends = one.is_terminated, one.is_truncated
    return life


@st.composite
def episodes(draw: st.DrawFn, name: str, *, agents_return: bool) -> list[Any]:
    """Draws the items of an episode after its start; an episode without an end is aborted."""
    some, rarely = st.sets(st.sampled_from(AGENTS)), st.sampled_from([False] * 4 + [True])
    done: set[str] = set()
    acted: set[str] = set()
    items: list[Any] = []
    for t in range(draw(st.integers(1, 8)) + 1):
        is_end = bool(items) and (
            t == 8 or draw(rarely) or (done == {*AGENTS} and not agents_return)
        )
        ended = draw(some) if t and draw(rarely) else set()
        cut = draw(some) if t and draw(rarely) else set()
        is_truncated = is_end and draw(st.booleans())
        gone = done | ended | cut
        needed = (cut | ({*AGENTS} - done - ended if is_truncated else set())) - ended
        if acted & {*TEAM}:
            acted |= {*TEAM}
        late = draw(some) & gone if t and draw(rarely) else set()
        ending = ({*AGENTS} if is_end else gone) - done
        finals = (needed & acted) | (draw(some) & ending if t else set())
        told = {
            "rewards": {a: float(draw(st.integers(-3, 3))) for a in draw(some)} if t else {},
            "terminations": dict.fromkeys(ended, True),
            "truncations": dict.fromkeys(cut, True),
            "final_observations": {a: seen(a, t) for a in finals},
            "late_rewards": dict.fromkeys(late, 0.5),
        }
        if is_end:
            return [*items, EndEpisode(name, t, is_truncated, **told)]
        acted = draw(some | st.just({*AGENTS})) - (set() if agents_return else gone)
        if agents_return and not t:
            acted = {*AGENTS}
        done = gone - acted
        items.append(Step(name, t, {a: seen(a, t) for a in AGENTS if a in acted}, **told))
    return items


@pytest.mark.parametrize("seating", [Seating(), TEAMS, CENTRAL], ids=["alone", "team", "central"])
@pytest.mark.parametrize("agents_return", [False, True])
@settings(max_examples=60)
@given(
    st.data(), st.sampled_from([1, 3, 10**9]), st.booleans(), st.booleans(), st.sampled_from([1, 3])
)
def test_records_of_episodes_equal_a_plain_loop_s(
    seating: Seating,
    agents_return: bool,
    data: st.DataObject,
    size: int,
    is_mean: bool,
    whole: bool,
    num_frames: int,
) -> None:
    groups = None if seating == Seating() else {"team": ("a", "b")}
    fields = {"agents_return": agents_return, "late_members": "allow", "frame_stack": num_frames}
    team_reward = "mean" if is_mean else "sum"
    plan = make_plan(AGENTS, groups, team_reward, shares_policy=False, **fields)
    with pytest.MonkeyPatch.context() as patch:  # the store's table grows while episodes are open
        patch.setattr("muxrl.servers.episodes.table._FIRST_SLOTS", 1)
        store = ScriptedStore(plan, size, whole, 2 if whole else None, seating)
    played: dict[str, tuple[list[Any], Loop]] = {}
    for name in "efg"[: data.draw(st.integers(1, 3))]:
        items = data.draw(episodes(name, agents_return=agents_return))
        how: Any = {"agents_return": agents_return, "num_frames": num_frames}
        played[name] = items, Loop(seating, is_mean=is_mean, **how)
    frames = list(zip_longest(*(items for items, _ in played.values())))
    for number, frame in enumerate([*frames, [None] * len(played)]):
        store.weights_seq_no = number
        for (name, (_, loop)), item in zip(played.items(), frame, strict=True):
            if not number:
                store.start(name)
            if item is None:
                store.store.accept(AbortEpisode(name), 0.0)
                continue
            outcome: Any = store.store.accept(item, 0.0)
            loop.take(item, number)
            if isinstance(item, Step):
                store.act(outcome)
            else:
                assert outcome.returns == loop.returns
        store.store.finish_frame()
    sizes = [sum(chunk.num_env_steps for chunk in batch) for batch in store.feed.batches]
    assert all(n >= size if whole else n == size for n in sizes)
    assert not whole or max((c.num_env_steps for c in store.chunks), default=0) <= 2
    assert sum(c.num_env_steps for c in store.chunks) == store.store.counts.num_env_steps
    for name, (items, loop) in played.items():
        chunks = [chunk for chunk in store.chunks if chunk.episode_id == name]
        assert all(chunk.weights_seq_nos for chunk in chunks)
        assert [v for chunk in chunks for v in chunk.weights_seq_nos] == loop.versions
        is_aborted = isinstance(items[-1], Step)
        for seat, lives in loop.lives.items():
            for number, life in enumerate(lives if chunks else [], 1):
                found = recorded(chunks, seat if number == 1 else f"{seat}~{number}")
                if not life.paid:
                    assert not found.paid
                    continue
                # An aborted life is truncated if it had steps that were not yet delivered.
                if is_aborted and not any(life.ends):
                    life.ends = False, found.ends[1]
                expected = life.seen, life.acted[: len(life.paid)], life.paid, life.ends
                assert (found.seen, found.acted, found.paid, found.ends) == expected
        if chunks and (any(loop.flags) or (is_aborted and not whole and not sizes)):
            flags = loop.flags if any(loop.flags) else (False, True)
            assert (chunks[-1].is_terminated, chunks[-1].is_truncated) == flags
