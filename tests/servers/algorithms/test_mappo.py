"""MAPPO: its loss, the critic's units, the inputs of actor and critic, and what acts."""

from __future__ import annotations

import copy
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tests.servers.algorithms.playing import (
    LSTM,
    SMALL,
    Life,
    central_actors,
    central_spec,
    has_its_slope,
    learned,
    make,
    rows_of,
)

from muxrl.protocol.dense import UNAVAILABLE
from muxrl.servers.agents.keys import ACTION_MASK, AGENT_ID, ALIVE, OBS, STATE
from muxrl.servers.agents.log_probs import DISTRIBUTION, LOG_PROB
from muxrl.servers.algorithms.actor_critic import IS_STEP, OWN
from muxrl.servers.algorithms.columns import ACTIONS, ADVANTAGES, TARGETS
from muxrl.servers.algorithms.mappo import MAPPO, OLD_VALUES, ValueNormalizer
from muxrl.servers.algorithms.rollout import Rollout
from muxrl.servers.training.skipped_updates import NUM_SKIPPED_UPDATES

PAPERS = {"normalize_values": True, "vf_clip_param": 0.2, "huber_delta": 1.0}
NETWORKS = pytest.mark.parametrize("model", [SMALL, LSTM], ids=["mlp", "lstm"])


def trainer_of(actors: Any) -> Any:
    return actors.learners["p"]


def some_rows(num: int = 6, *, has_mask: bool = False) -> dict[str, Any]:
    rows = {
        OBS: torch.randn(num, 3),
        STATE: torch.randn(num, 4),
        AGENT_ID: torch.eye(2)[torch.arange(num) % 2],
        ALIVE: torch.ones(num, 1),
    }
    return rows | ({ACTION_MASK: torch.tensor([[1.0, 0, 1]] * num)} if has_mask else {})


def some_batch(num: int = 5) -> dict[str, Any]:
    return {
        **some_rows(num),
        ACTIONS: torch.arange(num) % 3,
        LOG_PROB: torch.full((num,), -1.0),
        OWN: torch.ones(num, dtype=torch.bool),
        ADVANTAGES: torch.randn(num),
        TARGETS: torch.randn(num),
        OLD_VALUES: torch.randn(num),
    }


def a_batch(actors: Any, rng: np.random.Generator, **how: Any) -> list[Any]:
    """Returns pieces of every kind, 20 env steps together."""
    return [
        Life(actors, rng, "a", "e1").play("aaaa-aa", is_terminated=True, **how),
        Life(actors, rng, "b", "e1").play("a--axaa", is_terminated=True, **how),
        Life(actors, rng, "a", "e2").play("aaaaaaaaa", **how),
        Life(actors, rng, "b", "e3").play("aa-a", is_truncated=True, **how),
    ]


# --- the loss -------------------------------------------------------------------------------


@pytest.mark.parametrize(("clip", "delta"), [(0.1, 0.5), (None, None)])
def test_the_loss_is_the_papers(clip: float | None, delta: float | None) -> None:
    """Without value clipping and Huber's bound the value loss is half the squared error."""
    own = {"vf_clip_param": clip, "huber_delta": delta, "entropy_coeff": 0.03}
    one, limit, bound = make(MAPPO, central_spec(), SMALL, **own), clip or np.inf, delta or np.inf
    batch = some_batch()
    with torch.no_grad():
        loss = float(one.loss(batch, is_reported=True)[0])
        logits, values = (predicted.numpy() for predicted in one.net(batch))
    log_probs = logits - np.log(np.exp(logits).sum(-1, keepdims=True))
    advantages, targets, old = (batch[key].numpy() for key in (ADVANTAGES, TARGETS, OLD_VALUES))
    total = 0.0
    for i in range(5):
        ratio = np.exp(log_probs[i, i % 3] + 1.0)
        total -= min(ratio * advantages[i], np.clip(ratio, 0.8, 1.2) * advantages[i])
        near = old[i] + np.clip(values[i] - old[i], -limit, limit)
        total += max(_huber(value - targets[i], bound) for value in (values[i], near))
        total += 0.03 * float((np.exp(log_probs[i]) * log_probs[i]).sum())
    assert loss == pytest.approx(total / 5, rel=1e-5)
    assert has_its_slope(one, batch)


def _huber(error: float, delta: float) -> float:
    size = abs(error)
    return 0.5 * size**2 if size <= delta else delta * (size - 0.5 * delta)


