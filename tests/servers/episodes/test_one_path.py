"""Episodes are answered and recorded alike, whether their steps come one by one or in rows."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.servers.conversations import Talk
from tests.servers.episodes.players import ForgivingPlayer, all_of, plain, plain_replies
from tests.servers.packing import answers_of, unpacked
from tests.servers.scripted_store import SEES, ScriptedStore, make_plan

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
from muxrl.servers.algorithms.settings.actor_critic import CENTRAL
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
"""By agent: the space of its observations."""
EPISODES = ("e0", "e1", "e2", "e3")
TRAINER = Seating(inputs=(Own, Mask, State), is_scaled=False)

# The agents, the team's members, the seating, and the size of the state that is sent.
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
    acts: dict[str, dict[str, Space]] = {
        "team of choices": {
            "a": MultiDiscrete((2, 3)), "c": TupleSpace((Discrete(2), Discrete(2, start=1))),
        },
        "joint critics": {"c": Box((3,), low=-3.0, high=1.0)},
        "alone": {"d": MultiBinary(2)},
    }  # fmt: skip
    sees, does = {a: KINDS[a] for a in agents}, acts.get(case, {})
    plan = make_plan(sees, groups, state_size=state_size, acts=does, **fields)
    for a, own in plan.agents.items():
        if not (own.group and seating.forms_teams):
            # Agents that observe different spaces do not share a policy.
            policy_id = str(own.observation_space)
            plan.agents[a] = dataclasses.replace(own, policy_id=policy_id)
    return plan


def value_of(agent: str, number: int, t: int) -> Any:
    """Returns an agent's observation in an episode."""
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


@pytest.mark.parametrize("case", CASES)
@settings(max_examples=12, deadline=None)
@given(
    seed=st.integers(0, 10**9),
    num_frames=st.integers(2, 12),
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
    num_frames: int,
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
        ForgivingPlayer(
            ScriptedStore(
                plan,
                batch_env_steps=batch,
                seating=CASES[case][2],
                reward_scales=own,
                cuts_after_frames=cuts_after_frames,
            )
        )
        for own in scales
    ]
    for turn, items in enumerate(Talk(plan, seed, num_frames, logs_actions=False).frames()):
        replies = []
        for player, told in zip(players, (unpacked(plan.agents, items), items), strict=True):
            player.store.weights_seq_no = turn
            answers = [player.accept(one) for one in told]
            player.store.store.finish_frame()
            replies.append(plain_replies(answers_of(plan.agents, told, answers)))
        assert replies[0] == replies[1]
    for episode_id in list(single.store.store._table.slot_of):
        for player in players:
            player.store.abort(episode_id)
    assert single.num_in_rows == 0
    assert rows.store.store.counts == single.store.store.counts
    batches = [[all_of(b) for b in player.store.feed.batches] for player in players]
    assert batches[1] == batches[0]
    assert all_of(rows.store.chunks) == all_of(single.store.chunks)
    if not cuts_after_frames:
        sizes = [sum(c.num_env_steps for c in b) for b in rows.store.feed.batches]
        assert set(sizes) <= {batch}
    one, other = ([plain(scale.get_state()) for scale in by.values()] for by in scales)
    assert other == one
