from __future__ import annotations

import copy
from typing import Any

import numpy as np
import pytest
import torch
from gymnasium import spaces
from hypothesis import given
from hypothesis import strategies as st
from ray.rllib.algorithms.ppo.torch.ppo_torch_learner import PPOTorchLearner
from ray.rllib.core.columns import Columns
from ray.rllib.core.rl_module.default_model_config import DefaultModelConfig
from ray.rllib.env.single_agent_episode import SingleAgentEpisode
from ray.rllib.evaluation.postprocessing import Postprocessing
from ray.rllib.policy.policy import PolicySpec
from ray.rllib.utils.postprocessing.value_predictions import compute_value_targets
from tests.servers.resumable import Served, plan_of

from muxrl.servers.algorithms.on_policy.episodes_to_batch import advantages_of
from muxrl.servers.algorithms.on_policy.learner import minibatches
from muxrl.servers.algorithms.ppo import PPOConfig

BOX = spaces.Box(-1.0, 1.0, (3,), np.float32)
DISCRETE = spaces.Discrete(4)


def make_learner(learner_class: type[PPOTorchLearner] | None = None, **training: Any) -> Any:
    config = (
        PPOConfig()
        .training(**{"gamma": 0.9, "lambda_": 0.8, **training})
        .multi_agent(
            policies={m: PolicySpec(None, BOX, DISCRETE) for m in ("p", "q")},
            policy_mapping_fn=lambda agent_id, *args, **kwargs: agent_id,
        )
        .rl_module(model_config=DefaultModelConfig(fcnet_hiddens=[8], vf_share_layers=False))
        .debugging(seed=0)
    )
    config.validate()
    of_modules = dict.fromkeys(("p", "q"), (BOX, DISCRETE))
    learner_class = learner_class or config.get_default_learner_class()
    learner = learner_class(
        config=config, module_spec=config.get_multi_rl_module_spec(spaces=of_modules)
    )
    learner.build()
    return learner


def episodes(seed: int, num: int = 6, as_numpy: bool = True) -> list[SingleAgentEpisode]:
    """Pieces of 1 to 9 steps: some terminated, some truncated, some only cut."""
    rng = np.random.default_rng(seed)
    played = []
    for i in range(num):
        length, end = int(rng.integers(1, 10)), int(rng.integers(3))
        played.append(
            SingleAgentEpisode(
                observations=list(rng.uniform(-1, 1, (length + 1, 3)).astype(np.float32)),
                actions=[int(a) for a in rng.integers(4, size=length)],
                rewards=list(rng.normal(size=length)),
                extra_model_outputs={
                    Columns.ACTION_LOGP: list(rng.normal(size=length).astype(np.float32)),
                    Columns.ACTION_DIST_INPUTS: list(rng.normal(size=(length, 4))),
                },
                terminated=end == 0,
                truncated=end == 1,
                len_lookback_buffer=0,
                agent_id="pq"[i % 2],
                module_id="pq"[i % 2],
                multi_agent_episode_id=str(i),
            )
        )
    return [single.to_numpy() for single in played] if as_numpy else played


def columns(learner: Any, played: list[SingleAgentEpisode]) -> dict[str, Any]:
    return learner._learner_connector(
        rl_module=learner.module, batch={}, episodes=played, shared_data={}
    )


@pytest.mark.parametrize("as_numpy", [True, False])
def test_the_columns_are_those_of_rllibs_pipeline_without_its_added_steps(as_numpy: bool) -> None:
    lean, plain = make_learner(), make_learner(PPOTorchLearner)
    plain.module.set_state(lean.module.get_state())
    ours = columns(lean, episodes(0, as_numpy=as_numpy))
    theirs = columns(plain, episodes(0))
    assert lean.is_lean
    assert ours.keys() == theirs.keys() == {"p", "q"}
    for module_id in ours:
        real = theirs[module_id][Columns.LOSS_MASK]
        for name in (
            Columns.OBS,
            Columns.ACTIONS,
            Columns.ACTION_LOGP,
            Columns.ACTION_DIST_INPUTS,
            Postprocessing.VALUE_TARGETS,
        ):
            torch.testing.assert_close(
                ours[module_id][name], theirs[module_id][name][real], msg=name
            )
        advantages = ours[module_id][Postprocessing.ADVANTAGES]
        assert abs(advantages.mean()) < 1e-5
        assert abs(advantages.std(unbiased=False) - 1) < 1e-4


