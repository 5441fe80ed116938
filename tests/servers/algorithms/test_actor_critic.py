"""PPO, A2C, IMPALA and APPO: losses, sequences, acting, and when they learn."""

from __future__ import annotations

import copy
from typing import Any

import numpy as np
import pytest
import torch
from tests.servers.algorithms.playing import (
    SPACES,
    Life,
    actors_of,
    batch_of,
    has_its_slope,
    ignores_padding,
    learned,
    make,
    play,
    spec_of,
)
from tests.servers.resumable import T_IN_TEAMS, Served, T, plan_of

from muxrl.servers.agents.log_probs import DISTRIBUTION, LOG_PROB
from muxrl.servers.algorithms.a2c import A2C
from muxrl.servers.algorithms.actor_critic import OWN
from muxrl.servers.algorithms.columns import ACTIONS, ADVANTAGES, TARGETS
from muxrl.servers.algorithms.impala import APPO, IMPALA
from muxrl.servers.algorithms.ppo import PPO
from muxrl.servers.algorithms.rollout import Rollout

ALL = [PPO, A2C, IMPALA, APPO]
LSTM = {"use_lstm": True, "lstm_cell_size": 6, "max_seq_len": 4}
SMALL = {"train_batch_size_per_learner": 20}


# --- losses ---------------------------------------------------------------------------------


def numbers_by_hand(trainer: Any) -> dict[str, Any]:
    """Returns a batch of two steps; pi = (1/4, 3/4) and (1/2, 1/2); V = 1 and -2."""
    logits = torch.log(torch.tensor([[1.0, 3.0], [1.0, 1.0]])).requires_grad_()
    trainer.predicted = lambda batch, net=None: (logits, torch.tensor([1.0, -2.0]))
    old = torch.log(torch.tensor([[1.0, 1.0], [1.0, 1.0]]))
    return {
        ACTIONS: torch.tensor([1, 0]),
        ADVANTAGES: torch.tensor([2.0, -1.0]),
        TARGETS: torch.tensor([4.0, 0.0]),
        DISTRIBUTION: old,
        LOG_PROB: torch.log(torch.tensor([0.5, 0.5])),
        OWN: torch.tensor([True, True]),
        "logits": logits,
    }


ENTROPY = (-(np.log(1 / 4) / 4 + 3 * np.log(3 / 4) / 4) + np.log(2)) / 2
VF_LOSS = (3.0**2 + 2.0**2) / 2


def two_actions() -> Any:
    return spec_of(SPACES["discrete"].__class__(2))


@pytest.mark.parametrize("clip", [0.3, 0.6])
def test_ppos_loss_by_hand(clip: float) -> None:
    trainer = make(PPO, two_actions(), entropy_coeff=0.1, clip_param=clip, kl_coeff=0.2)
    batch = numbers_by_hand(trainer)
    loss, metrics = trainer.loss(batch, is_reported=True)
    ratios = np.array([1.5, 1.0])
    surrogate = np.minimum(ratios * [2.0, -1.0], np.clip(ratios, 1 - clip, 1 + clip) * [2.0, -1.0])
    kl = (0.5 * np.log(0.5 / 0.25) + 0.5 * np.log(0.5 / 0.75)) / 2
    expected = -surrogate.mean() + VF_LOSS - 0.1 * ENTROPY + 0.2 * kl
    assert loss.item() == pytest.approx(expected, rel=1e-5)
    assert float(metrics["mean_kl_loss"]) == pytest.approx(kl)
    assert has_its_slope(trainer, batch)


@pytest.mark.parametrize(("limit", "is_learned"), [(None, True), (10.0, False)])
def test_a_value_far_from_its_target_is_learned_unless_a_clip_is_set(
    limit: float | None, is_learned: bool
) -> None:
    trainer = make(PPO, vf_clip_param=limit)
    batch = numbers_by_hand(trainer)
    values = torch.tensor([1.0, 1.0], requires_grad=True)
    trainer.predicted = lambda batch, net=None: (torch.zeros(2, 3), values)
    batch |= {TARGETS: torch.tensor([100.0, -100.0]), DISTRIBUTION: torch.zeros(2, 3)}
    trainer.loss(batch, is_reported=False)[0].backward()
    assert values.grad is not None
    assert bool((values.grad != 0).all()) == is_learned


def test_without_a_critic_advantages_are_returns() -> None:
    actors = actors_of(PPO, use_critic=False, gamma=0.5, **SMALL)
    trainer: Any = actors.learners["p"]
    pieces = batch_of(actors, np.random.default_rng(0))  # all rewards are 1
    advantages, _ = trainer.estimates_of(Rollout.of(pieces))
    assert advantages[:7] == pytest.approx([2 - 0.5**k for k in range(6, -1, -1)])
    batch = numbers_by_hand(make(PPO, two_actions()))
    trainer.predicted = lambda batch, net=None: (batch["logits"], torch.tensor([1.0, -2.0]))
    metrics = trainer.loss(batch, is_reported=True)[1]
    assert metrics["vf_loss"] == metrics["vf_explained_var"] == 0.0


def test_an_action_that_was_chosen_elsewhere_has_no_part_in_the_policys_loss() -> None:
    trainer = make(PPO, two_actions())
    batch = numbers_by_hand(trainer)
    batch[OWN][1], batch[LOG_PROB][1] = False, torch.inf
    assert float(trainer.loss(batch, is_reported=True)[1]["policy_loss"]) == pytest.approx(-1.3)


