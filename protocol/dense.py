"""Runs small networks that are plain data, in servers and in clients with local inference.

A network reads an observation as one flat array, as `gymnasium.spaces.utils.flatten` makes it:
integers one-hot, the parts of a Dict in the order of their names.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from muxrl.protocol.messages import DenseLayer, GruLayer, Layer
from muxrl.protocol.spaces import Box, Discrete, MultiBinary, MultiDiscrete, Space, parts_of

UNAVAILABLE = float(np.finfo(np.float32).min)
"""Logit of an action that a mask forbids. It is not -inf, which times a probability of 0 is NaN."""


def forward(layers: Sequence[DenseLayer], x: np.ndarray) -> np.ndarray:
    """Applies layers: returns float32 ``[B, out]`` for float32 ``[B, in]``."""
    for layer in layers:
        # `dot` takes half the time of `@`, and adding equal shapes half that of broadcasting.
        x = x.dot(layer.weight) if x.ndim == 2 else x @ layer.weight
        if layer.bias is not None:
            rows = x[0] if x.ndim == 2 and len(x) == 1 else x
            rows += layer.bias
        if layer.activation == "tanh":
            np.tanh(x, out=x)
        elif layer.activation == "relu":
            np.maximum(x, 0.0, out=x)
    return x


def forward_recurrent(
    layers: Sequence[Layer], x: np.ndarray, h: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Applies layers as `forward`, one of which is a `GruLayer`.

    Args:
        layers: of the network.
        x: float32 ``[B, in]``.
        h: the recurrent state, float32 ``[B, hidden]``.

    Returns:
        ``[B, out]``, and the next state.
    """
    for layer in layers:
        if isinstance(layer, GruLayer):
            x = h = gru_step(layer, x, h)
        else:
            x = forward((layer,), x)
    return x, h


def gru_step(layer: GruLayer, x: np.ndarray, h: np.ndarray) -> np.ndarray:
    """Returns the next state ``[B, hidden]`` for ``x [B, in]`` and the state ``h`` before."""
    size = h.shape[1]
    from_x = x @ layer.weight_x
    from_x += layer.bias_x
    from_h = h @ layer.weight_h
    from_h += layer.bias_h
    # sigmoid(y) = (1 + tanh(y / 2)) / 2, which cannot overflow.
    gates = from_x[:, : 2 * size] + from_h[:, : 2 * size]
    gates *= 0.5
    np.tanh(gates, out=gates)
    gates += 1.0
    gates *= 0.5
    new = from_h[:, 2 * size :]
    new *= gates[:, :size]
    new += from_x[:, 2 * size :]
    np.tanh(new, out=new)
    out = h - new
    out *= gates[:, size:]
    out += new
    return out


def flat_reader(space: Space, dtype: type[np.floating] = np.float32) -> Callable[[Any], np.ndarray]:
    """Returns a function that flattens a conforming value of `space` to an array ``[n]``.

    It flattens rows of such values (see `muxrl.protocol.rows`) to ``[..., n]``.
    """
    if isinstance(space, Box):
        num_dims = len(space.shape)

        def flat_box(value: Any) -> np.ndarray:
            lead = value.shape[: value.ndim - num_dims]
            return value.astype(dtype).reshape(*lead, -1)

        return flat_box
    if isinstance(space, Discrete):
        start, one_hot = space.start, np.eye(space.n, dtype=dtype)
        return lambda value: one_hot.take(value - start, axis=0)  # a copy even for one value
    if isinstance(space, MultiBinary):
        return lambda value: value.astype(dtype)
    if isinstance(space, MultiDiscrete):
        ends = np.cumsum(space.nvec)
        starts, size = ends - space.nvec, int(ends[-1])

        def one_hots(value: Any) -> np.ndarray:
            flat = np.zeros((*value.shape[:-1], size), dtype)
            np.put_along_axis(flat, starts + value, 1.0, axis=-1)
            return flat

        return one_hots
    readers = [(key, flat_reader(sub, dtype)) for key, sub in sorted(parts_of(space) or ())]
    return lambda value: np.concatenate([read(value[key]) for key, read in readers], axis=-1)
