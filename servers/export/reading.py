"""Reads observations in torch as a server does: flattens, scales, normalises and stacks them."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor, nn

from muxrl.protocol.spaces import Space
from muxrl.servers.agents.observing import Reading
from muxrl.servers.export.ports import flatten, ports_of


class TorchReading(nn.Module):
    """Turns a graph's inputs into the observation that a network reads.

    Args:
        space: of the part of an observation that is flattened.
        path: key of that part; "": the whole observation.
        reading: how it is scaled and normalised; None: not at all.
        frame_stack: number of observations that are read at once. If above 1, the inputs have a
            second dimension, of frames, the oldest first.
    """

    _offset: Tensor
    _width: Tensor
    _mean: Tensor
    _deviation: Tensor
    _limit: Tensor

    def __init__(self, space: Space, path: str, reading: Reading | None, frame_stack: int) -> None:
        super().__init__()
        self.space, self.path, self.reading, self.frame_stack = space, path, reading, frame_stack
        self.names = [port.name for port in ports_of(space, path)]
        constants: dict[str, np.ndarray] = {}
        if reading is not None and reading.scale is not None:
            constants |= {"_offset": reading.scale.low, "_width": reading.scale.width}
        if reading is not None and reading.normalizer is not None:
            names = ("_mean", "_deviation", "_limit")
            constants |= dict(zip(names, reading.normalizer.constants(), strict=True))
        for name, constant in constants.items():
            self.register_buffer(name, torch.from_numpy(np.array(constant)))

    def forward(self, given: dict[str, Tensor]) -> Tensor:
        """Returns the network's observation from inputs by name, float32 ``[B, ...]``."""
        if self.frame_stack == 1:
            return self._frame(given)
        frames = self._frame({name: given[name].flatten(0, 1) for name in self.names})
        frames = frames.unflatten(0, (-1, self.frame_stack))
        # Joined as by `numpy.concatenate` on the last axis: a frame's own elements vary fastest.
        return frames.movedim(1, -2).flatten(-2)

    def _frame(self, given: dict[str, Tensor]) -> Tensor:
        """Returns single observations as the network reads them."""
        if self.reading is None:
            return flatten(self.space, self.path, given)
        # With the same steps and dtypes as `Reading`, so that only rounding can differ.
        is_normal = self.reading.normalizer is not None
        obs = flatten(self.space, self.path, given, torch.float64 if is_normal else torch.float32)
        if self.reading.scale is not None:
            obs = (obs - self._offset) / self._width
        if is_normal:
            obs = (obs - self._mean) / self._deviation
            obs = torch.minimum(torch.maximum(obs, -self._limit), self._limit)
        return obs.to(torch.float32)
