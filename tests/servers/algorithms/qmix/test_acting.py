"""How a team acts, in numpy and in torch, and with weights from another trainer."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from tests.servers.algorithms.qmix.pieces import (
    Part,
    make,
    observed,
    play,
    rows_of,
    sample_all,
    tensors_of,
    update,
)

from muxrl.servers.agents.keys import LAST_ACTION, OBS
from muxrl.servers.algorithms.qmix.networks import HIDDEN
from muxrl.servers.algorithms.qmix.trainer import QMIX
from muxrl.servers.episodes.trajectories import stack
from muxrl.servers.trainers.interface import Rows

SHAPES = [
    {"agent": agent, "obs_last_action": last, "obs_agent_id": own}
    for agent in ("gru", "mlp")
    for last in (False, True)
    for own in (False, True)
]


def observe(num: int, rng: np.random.Generator, last: tuple[float, float] = (-1, -1)) -> Part:
    """Returns observations ``[num, ...]``; the second member may choose actions 1 and 3 only."""
    masks = ((1, 1, 0, 0), (0, 1, 0, 1))
    seen = [
        observed(rng.normal(size=3), rng.normal(size=2), masks=masks, last=last) for _ in range(num)
    ]
    stacked: Part = stack(seen)
    return stacked


def asked(trainer: QMIX, parts: Part, states: Any = None, **more: Any) -> Rows:
    """Returns rows of teams at their first step, or with these recurrent states."""
    num = len(parts["obs"])
    begin = {key: np.stack([one] * num) for key, one in trainer.initial_state().items()}
    return rows_of(parts, states or begin or None, **more)


def act(trainer: QMIX, parts: Part, **more: Any) -> np.ndarray:
    actions: np.ndarray = trainer.act(asked(trainer, parts, **more)).actions
    return actions


@pytest.mark.parametrize("agent", ["gru", "mlp"])
@pytest.mark.parametrize("epsilon", [0.0, 0.5, 1.0])
def test_actions_are_available_ones(agent: str, epsilon: float) -> None:
    trainer = make(agent=agent, epsilon=epsilon)
    seen = observe(200, np.random.default_rng(0))
    for should_explore in (True, False):
        actions = act(trainer, seen, should_explore=should_explore)
        assert (actions.shape, actions.dtype) == ((200, 2), np.int64)
        assert set(actions[:, 0].tolist()) <= {0, 1}
        assert set(actions[:, 1].tolist()) <= {1, 3}


def test_an_absent_members_action_is_zero() -> None:
    trainer = make(epsilon=1.0)
    seen = stack([observed(np.ones(3), None)] * 20)
    assert not act(trainer, seen)[:, 1].any()


def test_exploration_is_uniform_and_each_member_draws_for_itself() -> None:
    trainer, num = make(agent="mlp", epsilon=1.0), 8000
    actions = act(trainer, observe(num, np.random.default_rng(0)))
    pairs, counts = np.unique(actions, axis=0, return_counts=True)
    assert pairs.tolist() == [[0, 1], [0, 3], [1, 1], [1, 3]]
    assert np.abs(counts / num - 0.25).max() < 0.03


@pytest.mark.parametrize(
    ("env_steps", "expected"), [(0, 1.0), (25_000, 0.525), (50_000, 0.05), (10**6, 0.05)]
)
def test_epsilon_follows_its_schedule(env_steps: int, expected: float) -> None:
    trainer = make(agent="mlp")
    trainer.env_steps = env_steps
    assert trainer.epsilon == pytest.approx(expected)
    seen = stack([observed(np.ones(3), np.ones(2))] * 4000)
    greedy = act(trainer, seen, should_explore=False)
    explored = act(trainer, seen, env_steps=env_steps)
    assert (greedy != explored)[:, 0].mean() == pytest.approx(expected / 2, abs=0.03)
    copy = make(agent="mlp")
    copy.begin_acting()
    copy.follow(trainer)
    assert copy.epsilon == trainer.epsilon


def test_actions_are_drawn_from_the_rows_generator_alone() -> None:
    trainer, seen = make(epsilon=0.5), observe(20, np.random.default_rng(0))
    first = act(trainer, seen, seed=3)
    torch.manual_seed(99)
    np.testing.assert_array_equal(act(trainer, seen, seed=3), first)
    assert (act(trainer, seen, seed=4) != first).any()


@pytest.mark.parametrize("settings", SHAPES, ids=str)
def test_acting_step_by_step_is_what_is_learned_from(settings: dict[str, Any]) -> None:
    trainer, rng = make(**settings), np.random.default_rng(0)
    steps = [observe(4, rng, last) for last in ((-1, -1), (1, -1), (0, 3), (1, 1))]
    agent = trainer.net.agent
    assert (LAST_ACTION in trainer.acting_keys) == settings["obs_last_action"]
    with torch.no_grad():
        together = {key: np.stack([step[key] for step in steps], 1) for key in steps[0]}
        expected = agent.values(agent.inputs_of(tensors_of(together))).numpy()
    assert expected.shape == (4, 4, 2, 4)
    states = None
    for t, parts in enumerate(steps):
        rows = asked(trainer, parts, states)
        values, _ = trainer.values(rows)
        np.testing.assert_allclose(values, expected[:, t], rtol=1e-4, atol=1e-6)
        acted = trainer.act(rows)
        states = acted.states
        assert (states is None) == (settings["agent"] == "mlp")
        if states is not None:
            assert states[HIDDEN].shape == (4, 2, 64)


def test_acting_follows_what_is_learned() -> None:
    learner, copy = make(), make()
    copy.begin_acting()
    assert set(dict(copy.net.named_children())) == {"agent"}
    rows = asked(learner, observe(5, np.random.default_rng(0)))
    before = copy.values(rows)[0]
    for _ in range(2):
        update(learner, sample_all(play(3)))
    np.testing.assert_array_equal(copy.values(rows)[0], before)
    copy.follow(learner)
    np.testing.assert_array_equal(copy.values(rows)[0], learner.values(rows)[0])
    assert (copy.values(rows)[0] != before).any()
    other = make()
    other.set_weights(learner.weights())
    np.testing.assert_array_equal(other.values(rows)[0], learner.values(rows)[0])


def test_large_passes_are_the_same_in_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    """torch computes large passes for a GPU, with the same values as numpy."""

    class Beside:
        is_old = False

        def asked(self, ask: Any, net: Any, seen: Any) -> np.ndarray | None:
            if len(seen[OBS]) <= 3:
                return None
            asked_of.append(len(seen[OBS]))
            with torch.inference_mode():
                found: np.ndarray = ask(net, tensors_of(seen)).numpy()
            return found

    asked_of: list[int] = []
    trainer, rng = make(), np.random.default_rng(0)
    states = {HIDDEN: rng.normal(size=(5, 2, 64)).astype(np.float32)}
    few = {HIDDEN: states[HIDDEN][:3]}
    parts = observe(5, rng, (1, 3))
    rows = asked(trainer, parts, states)
    some = asked(trainer, {key: part[:3] for key, part in parts.items()}, few)
    expected, after = trainer.values(rows)
    monkeypatch.setattr(trainer, "_gpu", Beside())
    for given in (rows, some):
        values, left = trainer.values(given)
        np.testing.assert_allclose(values, expected[: len(given)], rtol=1e-4, atol=1e-6)
        assert after is not None
        np.testing.assert_allclose(left, after[: len(given)], rtol=1e-4, atol=1e-6)
    assert asked_of == [5]


def test_the_inputs_are_observation_last_action_and_id() -> None:
    steps = [observed([1, 2, 3], [4, 5], last=(-1, 2)), observed(None, [6, 7])]
    obs = tensors_of({key: part[None] for key, part in stack(steps).items()})
    assert make().net.agent.inputs_of(obs).tolist() == [  # the first axis is time
        [[[1, 2, 3, 0, 0, 0, 0, 1, 0], [4, 5, 0, 0, 0, 1, 0, 0, 1]]],
        [[[0, 0, 0, 0, 0, 0, 0, 1, 0], [6, 7, 0, 0, 0, 0, 0, 0, 1]]],
    ]
    bare = make(obs_agent_id=False, obs_last_action=False).net.agent
    assert bare.inputs_of(obs).tolist() == [[[[1, 2, 3], [4, 5, 0]]], [[[0, 0, 0], [6, 7, 0]]]]


def test_a_gru_is_called_to_train_where_it_learns(monkeypatch: pytest.MonkeyPatch) -> None:
    """cuDNN computes the gradient of a GRU on a GPU only if the GRU was called in training mode."""
    called: list[bool] = []
    cell = torch.gru

    def seen(x: torch.Tensor, *others: Any) -> Any:
        called.append(others[5])
        return cell(x, *others)

    monkeypatch.setattr(torch, "gru", seen)
    make(agent="gru").loss(tensors_of(sample_all(play(3))))
    assert sorted(called) == [False, True]
