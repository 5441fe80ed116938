"""Actions of every kind are written for the simulation as networks choose them, and read back."""

from __future__ import annotations

import math

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from tests.servers.scripted_store import make_plan

from muxrl.protocol.rows import row_of, stack
from muxrl.protocol.spaces import (
    ACTION_MASK_KEY,
    Box,
    Discrete,
    MultiBinary,
    MultiDiscrete,
    Space,
    TupleSpace,
)
from muxrl.protocol.values import Mismatch, available_actions, conform, sample, sample_action
from muxrl.servers.agents.action_forms import MAX_COMBINATIONS, action_form
from muxrl.servers.lookup import find

DISCRETE = st.builds(Discrete, st.integers(1, 4), st.integers(-3, 3))
CHOICES = st.one_of(
    DISCRETE,
    st.lists(st.integers(1, 4), min_size=1, max_size=3).map(lambda n: MultiDiscrete(tuple(n))),
    st.integers(1, 4).map(MultiBinary),
    st.lists(DISCRETE, min_size=1, max_size=3).map(lambda s: TupleSpace(tuple(s))),
    st.sampled_from(
        [
            Box((2, 2), "int32", -1, 2),
            Box((3,), "int64", [0, 1, 2], [1, 3, 2]),
            Box((2,), "uint64", 1, 3),
        ]
    ),
)
REAL = st.sampled_from([Box((2, 2), "float32", -3.0, 5.0), Box((), "float32", 0, 1), Box((2, 1))])


@given(space=st.one_of(CHOICES, REAL), as_one_choice=st.booleans(), seed=st.integers(0, 99))
def test_reading_undoes_writing(space: Space, as_one_choice: bool, seed: int) -> None:
    form = action_form(space, as_one_choice=as_one_choice)
    action = conform(space, sample(space, np.random.default_rng(seed)))
    ((chosen,),) = form.read_rows(stack(space, [action], (1, 1)))
    rows = form.write_rows(np.asarray(chosen)[None, None])
    written = row_of(space, rows, (0, 0))
    np.testing.assert_allclose(np.ravel(written), np.ravel(action), rtol=1e-5, atol=1e-6)
    conform(space, written)
    if not isinstance(form.space, Box):
        conform(form.space, chosen + getattr(form.space, "start", 0))
    if as_one_choice and not isinstance(space, Box | Discrete):
        assert isinstance(form.space, Discrete)


@given(space=CHOICES, as_one_choice=st.booleans(), data=st.data())
def test_a_network_may_choose_exactly_what_a_mask_allows(
    space: Space, as_one_choice: bool, data: st.DataObject
) -> None:
    form = action_form(space, as_one_choice=as_one_choice)
    # A mask allows the actions with a number above 0.
    numbers = st.sampled_from([-1.0, 0.0, 0.5, 1.0, 3.0])
    flat = np.array(data.draw(st.lists(numbers, min_size=(k := sum(form.choices)), max_size=k)))
    observation = {ACTION_MASK_KEY: flat.astype(np.float32)}
    mask = form.read_masks(observation[ACTION_MASK_KEY][None, None])[0, 0]
    num = math.prod(form.choices) if form.is_one_choice else sum(form.choices)
    assert mask.shape == (num,)
    assert {*mask.tolist()} <= {0.0, 1.0}
    try:
        allowed = available_actions(space, observation)
    except Mismatch:
        assert not mask.any()
        return
    assert allowed is not None
    parts = np.split(flat, np.cumsum(form.choices)[:-1])
    np.testing.assert_array_equal(mask, form.read_masks([p[None, None] for p in parts])[0, 0])
    for seed in range(5):
        action = sample_action(space, observation, np.random.default_rng(seed))
        ((drawn,),) = form.read_rows(stack(space, [action], (1, 1)))
        rows = (
            drawn
            if form.is_one_choice or isinstance(space, Discrete)
            else (drawn + np.r_[0, np.cumsum(form.choices)[:-1]])
        )
        assert mask[rows].all()
    if form.is_one_choice:
        assert mask.sum() == np.prod([len(part) for part in allowed])


def test_too_many_combinations_stay_several_choices_and_are_refused_by_name() -> None:
    space = MultiDiscrete((40, 40))
    assert action_form(space, as_one_choice=True).space == space
    for name in ("DQN", "SAC"):
        (problem,) = find(name).find_problems(make_plan("a", acts=space, algorithm=name))
        assert f"up to {MAX_COMBINATIONS} combinations as one" in problem
    assert not list(find("PPO").find_problems(make_plan("a", acts=space)))
