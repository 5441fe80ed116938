"""Networks made from settings: layers that numpy computes, images, sequences."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from muxrl.protocol.dense import forward
from muxrl.servers.agents.keys import OBS
from muxrl.servers.algorithms.actor_critic import ActorCriticNet
from muxrl.servers.algorithms.distributions import Categorical, Gaussian
from muxrl.servers.algorithms.networks import Encoder, Pixels, dense_layers, head
from muxrl.servers.algorithms.settings.model import ModelSettings


@pytest.mark.parametrize(
    "model",
    [
        {},
        {"fcnet_activation": "relu", "head_fcnet_hiddens": [5]},
        {"fcnet_activation": "linear", "head_fcnet_hiddens": [5], "head_fcnet_activation": "tanh"},
        {"fcnet_hiddens": []},
    ],
)
def test_numpy_computes_the_layers_as_torch_does_and_follows_them(model: dict[str, Any]) -> None:
    settings = ModelSettings(**model)
    encoder = Encoder(settings, (3,))
    net = nn.Sequential(encoder.layers, head(settings, encoder.size, 4))
    layers = dense_layers(net)
    assert layers is not None
    x = np.random.default_rng(0).normal(size=(6, 3)).astype(np.float32)
    for _ in range(2):
        with torch.no_grad():
            assert forward(layers, x) == pytest.approx(net(torch.from_numpy(x)).numpy(), abs=1e-5)
            for parameter in net.parameters():  # changes the weights in place
                parameter.mul_(0.5)


@pytest.mark.parametrize(
    "model",
    [{"fcnet_activation": "silu"}, {"fcnet_use_layernorm": True}, {"fcnet_activation": "GELU"}],
)
def test_layers_that_numpy_does_not_know_are_left_to_torch(model: dict[str, Any]) -> None:
    encoder = Encoder(ModelSettings(**model), (3,))
    assert dense_layers(encoder.layers) is None
    assert encoder(torch.zeros(2, 3)).shape == (2, 64)


@pytest.mark.parametrize("name", ["softplus", "Linear7", "functional"])
def test_an_activation_that_torch_lacks_is_refused(name: str) -> None:
    with pytest.raises(ValueError, match="is no activation"):
        Encoder(ModelSettings(fcnet_activation=name), (3,))


def test_initializers_are_torchs_by_name() -> None:
    model = ModelSettings(
        fcnet_kernel_initializer="constant_",
        fcnet_kernel_initializer_kwargs={"val": 0.5},
        fcnet_bias_initializer="zeros_",
    )
    first: Any = Encoder(model, (3,)).layers[0]
    assert (first.weight == 0.5).all()
    assert (first.bias == 0.0).all()
    with pytest.raises(ValueError, match=r"torch\.nn\.init"):
        Encoder(ModelSettings(fcnet_kernel_initializer="xavier_uniform"), (3,))


SQUARES = [(side, side, 2) for side in (3, 8, 10, 11, 20, 42, 64, 84, 96, 100, 128)]


@pytest.mark.parametrize("shape", [*SQUARES, (6, 7, 2), (210, 160, 3), (1, 5, 1)])
def test_every_image_has_convolutions(shape: tuple[int, ...]) -> None:
    pixels = Pixels(ModelSettings(), shape)
    assert pixels(torch.zeros(2, *shape)).shape == (2, pixels.size)
    assert shape in SQUARES or pixels.size == 256


def test_filters_of_ones_own_are_taken_and_padded_as_tensorflow_does() -> None:
    model = ModelSettings(conv_filters=[[4, 3, 2], [8, [2, 2], 1, "valid"]])
    assert Pixels(model, (7, 9, 1)).size == 8 * 3 * 4
    with pytest.raises(ValueError, match="leave nothing"):
        Pixels(ModelSettings(conv_filters=[[4, 9, 1, "valid"]]), (7, 9, 1))


@pytest.mark.parametrize("is_shared", [False, True])
def test_a_sequence_is_its_steps_one_after_another(is_shared: bool) -> None:
    model = ModelSettings(use_lstm=True, lstm_cell_size=5, vf_share_layers=is_shared)
    net = ActorCriticNet(model, (3,), Categorical(2))
    obs = torch.randn(2, 6, 3)
    names = ["actor"] if is_shared else ["actor", "critic"]
    states = {f"{name}.{part}": torch.zeros(2, 5) for name in names for part in "hc"}
    inputs, values, after = net.unroll({OBS: obs}, states)
    assert inputs.shape == (2, 6, 2)
    assert values.shape == (2, 6)
    for t in range(6):
        predicted, worth, states = net.unroll({OBS: obs[:, t : t + 1]}, states)
        torch.testing.assert_close(predicted[:, 0], inputs[:, t])
        torch.testing.assert_close(worth[:, 0], values[:, t])
    for key, one in after.items():
        torch.testing.assert_close(states[key], one)


def test_a_free_deviation_is_one_for_all_and_is_clipped() -> None:
    net = ActorCriticNet(
        ModelSettings(free_log_std=True, log_std_clip_param=2.0), (3,), Gaussian(2)
    )
    assert net.log_std is not None
    net.log_std.data[:] = torch.tensor([0.5, 9.0])
    inputs, _ = net({OBS: torch.randn(4, 3)})
    assert inputs[:, 2:].tolist() == [[0.5, 2.0]] * 4