def test_steps_without_an_action_of_the_policy_train_the_critic_only() -> None:
    one, batch = make(MAPPO, central_spec(), SMALL), some_batch()
    batch[OWN][2:] = False

    def gradients() -> tuple[list[torch.Tensor], list[torch.Tensor]]:
        loss = one.loss(batch, is_reported=False)[0]
        net = one.net
        parts = [net.actor, net.pi], [net.critic, net.vf]
        found = [[p for part in some for p in part.parameters()] for some in parts]
        return tuple(list(torch.autograd.grad(loss, some, retain_graph=True)) for some in found)

    actor, critic = gradients()
    batch[OBS][2:] += 50.0
    batch[ADVANTAGES][2:] = 1e3
    batch[LOG_PROB][2:] = torch.tensor([-5.0, torch.inf, -1e9])
    batch[TARGETS][2:] += 3.0
    now = gradients()
    assert all(map(torch.equal, now[0], actor))
    assert not all(map(torch.equal, now[1], critic))
    batch[OWN][:] = False  # there is no division by 0 without any own step
    assert not any(bool(one.any()) for one in gradients()[0])


@pytest.mark.parametrize("clip_jointly", [False, True])
def test_a_large_error_of_the_critic_shortens_the_actors_step_if_both_are_clipped_as_one(
    clip_jointly: bool,
) -> None:
    actors = central_actors(MAPPO, clip_jointly=clip_jointly, num_epochs=1, vf_loss_coeff=1e4)
    metrics = learned(actors, *a_batch(actors, np.random.default_rng(0)))["p"]
    step = trainer_of(actors).steps[""]
    means = [step.optimizer.state[p]["exp_avg"].flatten() for p in step.params]
    num = len([*trainer_of(actors).net.actor.parameters(), *trainer_of(actors).net.pi.parameters()])
    of_actor, of_critic = (10.0 * torch.cat(some).norm() for some in (means[:num], means[num:]))
    assert float(of_critic) == pytest.approx(10.0, rel=1e-3)
    if clip_jointly:
        assert metrics["gradients_default_optimizer_global_norm"] > 1e3
        assert float(of_actor) < 1e-2
    else:
        assert metrics["gradients_critic_global_norm"] > 1e3
        assert float(of_actor) == pytest.approx(metrics["gradients_actor_global_norm"], rel=1e-3)
        assert float(of_actor) > 1e-2


# --- targets and the critic's units ---------------------------------------------------------


@NETWORKS
def test_targets_and_advantages_are_normalised(model: Any) -> None:
    actors = central_actors(MAPPO, model=model, normalize_values=True, vf_clip_param=0.2)
    one, rng = trainer_of(actors), np.random.default_rng(0)
    rollout = Rollout.of(a_batch(actors, rng, reward=lambda seen, action: 10.0 + seen[OBS][0]))
    columns = one.batch_of(rollout)
    where = columns.get(IS_STEP, torch.ones_like(columns[OWN]))
    targets = columns[TARGETS][where]
    assert float(targets.mean()) == pytest.approx(0.0, abs=1e-5)
    assert float(targets.std(correction=0)) == pytest.approx(1.0, abs=1e-4)
    acted = columns[ADVANTAGES][where & columns[OWN]]
    assert len(acted) == 22  # of 27: four absent, one chosen elsewhere
    assert float(acted.mean()) == pytest.approx(0.0, abs=1e-5)
    assert float(acted.std(correction=0)) == pytest.approx(1.0, abs=1e-4)
    raw = torch.from_numpy(one.values_of(rollout)[rollout.before])
    torch.testing.assert_close(one.net.in_rewards(columns[OLD_VALUES][where]), raw)


def test_targets_beyond_reason_are_left_out() -> None:
    """Absurd targets are left out, since a Huber loss would not show them, and statistics would
    keep them."""
    actors = central_actors(MAPPO, **PAPERS)
    net, rng = trainer_of(actors).net, np.random.default_rng(0)
    learned(actors, *a_batch(actors, rng))
    before = copy.deepcopy(net.state_dict())
    metrics = learned(actors, *a_batch(actors, rng, reward=lambda *_: 1e20))["p"]
    assert all(torch.equal(now, before[name]) for name, now in net.state_dict().items())
    assert metrics[NUM_SKIPPED_UPDATES] == 10
    assert learned(actors, *a_batch(actors, rng))["p"]["vf_loss"] < 1e3


_RETURNS = st.lists(
    st.lists(st.floats(-1e3, 1e3, width=32), min_size=1, max_size=8), min_size=1, max_size=5
)


@given(_RETURNS)
def test_statistics_are_those_of_all_returns(batches: list[list[float]]) -> None:
    normalizer = ValueNormalizer()
    for batch in batches:
        normalizer.update(torch.tensor(batch))
    seen = np.concatenate([np.float32(batch) for batch in batches]).astype(np.float64)
    assert float(normalizer.mean) == pytest.approx(seen.mean(), rel=1e-9, abs=1e-9)
    assert float(normalizer.std) == pytest.approx(max(seen.std(), 1e-4), rel=1e-6, abs=1e-6)


