"""SAC's temperature: the weight of entropy, learned to keep the policy at a target entropy.

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
    """Alpha, learned as its logarithm, a parameter of shape ().

    It is not part of the networks: a policy initialized from another begins with its own alpha.

    Args:
        first: initial alpha.
        device: of the parameter.
    """

    def __init__(self, first: float, device: torch.device) -> None:
        self._first = first
        self.log = nn.Parameter(torch.tensor(math.log(first), device=device))

    @property
    def alpha(self) -> Tensor:
        """Alpha, without a gradient."""
        return self.log.detach().exp()

    def loss(self, surplus: Tensor) -> Tensor:
        """Returns the loss; it lowers alpha if the policy's entropy is above its target.

        Args:
            surplus: log-probabilities plus target entropy, without a gradient.
        """
        return -(self.log * surplus).mean()

    def get_state(self) -> dict[str, Any]:
        """Returns the logarithm of alpha, and the setting of the first alpha."""
        return {"log_alpha": self.log.detach(), "first": self._first}

    @torch.no_grad()
    def set_state(self, state: Mapping[str, Any]) -> None:
        """Loads a state, unless the setting of the first alpha has changed since."""
        if state["first"] == self._first:
            self.log.copy_(state["log_alpha"])