@given(
    pieces=st.lists(st.tuples(st.integers(1, 6), st.booleans()), min_size=1, max_size=5),
    gamma=st.floats(0.0, 1.0),
    lambda_=st.floats(0.0, 1.0),
    seed=st.integers(0, 100),
)
def test_advantages_are_rllibs(
    pieces: list[tuple[int, bool]], gamma: float, lambda_: float, seed: int
) -> None:
    rng = np.random.default_rng(seed)
    lengths = np.array([length for length, _ in pieces])
    values = rng.normal(size=lengths.sum() + len(lengths)).astype(np.float32)
    rewards = rng.normal(size=lengths.sum()).astype(np.float32)
    ours = advantages_of(
        values,
        rewards,
        lengths,
        np.array([is_terminated for _, is_terminated in pieces]),
        gamma=gamma,
        lambda_=lambda_,
    )
    expected, v, r = [], 0, 0
    for length, is_terminated in pieces:
        ends = np.zeros(length + 1)
        ends[length - 1] = 1.0
        its_values = values[v : v + length + 1]
        targets = compute_value_targets(
            its_values,
            np.append(rewards[r : r + length], np.float32(0)),
            ends * is_terminated,
            ends * (not is_terminated),
            gamma,
            lambda_,
        )
        expected.append((targets - its_values)[:length])
        v, r = v + length + 1, r + length
    np.testing.assert_allclose(ours, np.concatenate(expected), atol=1e-4)


@pytest.mark.parametrize(("size", "num"), [(None, 1), (20, 1), (7, 3), (1, 6)])
def test_sequences_stay_whole_in_minibatches(size: int | None, num: int) -> None:
    """Of 20 transitions in 6 rows of up to 4; the last row has none."""
    mask = torch.ones(7, 4, dtype=torch.bool)
    mask[4:, 2:] = False
    mask[6] = False
    batch = {"rows": torch.arange(7), Columns.LOSS_MASK: mask}
    parts = list(minibatches({"m": batch}, size=size, num_epochs=2, should_shuffle=True))
    assert len(parts) == 2 * num
    for epoch in (parts[:num], parts[num:]):
        rows = torch.cat([part.policy_batches["m"]["rows"] for part in epoch])
        assert sorted(rows.tolist()) == list(range(6 + (num == 1)))


@pytest.mark.parametrize("name", ["PPO with an LSTM", "MAPPO with an LSTM"])
@pytest.mark.parametrize(("size", "num_steps"), [(None, 3), (16, 12), (1, 48)])
def test_recurrent_networks_make_as_many_steps_as_their_agents_transitions_ask_for(
    rllib: None, name: str, size: int | None, num_steps: int
) -> None:
    """In three epochs of 64 transitions of two agents, 4 a sequence; RLlib counts env steps."""
    settings = {"train_batch_size_per_learner": 32, "minibatch_size": size, "num_epochs": 3}
    served = Served(plan_of(name, settings=settings))
    learner: Any = served.policies.algo.learner_group._learner
    seen: list[int] = []
    compute = learner.compute_loss_for_module

    def counted(*, batch: Any, **what: Any) -> Any:
        seen.append(int(batch[Columns.LOSS_MASK].sum()))
        return compute(batch=batch, **what)

    learner.compute_loss_for_module = counted
    served.play(0, 4)
    served.end()
    num_batches = sum(seen) // (3 * 64)  # teams play more env steps
    assert num_batches >= 1
    assert sum(seen) == num_batches * 3 * 64
    assert len(seen) == num_batches * num_steps


