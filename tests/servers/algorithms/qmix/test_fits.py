"""How well QMIX's and QPLEX's networks fit a payoff table that they learn from cell by cell.

A fit better than monotonic mixing allows would be a bug, however good it looks; so would be one
worse than a sum. In between, descent may find the best fit with another action on top than the best
of all: in penalty with k = -25 that can be the optimum, 10.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from tests.nights import at_night
from tests.servers.algorithms.qmix.pieces import (
    episode,
    make,
    observed,
    sample_all,
    spec_of,
    tensors_of,
    update,
)

from muxrl.experiments.simulations.matrix_game import Game, payoffs_of
from muxrl.experiments.studies.matrix_games.cases import additive_fit, monotonic_fits
from muxrl.servers.agents.keys import OBS
from muxrl.servers.algorithms.qmix.trainer import QMIX

SPEC = spec_of(obs_dim=2, num_actions=3, state_size=1)


def every_cell_once(payoffs: np.ndarray) -> dict[str, Any]:
    seen = observed([1, 0], [0, 1], masks=np.ones((2, 3)), state=[1.0], obs_dim=2)
    return sample_all(
        *(episode([seen] * 2, [actions], [payoff]) for actions, payoff in np.ndenumerate(payoffs))
    )


def fitted_table(trainer: QMIX, batch: dict[str, Any]) -> tuple[np.ndarray, tuple[int, ...]]:
    """Returns Q_tot of every joint action, and the greedy joint action."""
    net, obs = trainer.net, tensors_of(batch[OBS])
    with torch.no_grad():
        values = net.agent.values(net.agent.inputs_of(obs))[0, 0]
        joint = torch.cartesian_prod(*[torch.arange(3)] * 2)
        both, num = values[torch.arange(2), joint], len(joint)
        choice = (values.amax(-1).expand(num, -1), joint) if net.mixer.mixes_advantages else ()
        table = net.mixer(both, torch.ones(num, 1), torch.ones(num, 2), *choice)
    assert obs["state"].unique().tolist() == [1.0]
    return table.view(3, 3).numpy(), tuple(values.argmax(-1).tolist())


def made(seed: int, **settings: Any) -> QMIX:
    settings = {"agent": "mlp", "optimizer_name": "adam", "lr": 0.002, "gamma": 0.99} | settings
    return make(replace(SPEC, seed=seed), **settings)


def fit(trainer: QMIX, batch: dict[str, Any], num_updates: int) -> None:
    for _ in range(num_updates):
        update(trainer, batch)


@pytest.mark.learning
@pytest.mark.timeout(400)
@pytest.mark.parametrize(
    ("game", "k"),
    at_night([("climbing", 0.0), ("penalty", -25.0), ("penalty", -100.0)], [("penalty", -100.0)]),
)
def test_the_best_fit_lies_between_sum_and_monotonic(game: Game, k: float) -> None:
    payoffs = payoffs_of(game, k)
    batch = every_cell_once(payoffs)
    trainer = made(0)
    fit(trainer, batch, 600)
    table, greedy = fitted_table(trainer, batch)
    error = float(((table - payoffs) ** 2).sum())
    bounds = {fit.actions: fit.squared_error for fit in monotonic_fits(payoffs)}
    assert error >= 0.999 * bounds[greedy], (greedy, table)
    assert error <= 1.02 * additive_fit(payoffs).squared_error, (greedy, table)
    assert greedy == np.unravel_index(table.argmax(), table.shape)


@pytest.mark.learning
@pytest.mark.timeout(400)
def test_qplex_holds_climbings_optimum() -> None:
    """QPLEX represents the payoffs of climbing, which monotonic mixing cannot.

    The best monotonic fit is off by 997 and chooses the payoff 5. All of six seeds chose the
    optimum by update 600.
    """
    payoffs = payoffs_of("climbing")
    assert monotonic_fits(payoffs)[0].payoff == 5.0
    batch = every_cell_once(payoffs)
    trainer = made(0, mixer="qplex", lr=0.001)
    fit(trainer, batch, 600)
    held = []
    for _ in range(5):
        fit(trainer, batch, 30)
        table, greedy = fitted_table(trainer, batch)
        held.append(payoffs[greedy])
    assert held == [11.0] * 5
    assert ((table - payoffs) ** 2).sum() < 10.0
    assert np.unravel_index(table.argmax(), table.shape) == (0, 0)
