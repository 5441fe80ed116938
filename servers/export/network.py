"""The torch module behind a trainer's ``act``, and how it is asked; see the trainer's interface."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from muxrl.protocol.dense import UNAVAILABLE
from muxrl.servers.agents.keys import ACTION_MASK, OBS

NETWORK = "network"


class CannotExport(ValueError):
    """A policy cannot become a file; the sentence says why."""


class Network(nn.Module):
    """A trainer's ``network()``.

    Attributes:
        module: what that returns.
        keys: parts of an observation that it takes, in their order.
        scores_name: of what it returns.
        greedy: makes actions of a Box out of that; None: it is them.
        initial: recurrent state of one agent, also of a team's member; {}: there is none.

    Args:
        trainer: of the policy.
        is_team: whether it acts for teams.

    Raises:
        CannotExport: it has no such method, or the method fails.
    """

    def __init__(self, trainer: Any, *, is_team: bool) -> None:
        super().__init__()
        name = type(trainer).__name__
        if not callable(getattr(trainer, NETWORK, None)):
            if is_team:
                raise CannotExport(f"{name} acts for a team, and a file acts for one agent")
            raise CannotExport(
                f"{name} has no method {NETWORK}(), which returns the torch module behind act()"
            )
        self._name = f"{name}.{NETWORK}()"
        self.keys = [k for k in getattr(trainer, "acting_keys", (OBS,)) if k != ACTION_MASK]
        self.greedy = getattr(trainer, "greedy", None)
        self.scores_name: str = getattr(trainer, "scores_name", "scores")
        try:
            module = trainer.network()
            state = trainer.initial_state() if hasattr(trainer, "initial_state") else {}
        except (Exception, SystemExit) as error:  # the user's code
            raise self.failed(error) from error
        if not isinstance(module, nn.Module):
            kind = type(module).__name__
            raise CannotExport(f"{self._name}: expected a torch.nn.Module, got {kind}")
        self.module: Any = module
        self.initial = {k: np.asarray(v)[0] if is_team else v for k, v in state.items()}

    def failed(self, error: BaseException) -> CannotExport:
        """Returns the refusal of a network that raises."""
        return CannotExport(f"{self._name}: {type(error).__name__}: {error}")

    def ask(
        self, seen: Mapping[str, Tensor], state: Mapping[str, Tensor], width: int, what: object
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """Returns scores ``[B, width]``, and those parts of the next state that it changes: a
        critic's, on which no action depends, it does not.

        Args:
            seen: each part of an observation, ``[B, ...]``.
            state: before it; what is lacking is as at the beginning.
            width: how many scores are needed; what goes through `greedy` may have any number.
            what: that they are for.

        Raises:
            CannotExport: there are others.
        """
        parts = [seen[key] for key in self.keys]
        after: dict[str, Tensor] = {}
        scores: Tensor
        if self.initial:
            num = seen[OBS].shape[0]  # `len` would make it a constant
            start = {k: torch.as_tensor(v).expand(num, *v.shape) for k, v in self.initial.items()}
            before = {**start, **state}
            scores, after = self.module(*parts, before)
            after = {key: value for key, value in after.items() if value is not before[key]}
        else:
            scores = self.module(*parts)
        if scores.shape[1:] != (scores.shape[-1] if self.greedy else width,):
            raise CannotExport(
                f"{type(self.module).__name__} returns {list(scores.shape[1:])} for an "
                f"observation, and {[width]} is needed for {what}"
            )
        return scores, after


def masked(scores: Tensor, mask: Tensor) -> Tensor:
    """Returns scores of which those that a mask forbids, float32, are the lowest."""
    return scores.masked_fill(mask <= 0, UNAVAILABLE)
