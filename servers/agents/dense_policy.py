"""Policies of plain layers in numpy, for the step path; several of one form can run at once.

Acting for a few agents needs just a few products of tiny matrices, and torch takes about 10 µs to
start each.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from muxrl.protocol.dense import UNAVAILABLE, forward
from muxrl.protocol.messages import DenseLayer, PolicyNetwork
from muxrl.servers.agents.keys import ACTION_MASK

_MAX_KNOWN = 16
"""Most selections of a `Stack` to keep: a turn mostly needs the same ones as the turn before."""


@dataclass(frozen=True)
class DensePolicy:
    """Maps observations ``[B, obs]`` to a number for each action ``[B, k]``, float32 both.

    Attributes:
        layers: in order.
        keys: the parts of a Dict observation that it acts on; its argument is then a dict; None:
            its argument is an array.
    """

    layers: Sequence[DenseLayer]
    keys: tuple[str, ...] | None

    @classmethod
    def of(cls, network: PolicyNetwork | None, keys: tuple[str, ...] | None) -> DensePolicy | None:
        """Returns a network's policy; None: it has other layers, or other inputs."""
        if network is None or network.reads_last_action or network.reads_member_id:
            return None
        layers = [layer for layer in network.layers if isinstance(layer, DenseLayer)]
        return cls(layers, keys) if len(layers) == len(network.layers) else None

    def __call__(self, obs: Any) -> np.ndarray:
        if self.keys is None:
            return forward(self.layers, obs)
        parts = [obs[key] for key in self.keys if key != ACTION_MASK]
        x = parts[0] if len(parts) == 1 else np.concatenate(parts, axis=-1)
        logits = forward(self.layers, x)
        if ACTION_MASK in self.keys:
            logits[obs[ACTION_MASK] <= 0] = UNAVAILABLE
        return logits

    @property
    def form(self) -> Any:
        """Equal for policies that differ in nothing but their numbers."""
        layers = [(one.weight.shape, one.bias is None, one.activation) for one in self.layers]
        return self.keys, tuple(layers)


class Stack:
    """Policies of one form in one array, so that several can run at once.

    Args:
        policies: their numbers are copied.
    """

    def __init__(self, policies: Sequence[DensePolicy]) -> None:
        self._keys = policies[0].keys
        layers = zip(*(policy.layers for policy in policies), strict=True)
        # In torch's order, as in the networks: in another order, BLAS may round differently.
        self._layers = [
            (
                np.stack([one.weight.T for one in of_all]),
                None if of_all[0].bias is None else np.stack([one.bias for one in of_all]),
                of_all[0].activation,
            )
            for of_all in layers
        ]
        self._known: dict[tuple[int, ...], DensePolicy] = {}

    def of(self, places: tuple[int, ...]) -> DensePolicy:
        """Returns some of the policies as one, which maps ``[m, B, obs]`` to ``[m, B, k]``."""
        if places not in self._known:
            if len(self._known) >= _MAX_KNOWN:
                self._known.clear()
            which = np.array(places)
            layers = [
                DenseLayer(
                    weight[which].transpose(0, 2, 1),
                    None if bias is None else bias[which][:, None],
                    activation,
                )
                for weight, bias, activation in self._layers
            ]
            self._known[places] = DensePolicy(layers, self._keys)
        return self._known[places]
