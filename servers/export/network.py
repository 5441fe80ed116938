"""Calls the torch module behind a trainer's ``act``; see `muxrl.servers.trainers.interface`."""

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
    """A policy cannot be exported; the message says why."""


class Network(nn.Module):
    """The module of a trainer's ``network()``.

    Attributes:
        module: the module.
        keys: of the parts of an observation that it takes, in order.
        scores_name: name of its scores.
        greedy: turns the scores into actions of a Box; None: they are the actions.
        initial: initial recurrent state of one agent, or one member of a team; {}: there is none.

    Args:
        trainer: of the policy.
        is_team: whether the trainer acts for teams.

    Raises:
        CannotExport: the trainer has no such method, or the method fails.
    """

    def __init__(self, trainer: Any, *, is_team: bool) -> None:
        super().__init__()
        name = type(trainer).__name__
        if not callable(getattr(trainer, NETWORK, None)):
            if is_team:
                raise CannotExport(f"{name} acts for a team, but a file acts for one agent")
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
        except (Exception, SystemExit) as error:  # raised by the user's code
            raise self.failed(error) from error
        if not isinstance(module, nn.Module):
            kind = type(module).__name__
            raise CannotExport(f"{self._name}: expected a torch.nn.Module, got {kind}")
        self.module: Any = module
        self.initial = {k: np.asarray(v)[0] if is_team else v for k, v in state.items()}

    def failed(self, error: BaseException) -> CannotExport:
        """Returns the error for a network that raised."""
        return CannotExport(f"{self._name}: {type(error).__name__}: {error}")

    def ask(
        self, seen: Mapping[str, Tensor], state: Mapping[str, Tensor], width: int, what: object
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """Returns scores ``[B, width]``, and the parts of the next state that the module changes.

        It does not change a critic's state, on which no action depends.

        Args:
            seen: parts of an observation by key, ``[B, ...]`` each.
            state: recurrent state before; lacking parts are as in the initial state.
            width: required number of scores; with `greedy` any number will do.
            what: the scores are for, in messages.

        Raises:
            CannotExport: the number of scores is another.
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
                f"{type(self.module).__name__} returns scores of the shape "
                f"{list(scores.shape[1:])} for an observation, but {what} needs {[width]}"
            )
        return scores, after


def masked(scores: Tensor, mask: Tensor) -> Tensor:
    """Returns scores, with the lowest float32 for actions that the mask forbids."""
    return scores.masked_fill(mask <= 0, UNAVAILABLE)