@pytest.mark.parametrize("cls", ALL)
def test_logged_actions_leave_the_policy_as_it_is(cls: Any) -> None:
    kl = {"use_kl_loss": True} if cls in (PPO, APPO) else {}
    actors = actors_of(cls, entropy_coeff=0.1, lr=0.01, **SMALL, **kl)
    trainer: Any = actors.learners["p"]
    rng = np.random.default_rng(0)
    before = copy.deepcopy(trainer.weights())
    metrics = learned(actors, Life(actors, rng).play("x" * 20, is_terminated=True))
    assert all(torch.equal(one, before[name]) for name, one in trainer.weights().items())
    assert metrics["p"]["entropy"] == 0.0
    mixed = Life(actors, rng, episode="f").play("xa" * 10, is_terminated=True)
    # Log 3, the most for three actions, is 1.1.
    assert 0.5 < learned(actors, mixed)["p"]["entropy"] < 1.1
    assert not all(torch.equal(one, before[name]) for name, one in trainer.weights().items())


def test_advantages_are_standardised_over_own_actions() -> None:
    actors = actors_of(PPO, **SMALL)
    pieces = batch_of(actors, np.random.default_rng(0), reward=lambda seen, action: float(seen[0]))
    pieces[1].outputs[LOG_PROB][:] = np.inf
    trainer: Any = actors.learners["p"]
    columns = trainer.batch_of(Rollout.of(pieces))
    own = columns[ADVANTAGES][columns[OWN]]
    assert len(own) == 11
    assert float(own.mean()) == pytest.approx(0.0, abs=1e-5)
    assert float(own.std(correction=0)) == pytest.approx(1.0, abs=1e-4)
    raw: Any = make(A2C)
    raw.net.load_state_dict(trainer.net.state_dict())
    columns = raw.batch_of(Rollout.of(pieces))
    assert float(columns[ADVANTAGES].mean()) != pytest.approx(0.0, abs=1e-3)


# --- sequences ------------------------------------------------------------------------------


@pytest.mark.parametrize("cls", ALL)
def test_a_recurrent_policy_computes_the_recorded_log_probabilities_of_its_sequences(
    cls: Any,
) -> None:
    """The log-probabilities that an update computes equal those that were recorded while acting."""
    actors = actors_of(cls, spec_of(has_masks=True), LSTM)
    pieces = batch_of(actors, np.random.default_rng(0))
    trainer: Any = actors.learners["p"]
    rollout = Rollout.of(pieces)
    if cls in (PPO, A2C):
        batch = trainer.batch_of(rollout)
        inputs, _ = trainer.predicted(batch)
        found = trainer.distribution.terms(inputs, batch[ACTIONS]).log_prob[batch["is_step"]]
        assert ignores_padding(trainer, batch)
    else:
        batch = trainer._sequences(rollout)
        _, (_, terms) = trainer.terms(batch)
        found = terms.log_prob[batch["where"]]
    expected = np.sort(np.concatenate([one.outputs[LOG_PROB] for one in pieces]))
    assert np.sort(found.detach().numpy()) == pytest.approx(expected, abs=1e-5)


# --- acting ---------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", SPACES)
@pytest.mark.parametrize(
    "model", [{}, {"fcnet_activation": "silu"}, LSTM], ids=["np", "torch", "lstm"]
)
def test_actions_are_drawn_from_the_distribution_that_is_recorded(kind: str, model: Any) -> None:
    has_masks = kind != "box"
    actors = actors_of(PPO, spec_of(SPACES[kind], has_masks=has_masks), model)
    one = play(actors, 30, np.random.default_rng(0))
    trainer: Any = actors.learners["p"]
    found = trainer.distribution.log_prob(one.outputs[DISTRIBUTION], one.actions)
    assert one.outputs[LOG_PROB] == pytest.approx(found)
    assert np.isfinite(one.outputs[LOG_PROB]).all()
    if has_masks:
        assert (one.outputs[DISTRIBUTION][one.masks[:-1] == 0] < -1e30).all()


# --- learning -------------------------------------------------------------------------------


def test_an_update_says_how_far_it_is_before_each_minibatch() -> None:
    actors = actors_of(PPO, minibatch_size=10, num_epochs=2, **SMALL)
    trainer: Any = actors.learners["p"]
    shares: list[float] = []
    trainer.note_progress = shares.append
    learned(actors, *batch_of(actors, np.random.default_rng(0)))
    assert shares == [0.25, 0.5, 0.75, 1.0]


def test_a_batch_is_one_update_of_a2c_and_of_impala() -> None:
    for cls, num in ((A2C, 1), (IMPALA, 1), (APPO, 2)):
        actors = actors_of(cls, **SMALL)
        learned(actors, *batch_of(actors, np.random.default_rng(0)))
        trainer: Any = actors.learners["p"]
        steps = {float(one["step"]) for one in trainer.steps[""].optimizer.gathered().values()}
        assert steps == {num}


@pytest.mark.parametrize(("algorithm", "num"), [("PPO", 4_000), ("A2C", 200), ("MAPPO", 1_000)])
def test_by_default_an_algorithm_learns_after_so_many_env_steps(algorithm: str, num: int) -> None:
    served = Served(plan_of(algorithm, settings={} if algorithm == "A2C" else {"num_epochs": 1}))
    acting = served.policies.acting
    num_episodes = num // (T_IN_TEAMS if algorithm == "MAPPO" else T)
    first = acting.weights_seq_no
    served.play(0, num_episodes - 1)
    assert (acting.weights_seq_no, acting.num_env_steps_sampled) == (first, 0)
    served.play(num_episodes - 1, num_episodes)
    served.end()
    assert (acting.weights_seq_no, acting.num_env_steps_sampled) == (first + 1, num)
