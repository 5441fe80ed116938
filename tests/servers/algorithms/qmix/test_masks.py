"""A game whose most valuable action is forbidden where it looks best.

::

    S  action 0, pays 0 ──> X   (looks like Y; there action 2 is forbidden, 0 and 1 pay 1)
       action 1, pays 5, end
       action 2, pays 0, end
    Y  actions 0 and 1 pay 1, action 2 pays 10, end

X and Y are one observation, so the networks learn that action 2 is worth 10 in X, too. Whoever
bootstraps on it takes action 0 in S, for 10; it is worth 1.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from tests.servers.algorithms.qmix.pieces import (
    Part,
    episode,
    make,
    observed,
    rows_of,
    sample_all,
    spec_of,
    tensors_of,
    update,
)

from muxrl.servers.algorithms.qmix.trainer import QMIX
from muxrl.servers.episodes.trajectories import Trajectory, stack

LONG = [pytest.mark.learning, pytest.mark.night]
S, X_OR_Y = np.array([1.0, 0.0]), np.array([0.0, 1.0])
ALL, NOT_2 = [1, 1, 1], [1, 1, 0]

Step = tuple[np.ndarray, list[int], int, float]


def seen(obs: np.ndarray, mask: list[int]) -> Part:
    return observed(obs.tolist(), masks=[mask], last=[-1], obs_dim=2)


def play(*steps: Step) -> Trajectory:
    """An episode that terminates after these observations, masks, actions and rewards."""
    parts = [seen(obs, mask) for obs, mask, _, _ in steps]
    return episode([*parts, parts[-1]], [[s[2]] for s in steps], [s[3] for s in steps])


def learned(mask_in_x: list[int], **settings: Any) -> QMIX:
    """Fits every transition of the game equally often."""
    episodes = [play((S, ALL, 0, 0.0), (X_OR_Y, mask_in_x, action, 1.0)) for action in (0, 1)]
    episodes += [play((S, ALL, action, pays)) for action, pays in ((1, 5.0), (2, 0.0))]
    ends = ((0, 1.0), (1, 1.0), (2, 10.0))
    episodes += [play((X_OR_Y, ALL, action, pays)) for action, pays in ends]
    trainer = make(
        spec_of(1, 2, 3),
        agent="mlp",
        obs_last_action=False,
        hidden_dim=32,
        optimizer_name="adam",
        lr=0.01,
        gamma=1.0,
        target_update_freq=20,
        **settings,
    )
    batch = sample_all(*episodes)
    for _ in range(300):
        update(trainer, batch)
    return trainer


def team_values(trainer: QMIX) -> np.ndarray:
    """Q_tot in S and in X or Y, of every action, ``[2, 3]``."""
    net, obs = trainer.net, tensors_of(stack([seen(S, ALL), seen(X_OR_Y, ALL)]))
    with torch.no_grad():
        values, _ = net.agent.step(obs, None)
        mixed = []
        for action in range(3):
            choice = (values.amax(-1), torch.full((2, 1), action))
            mixed.append(
                net.mixer(
                    values[..., action],
                    obs["state"],
                    obs["alive"],
                    *(choice if net.mixer.mixes_advantages else ()),
                )
            )
    return torch.cat(mixed, -1).numpy()


@pytest.mark.parametrize(
    "settings",
    [
        {"mixer": "qmix"},
        pytest.param({"mixer": "qmix", "double_q": False}, marks=LONG),
        pytest.param({"mixer": "vdn", "td_lambda": 0.5}, marks=pytest.mark.learning),
        pytest.param({"mixer": "qplex"}, marks=pytest.mark.learning),
        pytest.param({"mixer": "none"}, marks=LONG),
    ],
    ids=str,
)
def test_a_forbidden_action_is_neither_bootstrapped_nor_taken(settings: Any) -> None:
    trainer = learned(NOT_2, **settings)
    np.testing.assert_allclose(team_values(trainer), [[1, 5, 0], [1, 1, 10]], atol=0.3)
    x: Part = stack([seen(X_OR_Y, NOT_2)] * 500)
    assert 2 not in trainer.act(rows_of(x, should_explore=False)).actions
    assert set(trainer.act(rows_of(x)).actions.ravel().tolist()) == {0, 1}


def test_the_forbidden_action_would_be_worth_ten() -> None:
    """What the test above would find if masks were ignored."""
    assert team_values(learned(ALL, mixer="vdn"))[0, 0] == pytest.approx(10.0, abs=0.3)
