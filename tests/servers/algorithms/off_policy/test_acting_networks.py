"""DQN's values and SAC's logits as plain layers are those of RLlib's modules."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from gymnasium import spaces
from ray.rllib.algorithms.dqn import DQNConfig
from ray.rllib.algorithms.dqn.default_dqn_rl_module import QF_PREDS
from ray.rllib.algorithms.dqn.torch.default_dqn_torch_rl_module import DefaultDQNTorchRLModule
from ray.rllib.algorithms.sac import SACConfig
from ray.rllib.core.columns import Columns
from ray.rllib.core.rl_module.rl_module import RLModule, RLModuleSpec
from ray.rllib.policy.policy import PolicySpec

from muxrl.protocol.dense import forward
from muxrl.servers.algorithms.brought import entry_of
from muxrl.servers.algorithms.registry import get_algorithm
from muxrl.servers.rllib.inference import Inference
from muxrl.servers.rllib.numpy_values import numpy_values

SEES = spaces.Box(-1.0, 1.0, (5,), np.float32)
ACTS = spaces.Discrete(4)
ROWS = np.random.default_rng(0).standard_normal((32, 5), np.float32)


def module_of(
    name: str, settings: dict[str, Any] | None = None, sees: spaces.Box = SEES, **model: Any
) -> RLModule:
    config = get_algorithm(name).make_config(settings or {}, model)
    config.multi_agent(
        policies={"p": PolicySpec(None, sees, ACTS)},
        policy_mapping_fn=lambda *args, **kwargs: "p",
    )
    spec = config.get_multi_rl_module_spec(spaces={"p": (sees, ACTS)}, inference_only=True)
    module = spec.build()["p"]
    with torch.no_grad():
        for parameter in module.parameters():
            parameter += 0.5 * torch.randn_like(parameter)
    return module


def answers(name: str, module: Any) -> np.ndarray:
    network = get_algorithm(name).acting_network(module)
    assert network is not None
    return forward(network.layers, ROWS)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("settings", "model"),
    [
        ({}, {}),
        ({"dueling": False}, {}),
        ({}, {"head_fcnet_hiddens": [16, 8], "head_fcnet_activation": "tanh"}),
        ({"dueling": False}, {"head_fcnet_hiddens": [16]}),
    ],
    ids=str,
)
def test_values_of_dqn(settings: dict[str, Any], model: dict[str, Any]) -> None:
    module: Any = module_of("DQN", settings, **model)
    with torch.no_grad():
        expected = module.compute_q_values({Columns.OBS: torch.from_numpy(ROWS)})[QF_PREDS]
    np.testing.assert_allclose(answers("DQN", module), expected.numpy(), rtol=1e-4, atol=1e-5)
    values = numpy_values(module)
    assert values is not None
    np.testing.assert_allclose(values(ROWS), expected.numpy(), rtol=1e-4, atol=1e-5)
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.zero_()
    assert not values(ROWS).any(), "weights that are loaded in place count at once"


def test_what_acts_otherwise_is_asked_itself() -> None:
    class Mine(DefaultDQNTorchRLModule):
        pass

    module: Any = module_of("DQN")
    module.__class__ = Mine
    assert numpy_values(module) is None
    assert numpy_values(module_of("DQN", {"num_atoms": 11})) is None
    assert numpy_values(module_of("SAC")) is None


def test_epsilon_greedy_is_what_it_says() -> None:
    inference: Any = Inference.__new__(Inference)
    inference._rng = np.random.default_rng(0)
    values = np.tile(np.array([1.0, 3.0, -np.inf, 2.0], np.float32), (30_000, 1))
    asked: Any = SimpleNamespace(is_training=True, put_logged=lambda actions: None)
    assert (inference._epsilon_greedy(values, 0.0, asked) == 1).all()
    share = np.bincount(inference._epsilon_greedy(values, 0.3, asked), minlength=4) / 30_000
    np.testing.assert_allclose(share, [0.1, 0.8, 0.0, 0.1], atol=0.01)


def test_logits_of_sac() -> None:
    module = module_of("SAC", fcnet_hiddens=[16, 8])
    with torch.no_grad():
        expected = module.forward_inference({Columns.OBS: torch.from_numpy(ROWS)})
    expected = expected[Columns.ACTION_DIST_INPUTS].numpy()
    np.testing.assert_allclose(answers("SAC", module), expected, rtol=1e-4, atol=1e-5)


def test_what_is_not_known_has_no_network() -> None:
    value_network = get_algorithm("DQN").acting_network
    assert value_network(module_of("DQN", {"num_atoms": 5})) is None
    module: Any = module_of("DQN")
    module.__class__ = type("Mine", (type(module),), {})
    assert value_network(module) is None
    assert get_algorithm("SAC").acting_network(module) is None
    assert get_algorithm("PPO").acting_network(module) is None


@pytest.mark.parametrize("kind", ["flat", "atoms", "image"])
def test_dqn_explores_among_actions_whose_values_are_0(kind: str) -> None:
    """RLlib takes a value of 0 for a forbidden action, and raises if there is no other."""
    sees = spaces.Box(-1.0, 1.0, (42, 42, 3) if kind == "image" else (5,), np.float32)
    settings = {"epsilon": 1.0, "num_atoms": 11 if kind == "atoms" else 1}
    module: Any = module_of("DQN", settings, sees)
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.zero_()
    rows = {Columns.OBS: torch.randn(400, *sees.shape)}
    drawn = module.forward_exploration(rows, t=0)[Columns.ACTIONS]
    assert np.bincount(drawn.numpy(), minlength=4).min() > 50


@pytest.mark.parametrize("name", ["DQN", "SAC"])
def test_the_module_of_a_brought_config_stays(name: str) -> None:
    rllib = {"DQN": DQNConfig, "SAC": SACConfig}[name]
    base = rllib().get_default_rl_module_spec().module_class
    own = type("Own", (base,), {})

    class Brought(rllib):  # type: ignore[misc, valid-type]
        def get_default_rl_module_spec(self) -> RLModuleSpec:
            return RLModuleSpec(own)

    entry = entry_of("brought:Config", Brought, [get_algorithm("DQN"), get_algorithm("SAC")])
    config = entry.make_config({})
    assert config.rl_module_spec.module_class is own
