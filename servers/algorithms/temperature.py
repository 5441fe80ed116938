"""The weight of entropy, learned so that the policy keeps a target entropy.

Haarnoja et al. 2018 (arXiv 1812.05905), section 5.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

ALPHA = "alpha"


class Temperature:
    """Alpha, by its logarithm, a parameter of shape ().

    It is no part of the networks: one that begins with another's begins with its own temperature.

    Args:
        first: alpha at the beginning.
        device: of the parameter.
    """

    def __init__(self, first: float, device: torch.device) -> None:
        self._first = first
        self.log = nn.Parameter(torch.tensor(math.log(first), device=device))

    @property
    def alpha(self) -> Tensor:
        """Without a gradient."""
        return self.log.detach().exp()

    def loss(self, surplus: Tensor) -> Tensor:
        """Returns what has alpha fall where the policy's entropy is above its target.

        Args:
            surplus: log-probabilities and target entropy, added up, without a gradient.
        """
        return -(self.log * surplus).mean()

    def get_state(self) -> dict[str, Any]:
        """Returns what `set_state` reads."""
        return {"log_alpha": self.log.detach(), "first": self._first}

    @torch.no_grad()
    def set_state(self, state: Mapping[str, Any]) -> None:
        """Continues from a state, unless the setting of the first alpha has changed since."""
        if state["first"] == self._first:
            self.log.copy_(state["log_alpha"])