@given(
    lengths=st.lists(st.integers(1, 30), min_size=1, max_size=3),
    size=st.one_of(st.none(), st.integers(1, 12)),
    num_epochs=st.integers(1, 3),
    should_shuffle=st.booleans(),
)
def test_every_epoch_has_each_transition_once_in_equal_minibatches(
    lengths: list[int], size: int | None, num_epochs: int, should_shuffle: bool
) -> None:
    batches = {str(i): {"x": torch.arange(n), "y": {"z": torch.arange(n)}}
               for i, n in enumerate(lengths)}  # fmt: skip
    cut = minibatches(batches, size=size, num_epochs=num_epochs, should_shuffle=should_shuffle)
    parts = [m.policy_batches for m in cut]
    assert len(parts) == num_epochs * (1 if size is None else -(-max(lengths) // size))
    for i, length in enumerate(lengths):
        mine = [part[str(i)] for part in parts]
        per_epoch = 1 if size is None else -(-length // size)
        assert len(mine) >= num_epochs * per_epoch
        for first in range(0, len(mine) - per_epoch + 1, per_epoch):
            epoch = mine[first : first + per_epoch]
            assert sorted(torch.cat([p["x"] for p in epoch]).tolist()) == list(range(length))
            sizes = [len(p["x"]) for p in epoch]
            assert max(sizes) - min(sizes) <= 1
            assert size is None or max(sizes) <= size
            assert all(torch.equal(p["x"], p["y"]["z"]) for p in epoch)


def test_an_update_counts_its_steps_once_and_moves_every_module() -> None:
    learner = make_learner()
    before = learner.module.get_state()
    played = episodes(1)
    result = learner.update(
        episodes=played, num_epochs=2, minibatch_size=4, shuffle_batch_per_epoch=True
    )
    for module_id in ("p", "q"):
        steps = sum(len(e) for e in played if e.module_id == module_id)
        assert result[module_id]["num_module_steps_trained"].peek() == 2 * steps
        after = learner.module[module_id].get_state()
        assert any((after[k] != before[module_id][k]).any() for k in after)


def test_an_update_moves_the_weights_as_rllibs_does_on_the_same_columns() -> None:
    lean, plain = make_learner(optimizer_epsilon=1e-8), make_learner(PPOTorchLearner)
    plain.module.set_state(lean.module.get_state())
    plain._learner_connector.connectors[:] = lean._learner_connector.connectors
    before = copy.deepcopy(lean.module.get_state())
    for seed in range(3):
        for learner in (lean, plain):
            # One pass: for more of them RLlib cuts minibatches in another way.
            learner.update(episodes=episodes(seed), num_epochs=1)
    theirs = plain.module.get_state()
    for module_id, weights in lean.module.get_state().items():
        for name, value in weights.items():
            if name.endswith(("weight", "bias")):
                assert (value != before[module_id][name]).any(), name
            np.testing.assert_allclose(value, theirs[module_id][name], atol=1e-7, err_msg=name)


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"vf_clip_param": 0.5, "clip_param": 0.1, "entropy_coeff": 0.02},
        {"use_kl_loss": False, "vf_loss_coeff": 0.3},
        {"use_critic": False},
    ],
)
@pytest.mark.parametrize("is_masked", [False, True])
def test_loss_and_metrics_are_rllibs(settings: dict[str, Any], is_masked: bool) -> None:
    learner = make_learner(**settings)
    batch = columns(learner, episodes(4))["p"]
    if is_masked:
        rows = len(batch[Columns.ACTIONS])
        batch[Columns.LOSS_MASK] = torch.arange(rows) % 3 > 0
    found = []
    for loss_of in (type(learner), PPOTorchLearner):
        loss = loss_of.compute_loss_for_module(
            learner,
            module_id="p",
            config=learner.config,
            batch=batch,
            fwd_out=learner.module["p"].forward_train(batch),
        )
        gradients = torch.autograd.grad(
            loss, list(learner.module["p"].parameters()), allow_unused=True
        )
        metrics = learner.metrics.reduce()["p"]
        logged = {name: float(value.peek()) for name, value in metrics.items()}
        logged.pop("num_trainable_parameters")  # of `build`
        found.append((loss, gradients, logged))
    (loss, gradients, metrics), (its_loss, its_gradients, its_metrics) = found
    torch.testing.assert_close(loss, its_loss)
    for mine, its in zip(gradients, its_gradients, strict=True):
        assert mine is its is None or torch.allclose(mine, its, rtol=1e-4, atol=1e-6)
    assert metrics == pytest.approx(its_metrics, rel=1e-4, abs=1e-6)


