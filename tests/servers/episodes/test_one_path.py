"""The same episodes, told one by one or in rows, are answered and recorded alike."""

from __future__ import annotations

import dataclasses
import math
from random import Random
from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.servers.episodes.players import Player, all_of, plain, plain_replies
from tests.servers.scripted_store import SEES, ScriptedStore, make_plan

from muxrl.protocol.errors import ValueMismatch
from muxrl.protocol.messages import AbortEpisode, EndEpisode, StartEpisode, Step
from muxrl.protocol.spaces import (
    Box,
    DictSpace,
    Discrete,
    MultiBinary,
    MultiDiscrete,
    Space,
    TupleSpace,
)
from muxrl.servers.agents.inputs import Mask, Own, State
from muxrl.servers.agents.seating import TEAMS, Seating
from muxrl.servers.algorithms.joint_critics.teams import VECTOR_TEAMS
from muxrl.servers.algorithms.mappo import CENTRAL
from muxrl.servers.config import ServerPlan
from muxrl.servers.episodes.reward_scale import RewardScale

MASK = Box((3,), "int8", 0.0, 1.0)
STATE = DictSpace({"at": Discrete(3), "to": SEES})
KINDS: dict[str, Space] = {
    "a": SEES,
    "b": Discrete(4, start=1),
    "c": SEES,
    "d": DictSpace({"x": SEES}),
    "i": Box((2, 2, 3), "uint8", 0, 255),
    "m": DictSpace({"x": SEES, "action_mask": MASK}),
    "n": DictSpace({"x": SEES, "action_mask": MASK}),
    "s": DictSpace({"x": SEES, "state": STATE}),
    "u": DictSpace({"x": SEES, "action_mask": MASK, "state": STATE}),
}
"""What agents observe, by their names."""
EPISODES = ("e0", "e1", "e2", "e3")
TRAINER = Seating(inputs=(Own, Mask, State), is_scaled=False)

# Agents, the team's, the seating, and the size of the state that is sent.
CASES: dict[str, tuple[str, str, Seating, int | None]] = {
    "alone": ("abcdi", "", Seating(), None),
    "a trainer's": ("acm", "", TRAINER, 2),
    "team": ("ac", "ac", TEAMS, None),
    "team and another": ("abc", "ac", TEAMS, 2),
    "team of choices": ("ac", "ac", TEAMS, None),
    "masked team": ("am", "am", TEAMS, None),
    "team that observes the state": ("su", "su", TEAMS, None),
    "central": ("abcdi", "", CENTRAL, None),
    "central team": ("abc", "ac", CENTRAL, 2),
    "masked central team": ("mn", "mn", CENTRAL, None),
    "central team that observes the state": ("su", "su", CENTRAL, None),
    "joint critics": ("abc", "ac", VECTOR_TEAMS, None),
    "masked joint critics": ("mn", "mn", VECTOR_TEAMS, None),
}


def plan_of(case: str, **fields: Any) -> ServerPlan:
    agents, team, seating, state_size = CASES[case]
    groups = {"team": tuple(team)} if team else {}
    plan = make_plan({a: KINDS[a] for a in agents}, groups, state_size=state_size)
    found = dict(plan.agents)
    for a, own in plan.agents.items():
        if not (own.group and seating.forms_teams):
            # Agents that observe different things do not share a policy.
            found[a] = dataclasses.replace(own, policy_id=str(own.observation_space))
    acts: dict[str, Space] = {}
    if case == "team of choices":
        acts = {"a": MultiDiscrete((2, 3)), "c": TupleSpace((Discrete(2), Discrete(2, start=1)))}
    elif case == "joint critics":
        acts = {"c": Box((3,), low=-3.0, high=1.0)}
    elif case == "alone":
        acts = {"d": MultiBinary(2)}
    for a, space in acts.items():
        found[a] = dataclasses.replace(found[a], action_space=space)
    return dataclasses.replace(plan, agents=found, **fields)


def value_of(agent: str, number: int, t: int) -> Any:
    """Returns what an agent of an episode observes."""
    if agent == "b":
        return 1 + t % 4
    vector = np.array([number, t], np.float32)
    if agent == "i":
        return np.full((2, 2, 3), 16 * number + t, np.uint8) + np.arange(3, dtype=np.uint8)
    if agent in "ac":
        return vector
    value: dict[str, Any] = {"x": vector}
    if agent in "mnu":
        value["action_mask"] = np.array([t % 2, 1, number % 2], np.int8)
    if agent in "su":
        value["state"] = {"at": t % 3, "to": vector + 0.5}
    return value