def test_equal_returns_do_not_divide_by_zero() -> None:
    normalizer = ValueNormalizer()
    normalizer.update(torch.full((10,), 3.0))
    assert torch.equal(normalizer.normalize(torch.full((2,), 3.0)), torch.zeros(2))
    normalizer.update(torch.zeros(0))
    assert float(normalizer.mean) == 3.0


@pytest.mark.parametrize("hidden", [[], [6]])
def test_new_statistics_preserve_the_values(hidden: list[int]) -> None:
    model = {**SMALL, "head_fcnet_hiddens": hidden}
    net = make(MAPPO, central_spec(), model, normalize_values=True).net
    rows = some_rows(20)
    raw = net.values_alone(rows)
    units = net.learn_units(torch.tensor([100.0, 102.0]))
    assert units.tolist() == [-1.0, 1.0]
    assert torch.equal(net.values_alone(rows), raw), "the first returns set the units"
    before = net.in_rewards(raw)
    torch.testing.assert_close(before, raw + 101.0)
    net.learn_units(torch.randn(50) * 90.0 - 200.0)
    assert torch.allclose(net.in_rewards(net.values_alone(rows)), before, atol=1e-3)
    assert not torch.allclose(net.values_alone(rows), raw, atol=1e-1), "its own units have changed"


# --- what actor and critic see --------------------------------------------------------------


@pytest.mark.parametrize(
    ("key", "settings", "moves_actor", "moves_critic"),
    [
        (STATE, {}, False, True),
        (OBS, {}, True, True),
        (OBS, {"agent_specific_state": False}, True, False),
        (AGENT_ID, {}, False, True),
        (AGENT_ID, {"agent_specific_state": False}, False, False),
        (AGENT_ID, {"obs_agent_id": True}, True, True),
    ],
)
def test_actor_and_critic_read_their_own_inputs(
    key: str, settings: Any, moves_actor: bool, moves_critic: bool
) -> None:
    net, rows = make(MAPPO, central_spec(), SMALL, **settings).net, some_rows()
    other = {**rows, key: rows[key].flip(-1) + (key != AGENT_ID)}
    moved = [bool((a != b).any()) for a, b in zip(net(rows), net(other), strict=True)]
    assert moved == [moves_actor, moves_critic]


@pytest.mark.parametrize("obs_agent_id", [True, False])
@pytest.mark.parametrize("has_masks", [True, False])
def test_actions_in_numpy_follow_the_learned_network(has_masks: bool, obs_agent_id: bool) -> None:
    spec = central_spec(has_masks=has_masks)
    actors = central_actors(MAPPO, spec, obs_agent_id=obs_agent_id)
    one, rows = trainer_of(actors), some_rows(1, has_mask=has_masks)
    seen = {key: part[0].numpy() for key, part in rows.items()}
    acted = actors.ask("p", rows_of(seen, None, actors))
    with torch.no_grad():
        expected = one.predicted(rows)[0].numpy()
    assert (AGENT_ID in one.acting_keys) == obs_agent_id
    np.testing.assert_allclose(acted.outputs[DISTRIBUTION], expected, rtol=1e-5, atol=1e-6)
    assert (expected[:, 1] == UNAVAILABLE).all() == has_masks


def test_a_value_is_of_the_state_and_in_units_of_rewards() -> None:
    actors = central_actors(MAPPO, normalize_values=True)
    one, rng = trainer_of(actors), np.random.default_rng(0)
    learned(actors, *a_batch(actors, rng, reward=lambda *_: 30.0))
    assert one.value_keys == (STATE, AGENT_ID, OBS)
    rows = some_rows(1)
    seen = {key: part[0].numpy() for key, part in rows.items()}
    value = one.value(rows_of(seen, None, actors))
    with torch.no_grad():
        assert value == pytest.approx(one.net.in_rewards(one.net(rows)[1]).numpy())
    assert value[0] > 10.0


@NETWORKS
def test_the_weights_that_act_are_the_actor_s_alone(model: Any) -> None:
    """The actor fits a team of another size, and to act without training it needs no state."""
    actors = central_actors(MAPPO, model=model)
    learned(actors, *a_batch(actors, np.random.default_rng(0)))
    one, weights = trainer_of(actors), actors.get("weights")["p"]
    assert len(weights) == len([*one.net.actor.parameters(), *one.net.pi.parameters()])
    other = central_actors(MAPPO, central_spec(seed=1), model=model)
    other.load({"p": weights}, 0)
    seen = {key: part[0].numpy() for key, part in some_rows(1).items() if key != STATE}
    start = {key: part[None] for key, part in one.initial_state().items()}
    found = [x.ask("p", rows_of(seen, start, x, is_training=False)) for x in (actors, other)]
    np.testing.assert_array_equal(*(x.outputs[DISTRIBUTION] for x in found))
    for key, after in (found[0].states or {}).items():
        assert np.array_equal(after, start[key]) == key.startswith("critic")
        np.testing.assert_array_equal(after, found[1].states[key])
