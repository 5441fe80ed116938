"""Steps in rows are recorded, counted and answered as the same steps one by one."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from random import Random
from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.servers.scripted_store import SEES, ScriptedStore, make_plan, spec_of

from muxrl.client.rows import Packing
from muxrl.protocol.errors import ValueMismatch
from muxrl.protocol.messages import (
    AbortEpisode,
    ActionRows,
    EndEpisode,
    StartEpisode,
    Step,
    StepRows,
)
from muxrl.protocol.spaces import Box, DictSpace, Discrete
from muxrl.servers.agents.seating import Seating
from muxrl.servers.agents.seats import SeatAction
from muxrl.servers.agents.team_seats import TeamSeating
from muxrl.servers.algorithms.joint_critics.teams import ContinuousTeamSeating
from muxrl.servers.algorithms.mappo.seats import CentralSeating
from muxrl.servers.config import AgentPlan, ServerPlan
from muxrl.servers.episodes.episode import PendingStep
from muxrl.servers.episodes.reward_scale import RewardScale
from muxrl.servers.episodes.rows import Chosen, RowStep
from muxrl.servers.episodes.trajectories import Chunk, at, stacked

KINDS = {"a": SEES, "b": Discrete(4, start=1), "c": SEES, "d": DictSpace({"x": SEES}),
         "m": DictSpace({"x": SEES, "action_mask": Box((3,), "int8", 0.0, 1.0)})}  # fmt: skip
KINDS["n"] = KINDS["m"]
STATE = DictSpace({"at": Discrete(3), "to": SEES})
KINDS["s"] = DictSpace({"x": SEES, "state": STATE})
KINDS["u"] = DictSpace({**KINDS["m"].spaces, "state": STATE})
KINDS["i"] = Box((2, 2, 3), "uint8", 0, 255)
EPISODES = ("e0", "e1", "e2")


class Player:
    """Plays the same on a store, step by step, or in rows where its client would pack them."""

    def __init__(
        self,
        plan: ServerPlan,
        seating: Seating,
        *,
        in_rows: bool,
        batch: int,
        scales: Mapping[str, RewardScale] | None = None,
        cuts_after_frames: bool = False,
    ) -> None:
        self.store = ScriptedStore(
            plan,
            batch_env_steps=batch,
            seating=seating,
            reward_scales=scales,
            cuts_after_frames=cuts_after_frames,
        )
        self.packing = Packing(spec_of(plan), least_rows=1)
        self.in_rows = in_rows
        self.num_in_rows = 0

    def tell(self, items: list[Any], told: list[Any] | None = None) -> list[Any]:
        """Returns the replies to a message, in the order of its items; `told` is as packed."""
        told = self.packing.pack(items) if told is None else told
        if not self.in_rows:  # in the same order, so that batches are cut at the same steps
            told = [
                one
                for item in told
                for one in (steps_of(item, items) if isinstance(item, StepRows) else [item])
            ]
        replies = [self._tell(item) for item in told]
        self.store.store.finish_frame()
        if self.in_rows:
            return self.packing.unpack(replies)
        answers = {id(item): reply for item, reply in zip(told, replies, strict=True)}
        return [answers[id(item)] for item in items]

    def _tell(self, item: Any) -> Any:
        store = self.store.store
        if isinstance(item, StepRows):
            outcome = store.accept_rows(item, 0.0)
            if isinstance(outcome, RowStep):
                self.num_in_rows += len(item.episode_ids)
                outcome.finish([self._chosen(outcome, i) for i in range(len(outcome.benches[1]))],
                               self.store.weights_seq_no)  # fmt: skip
                return outcome.answer
            return ActionRows(replies=[self._tell(step) for step in outcome])
        outcome = store.accept(item, 0.0)
        if isinstance(outcome, PendingStep):
            return outcome.finish([self._action(r, item.t) for r in outcome.requests],
                                  self.store.weights_seq_no)  # fmt: skip
        return outcome

    def _action(self, request: Any, t: int) -> SeatAction:
        before = request.module_state
        state = 0.0 if before is None else float(before["actor"]["h"][0])
        num = len(request.seat.members)
        is_team = request.seat.seat_id in self.store.plan.groups
        space = request.seat.action_space
        action: Any = np.int64((t + int(state)) % 3)
        if isinstance(space, Box):  # of a team whose members have numbers
            action = np.linspace(-1, 1, math.prod(space.shape), dtype=np.float32).reshape(
                space.shape
            )
            action = np.roll(action, t, axis=-1)
        elif is_team:
            action = np.full(num, t % 3)
        after = {"actor": {"h": np.array([state + 1.0], np.float32)}}
        return SeatAction(action, {"logp": np.float32(t), "state": after}, after)

    def _chosen(self, step: RowStep, number: int) -> Chosen:
        """The same for all rows of a bench."""
        bench = step.benches.benches[number]
        states = step.module_states[number]
        cells: list[list[SeatAction]] = []
        for row, t in enumerate(step.t):
            cells.append([])
            for i, seat in enumerate(bench.seats):
                if isinstance(states, dict):
                    state = at(states, (row, i))
                else:
                    state = None if states is None else at(states[row], i)
                cells[-1].append(self._action(Asked(seat, state), t))
        return Chosen(
            np.array([[cell.action for cell in row] for row in cells]),
            {
                "logp": np.array([[c.extra_outputs["logp"] for c in row] for row in cells]),
                "state": states_of(cells),
            },
            states_of(cells),
        )


def steps_of(rows: StepRows, items: list[Any]) -> list[Step]:
    steps = {item.episode_id: item for item in items if isinstance(item, Step)}
    return [steps[episode_id] for episode_id in rows.episode_ids]


class Asked:
    def __init__(self, seat: Any, module_state: Any) -> None:
        self.seat, self.module_state = seat, module_state


def states_of(cells: list[list[SeatAction]]) -> dict[str, Any]:
    return {
        "actor": {
            "h": np.array([[cell.module_state["actor"]["h"] for cell in row] for row in cells])
        }
    }


def plain(value: Any) -> Any:
    """Anything recorded, in a form that compares equal."""
    if isinstance(value, Mapping):
        return {key: plain(part) for key, part in value.items()}
    array = np.asarray(stacked(value) if isinstance(value, list) else value)
    return array.dtype.name, array.shape, array.tobytes()


def plain_replies(replies: list[Any]) -> list[Any]:
    return [plain(msgspec.structs.asdict(reply)) for reply in replies]


def all_of(chunks: list[Chunk]) -> list[Any]:
    return [
        (
            chunk.episode_id,
            chunk.t_started,
            chunk.weights_seq_nos,
            chunk.is_terminated,
            chunk.is_truncated,
            [
                (
                    one.id, one.t, one.num_lookback, one.is_terminated, one.is_truncated,
                    plain(stacked(one.observations)), plain(stacked(one.actions)),
                    plain(stacked(one.rewards)),
                    {name: plain(stacked(rows)) for name, rows in one.outputs.items()},
                )
                for one in chunk.trajectories
            ],
        )
        for chunk in chunks
    ]  # fmt: skip


def value_of(agent: str, number: int, t: int) -> Any:
    if agent == "b":
        return 1 + t % 4
    vector = np.array([number, t], np.float32)
    if agent == "i":
        return np.full((2, 2, 3), 16 * number + t, np.uint8) + np.arange(3, dtype=np.uint8)
    masked = {"x": vector, "action_mask": np.array([t % 2, 1, number % 2], np.int8)}
    if agent in "mn":
        return masked
    if agent in "su":
        state = {"at": t % 3, "to": vector + 0.5}
        return {**(masked if agent == "u" else {"x": vector}), "state": state}
    return {"x": vector} if agent == "d" else vector


class Script:
    """What happens in some episodes, turn by turn; agents may come late only if they may."""

    def __init__(self, agents: Mapping[str, AgentPlan], dice: Random, *, may_be_late: bool) -> None:
        self.may_be_late = may_be_late
        self.agents = list(agents)
        self.logged = {
            a: [0.5, -0.5] if isinstance(plan.action_space, Box) else 1
            for a, plan in agents.items()
        }
        self.dice = dice

    def message(self, live: dict[str, dict[str, Any]]) -> list[Any]:
        """Returns the next items of the episodes, the odd ones first."""
        odd: list[Any] = []
        usual: list[Any] = []
        for number, episode_id in enumerate(EPISODES):
            one = live.setdefault(episode_id, {"t": 0, "gone": set(), "away": set(), "round": 0})
            name = f"{episode_id}_{one['round']}"
            what = self.dice.choice(["go"] * 8 + ["die", "log", "end", "abort", "wait", "rest"])
            if what == "rest" and (one["t"] or self.may_be_late):  # or comes again
                one["away"] ^= {self.dice.choice(self.agents)}
            alive = [a for a in self.agents if a not in one["gone"]]
            here = [a for a in alive if a not in one["away"]] or alive
            if what in ("end", "abort") and one["t"]:
                if what == "end":
                    odd.append(EndEpisode(name, one["t"], is_truncated=False))
                else:
                    odd.append(AbortEpisode(name, "as it must"))
                one.update(t=0, gone=set(), away=set(), round=one["round"] + 1)
                continue
            if one["t"] == 0:
                odd.append(StartEpisode(name))
            if what == "wait" and one["t"]:
                continue
            t = one["t"]
            rewards = dict.fromkeys(here, t + number / 4) if t else {}
            extra: dict[str, Any] = {}
            if what == "die" and t and len(here) > 1:
                last = here[-1]
                one["gone"].add(last)
                here = here[:-1]
                extra["terminations"] = {last: True}
            seen = {a: value_of(a, number, t) for a in here}
            if what == "log":
                extra["logged_actions"] = {here[0]: self.logged[here[0]]}
            step = Step(name, t, seen, rewards, **extra)
            one["t"] += 1
            (odd if extra else usual).append(step)
        return odd + usual


@pytest.mark.parametrize(
    ("agents", "groups", "seating"),
    [
        ("abcdi", {}, Seating()),
        ("ac", {"team": ("a", "c")}, TeamSeating()),
        ("abc", {"team": ("a", "c")}, TeamSeating()),
        ("abcdi", {}, CentralSeating()),
        ("ac", {"team": ("a", "c")}, CentralSeating()),
        ("abc", {"team": ("a", "c")}, CentralSeating()),
        ("abc", {"team": ("a", "c")}, ContinuousTeamSeating()),
        ("am", {"team": ("a", "m")}, TeamSeating()),
        ("am", {"team": ("a", "m")}, CentralSeating()),
        ("mn", {"team": ("m", "n")}, CentralSeating()),
        ("mn", {"team": ("m", "n")}, ContinuousTeamSeating()),
        ("su", {"team": ("s", "u")}, TeamSeating()),
        ("su", {"team": ("s", "u")}, CentralSeating()),
        ("su", {}, CentralSeating()),
        ("su", {"team": ("s", "u")}, ContinuousTeamSeating()),
    ],
    ids=[
        "alone",
        "team",
        "both",
        "central",
        "central team",
        "central both",
        "joint critics",
        "masked team",
        "masked central",
        "masked central alike",
        "masked joint critics",
        "team that observes the state",
        "central team that observes the state",
        "central, observing the state",
        "joint critics, observing the state",
    ],
)
@settings(max_examples=40, deadline=None)
@given(
    seed=st.integers(0, 10**9),
    batch=st.sampled_from([3, 7, 10**9]),
    late=st.sampled_from(["allow", "refuse"]),
    frame_stack=st.sampled_from([1, 3]),
    is_scaled=st.booleans(),
    cuts_after_frames=st.booleans(),
)
def test_rows_are_recorded_as_steps(
    agents: str,
    groups: dict,
    seating: Seating,
    seed: int,
    batch: int,
    late: Any,
    frame_stack: int,
    is_scaled: bool,
    cuts_after_frames: bool,
) -> None:
    plan = make_plan({a: KINDS[a] for a in agents}, groups)
    are_teams = isinstance(seating, TeamSeating)
    of_kind = {  # agents that observe different things do not share a policy
        a: p
        if p.group and are_teams
        else dataclasses.replace(p, policy_id=str(p.observation_space))
        for a, p in plan.agents.items()
    }
    if isinstance(seating, ContinuousTeamSeating) and "c" in of_kind:
        reals = Box((2,), low=-3.0, high=1.0)
        of_kind["c"] = dataclasses.replace(of_kind["c"], action_space=reals)
    plan = dataclasses.replace(plan, agents=of_kind, late_members=late, frame_stack=frame_stack)
    scales = [
        {p.policy_id: RewardScale(0.9) for p in plan.agents.values()} if is_scaled else {}
        for _ in range(2)
    ]
    players = [
        Player(
            plan,
            seating,
            in_rows=in_rows,
            batch=batch,
            scales=scales[in_rows],
            cuts_after_frames=cuts_after_frames,
        )
        for in_rows in (False, True)
    ]
    dice = Random(seed)
    script = Script(plan.agents, dice, may_be_late=late == "allow" or not groups)
    live: dict[str, dict[str, Any]] = {}
    for turn in range(dice.randint(2, 12)):
        items = script.message(live)
        steps = [item for item in items if isinstance(item, Step)]
        bad = [msgspec.structs.replace(step, rewards=dict.fromkeys(step.observations, math.inf))
               for step in steps if step.t and dice.random() < 0.1]  # fmt: skip
        repeated = steps if dice.random() < 0.1 else []
        for player in players:
            player.store.weights_seq_no = turn
            for one in bad:
                with pytest.raises(ValueMismatch):
                    player.tell([one])
        told = players[1].packing.pack(items)
        replies = [plain_replies(player.tell(items, told)) for player in players]
        assert replies[0] == replies[1]
        if repeated:
            again = [plain_replies(player.tell(repeated)) for player in players]
            answers = [r for r, i in zip(replies[0], items, strict=True) if isinstance(i, Step)]
            assert again == [answers, answers]
    for episode_id, one in live.items():
        for player in players:
            player.store.abort(f"{episode_id}_{one['round']}")
    single, in_rows = (player.store for player in players)
    assert in_rows.store.counts == single.store.counts
    assert [all_of(b) for b in in_rows.feed.batches] == [all_of(b) for b in single.feed.batches]
    assert all_of(in_rows.chunks) == all_of(single.chunks)
    one, other = ([plain(scale.get_state()) for scale in by.values()] for by in scales)
    assert other == one


@pytest.mark.parametrize(
    ("agents", "groups", "seating", "state_size"),
    [
        ("abcd", {}, Seating(), None),
        ("am", {"team": ("a", "m")}, TeamSeating(), 2),
        ("am", {"team": ("a", "m")}, CentralSeating(), 2),
        ("ac", {"team": ("a", "c")}, CentralSeating(), None),
        ("ac", {"team": ("a", "c")}, ContinuousTeamSeating(), 2),
        ("su", {"team": ("s", "u")}, TeamSeating(), None),
        ("su", {"team": ("s", "u")}, CentralSeating(), None),
    ],
    ids=[
        "alone",
        "team",
        "central",
        "central without a state",
        "joint critics",
        "team that observes the state",
        "central team that observes the state",
    ],
)
@pytest.mark.parametrize("num_episodes", [1, 3])
def test_rows_are_normalised_as_steps(
    agents: str, groups: dict, seating: Seating, state_size: int | None, num_episodes: int
) -> None:
    """Those of one message by the same statistics, in which they count as one after another."""
    plan = make_plan({a: KINDS[a] for a in agents}, groups)
    if not isinstance(seating, TeamSeating):  # else unlike agents would share a policy
        plan = dataclasses.replace(plan, agents={
            a: dataclasses.replace(p, policy_id=str(p.observation_space))
            for a, p in plan.agents.items()
        })  # fmt: skip
    plan = dataclasses.replace(plan, normalize_observations=True, state_size=state_size)
    players = [Player(plan, seating, in_rows=in_rows, batch=10**9) for in_rows in (False, True)]
    single, rows = (player.store for player in players)
    rng = np.random.default_rng(0)
    names = EPISODES[:num_episodes]
    for player in players:
        player.tell([StartEpisode(name) for name in names])
    for t in range(8):
        steps = []
        for name in names:
            drawn = {a: value_of(a, 0, t) for a in agents}
            for a in set(agents) - {"b"}:
                vector = rng.normal(1e3, 1.0, 2).astype(np.float32)
                drawn[a] = {**drawn[a], "x": vector} if isinstance(drawn[a], dict) else vector
            state = None if state_size is None else rng.normal(5.0, 2.0, 2).astype(np.float32)
            rewards = dict.fromkeys(agents, 1.0) if t else {}
            steps.append(Step(name, t, drawn, rewards, state=state))
        for player in players:
            player.tell(steps)
        for one, other in zip(
            *map(numbers_in, (single.observing.get_state(), rows.observing.get_state())),
            strict=True,
        ):
            np.testing.assert_allclose(other, one, rtol=1e-9)  # fmt: skip
    assert players[1].num_in_rows == 8 * num_episodes
    if num_episodes == 1:
        for store in (single, rows):
            store.abort(names[0])
        recorded = zip(single.chunks, rows.chunks, strict=True)
        for one, other in ((c, d) for both in recorded for c, d in zip(
            *(chunk.trajectories for chunk in both), strict=True)):  # fmt: skip
            for a, b in zip(*(numbers_in(stacked(x.observations)) for x in (one, other)),
                            strict=True):  # fmt: skip
                np.testing.assert_allclose(b, a, rtol=1e-4, atol=1e-4)


def numbers_in(value: Any) -> list[np.ndarray]:
    if isinstance(value, Mapping):
        return [leaf for key in sorted(value) for leaf in numbers_in(value[key])]
    return [np.asarray(value, np.float64)]