class Script:
    """What happens in some episodes, message by message."""

    def __init__(self, plan: ServerPlan, dice: Random) -> None:
        self.plan, self.dice = plan, dice
        self.agents = list(plan.agents)
        self.may_be_late = plan.late_members == "allow" or not plan.groups
        self.live: dict[str, dict[str, Any]] = {}
        self.num = 0

    def message(self) -> list[Any]:
        """Returns the next items: ends and beginnings first."""
        odd: list[Any] = []
        usual: list[Any] = []
        for number, name in enumerate(EPISODES):
            one = self.live.get(name)
            if one is not None and one["t"] and self.dice.random() < 0.15:
                odd.append(self._end(self.live.pop(name), number))
                one = None
            if one is None:
                one = {"id": f"{name}_{self.num}", "t": 0, "gone": set(), "away": set()}
                self.live[name], self.num = one, self.num + 1
                mode = self.dice.choice(["train", "train", "eval"])
                odd.append(StartEpisode(one["id"], mode, self.dice.choice([None, None, True])))  # type: ignore[arg-type]
            elif self.dice.random() < 0.1:
                continue  # it is slow
            step, is_odd = self._step(one, number)
            (odd if is_odd else usual).append(step)
        return odd + usual

    def _step(self, one: dict[str, Any], number: int) -> tuple[Step, bool]:
        dice, t = self.dice, one["t"]
        if self.may_be_late and dice.random() < 0.3:  # who pauses, or comes again
            one["away"] ^= {dice.choice(self.agents)}
        if self.plan.agents_return and one["gone"] and dice.random() < 0.3:
            one["gone"].pop()
        alive = [a for a in self.agents if a not in one["gone"]]
        here = [a for a in alive if a not in one["away"]] or alive
        paid = alive if dice.random() < 0.1 else here  # or also who pauses
        extra: dict[str, Any] = {}
        rewards = dict.fromkeys(paid, t + number / 4) if t else {}
        if t and len(here) > 1 and dice.random() < 0.1:
            who = here.pop()
            one["gone"].add(who)
            how = dice.choice(["terminations", "truncations"])
            extra[how] = {who: True}
            if how == "truncations":
                extra["final_observations"] = {who: value_of(who, number, t)}
        step = Step(
            one["id"], t, {a: value_of(a, number, t) for a in here}, rewards,
            state=self._state(number, t), **extra,
        )  # fmt: skip
        one["t"] += 1
        return step, bool(extra) or paid is not here

    def _state(self, number: int, t: int) -> Any:
        return None if self.plan.state_size is None else np.array([number, t], np.float32)

    def _end(self, one: dict[str, Any], number: int) -> Any:
        if self.dice.random() < 0.3:
            return AbortEpisode(one["id"], "as it must")
        t, alive = one["t"], [a for a in self.agents if a not in one["gone"]]
        is_truncated = self.dice.random() < 0.5
        finals = {a: value_of(a, number, t) for a in alive} if is_truncated else {}
        rewards = dict.fromkeys(alive, 1.5)
        return EndEpisode(
            one["id"], t, is_truncated, rewards, final_observations=finals,
            state=self._state(number, t),
        )  # fmt: skip


@pytest.mark.parametrize("case", CASES)
@settings(max_examples=12, deadline=None)
@given(
    seed=st.integers(0, 10**9),
    batch=st.sampled_from([3, 7, 10**9]),
    fields=st.fixed_dictionaries({
        "late_members": st.sampled_from(["allow", "refuse"]),
        "frame_stack": st.sampled_from([1, 3]),
        "agents_return": st.booleans(),
    }),
    is_scaled=st.booleans(),
    cuts_after_frames=st.booleans(),
)  # fmt: skip
def test_rows_are_recorded_as_steps(
    case: str,
    seed: int,
    batch: int,
    fields: dict[str, Any],
    is_scaled: bool,
    cuts_after_frames: bool,
) -> None:
    if CASES[case][2] is TRAINER:
        fields["frame_stack"] = 1
    plan = plan_of(case, **fields)
    names = {p.policy_id for p in plan.agents.values()}
    scales = [{n: RewardScale(0.9) for n in names} if is_scaled else {} for _ in range(2)]
    single, rows = players = [
        Player(
            ScriptedStore(
                plan,
                batch_env_steps=batch,
                seating=CASES[case][2],
                reward_scales=own,
                cuts_after_frames=cuts_after_frames,
            ),
            in_rows=in_rows,
        )
        for in_rows, own in enumerate(scales)
    ]
    dice = Random(seed)
    script = Script(plan, dice)
    for turn in range(dice.randint(2, 12)):
        items = script.message()
        steps = [item for item in items if isinstance(item, Step)]
        bad = [
            msgspec.structs.replace(step, rewards=dict.fromkeys(step.observations, math.inf))
            for step in steps
            if step.t and dice.random() < 0.1
        ]
        replies = []
        for player in players:
            player.store.weights_seq_no = turn
            for one in bad:
                with pytest.raises(ValueMismatch):
                    player.tell([one])
            replies.append(plain_replies(player.tell(items)))
        assert replies[0] == replies[1]
        if dice.random() < 0.1:
            again = [plain_replies(player.tell(steps)) for player in players]
            answers = [r for r, i in zip(replies[0], items, strict=True) if isinstance(i, Step)]
            assert again == [answers, answers]
    for open_one in script.live.values():
        for player in players:
            player.store.abort(open_one["id"])
    assert rows.store.store.counts == single.store.store.counts
    batches = [[all_of(b) for b in player.store.feed.batches] for player in players]
    assert batches[1] == batches[0]
    assert all_of(rows.store.chunks) == all_of(single.store.chunks)
    if not cuts_after_frames:
        sizes = [sum(c.num_env_steps for c in b) for b in rows.store.feed.batches]
        assert set(sizes) <= {batch}
    one, other = ([plain(scale.get_state()) for scale in by.values()] for by in scales)
    assert other == one