def test_only_the_last_minibatch_logs_and_the_result_has_its_losses() -> None:
    learner = make_learner()
    logged = []
    log_dict = learner.metrics.log_dict
    learner.metrics.log_dict = lambda *args, **kwargs: (
        logged.append(kwargs["key"]),
        log_dict(*args, **kwargs),
    )
    result = learner.update(episodes=episodes(1), num_epochs=3, minibatch_size=4)
    assert logged == ["p", "q"]
    assert {"policy_loss", "vf_loss", "entropy", "mean_kl_loss"} <= result["p"].keys()


def test_a_module_without_a_gradient_stays_as_it_is() -> None:
    learner = make_learner()
    learner.update(episodes=episodes(1), num_epochs=1)
    before = copy.deepcopy(learner.module.get_state())
    learner.update(episodes=[e for e in episodes(2) if e.module_id == "p"], num_epochs=1)
    after = learner.module.get_state()
    for module_id, moves in (("p", True), ("q", False)):
        weights = [n for n in before[module_id] if n.endswith(("weight", "bias"))]
        moved = [bool((after[module_id][n] != before[module_id][n]).any()) for n in weights]
        assert any(moved) is moves


@pytest.mark.parametrize("size", [1e-6, 1e-2])
def test_a_first_step_is_as_long_as_adams_epsilon_lets_it(size: float) -> None:
    """Of Adam's first step the length is ``lr g / (|g| + epsilon)``."""
    learner = make_learner(optimizer_epsilon=1e-5, lr=0.1)
    before = copy.deepcopy(learner.module.get_state())
    learner.apply_gradients({r: torch.full_like(p, size) for r, p in learner._params.items()})
    for module_id, weights in learner.module.get_state().items():
        for name in (n for n in weights if n.endswith(("weight", "bias"))):
            moved = before[module_id][name] - weights[name]
            np.testing.assert_allclose(moved, 0.1 * size / (size + 1e-5), rtol=1e-3, err_msg=name)


@pytest.mark.parametrize(("limit", "moves"), [(None, True), (1e6, True), (10.0, False)])
def test_a_value_far_from_its_target_is_learned_unless_a_clip_is_set(
    limit: float | None, moves: bool
) -> None:
    settings = {} if limit is None else {"vf_clip_param": limit}
    learner = make_learner(PPOTorchLearner if limit == 1e6 else None, **settings)
    assert learner.config.vf_clip_param == limit
    batch = columns(learner, episodes(2))["p"]
    batch[Postprocessing.VALUE_TARGETS] = batch[Postprocessing.VALUE_TARGETS] + 100.0
    module = learner.module["p"]
    loss = learner.compute_loss_for_module(
        module_id="p", config=learner.config, batch=batch, fwd_out=module.forward_train(batch)
    )
    loss.backward()
    (bias,) = [p for name, p in module.named_parameters() if name == "vf.net.mlp.0.bias"]
    assert (float(bias.grad.abs()) > 100.0) is moves


def test_an_update_says_how_far_it_is_before_each_minibatch() -> None:
    told: list[float] = []
    parts = minibatches(
        {"a": {"x": torch.arange(4)}},
        size=2,
        num_epochs=2,
        should_shuffle=False,
        note_progress=told.append,
    )
    assert [(told[-1], part.policy_batches["a"]["x"].tolist()) for part in parts] == [
        (0.25, [0, 1]),
        (0.5, [2, 3]),
        (0.75, [0, 1]),
        (1.0, [2, 3]),
    ]
