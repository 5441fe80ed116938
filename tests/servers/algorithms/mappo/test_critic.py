from __future__ import annotations

import numpy as np
import pytest
import torch
from gymnasium import spaces
from hypothesis import given
from hypothesis import strategies as st
from ray.rllib.core.rl_module.default_model_config import DefaultModelConfig

from muxrl.servers.algorithms.mappo.rl_module import Critic, ValueNormalizer

_RETURNS = st.lists(
    st.lists(st.floats(-1e3, 1e3, width=32), min_size=1, max_size=8), min_size=1, max_size=5
)


def make_critic(should_normalize: bool = True) -> Critic:
    config = vars(DefaultModelConfig(fcnet_hiddens=[8], vf_share_layers=False))
    return Critic(3, spaces.Discrete(2), config, should_normalize)


@given(_RETURNS)
def test_statistics_are_those_of_all_returns(batches: list[list[float]]) -> None:
    normalizer = ValueNormalizer()
    for batch in batches:
        normalizer.update(torch.tensor(batch))
    seen = np.concatenate([np.float32(batch) for batch in batches]).astype(np.float64)
    assert float(normalizer.mean) == pytest.approx(seen.mean(), rel=1e-9, abs=1e-9)
    assert float(normalizer.std) == pytest.approx(max(seen.std(), 1e-4), rel=1e-6, abs=1e-6)


def test_normalised_returns_have_mean_0_deviation_1_and_an_inverse() -> None:
    normalizer, returns = ValueNormalizer(), 40.0 + 7.0 * torch.randn(1000)
    normalizer.update(returns)
    normalized = normalizer.normalize(returns)
    assert float(normalized.mean()) == pytest.approx(0.0, abs=1e-5)
    assert float(normalized.std(correction=0)) == pytest.approx(1.0, abs=1e-5)
    assert torch.allclose(normalizer.denormalize(normalized), returns, atol=1e-4)


def test_equal_returns_do_not_divide_by_zero() -> None:
    normalizer = ValueNormalizer()
    normalizer.update(torch.full((10,), 3.0))
    assert torch.equal(normalizer.normalize(torch.full((2,), 3.0)), torch.zeros(2))
    normalizer.update(torch.zeros(0))
    assert float(normalizer.mean) == 3.0


def test_new_statistics_preserve_the_values() -> None:
    critic, x = make_critic(), torch.randn(20, 3)
    critic.learn_units(torch.randn(50) * 3.0 + 10.0)
    before, raw_before = critic.values(x), critic(x)
    critic.learn_units(torch.randn(50) * 90.0 - 200.0)
    assert torch.allclose(critic.values(x), before, atol=1e-3)
    assert not torch.allclose(critic(x), raw_before, atol=1e-1), "its own units have changed"


def test_the_first_returns_set_the_units() -> None:
    critic, x = make_critic(), torch.randn(20, 3)
    raw = critic(x)
    critic.learn_units(torch.tensor([100.0, 102.0]))
    assert torch.equal(critic(x), raw)
    assert torch.allclose(critic.values(x), raw * 1.0 + 101.0)


def test_without_normalisation_values_are_in_units_of_rewards() -> None:
    critic, x = make_critic(should_normalize=False), torch.randn(4, 3)
    critic.learn_units(torch.tensor([100.0, 102.0]))
    assert torch.equal(critic.values(x), critic(x))
    assert torch.equal(critic.normalize(x), x)
    assert not any("normalizer" in key for key in critic.state_dict())


def test_the_statistics_are_in_the_state() -> None:
    critic, copy = make_critic(), make_critic()
    critic.learn_units(torch.tensor([1.0, 5.0]))
    copy.load_state_dict(critic.state_dict())
    x = torch.randn(4, 3)
    assert torch.equal(copy.values(x), critic.values(x))
    assert float(copy.normalizer.std) == 2.0  # type: ignore[union-attr]
