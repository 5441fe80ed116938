"""Converts between a simulation's actions and those that a network chooses.

A network chooses one of n actions (``Discrete``), several times one of n (``MultiDiscrete``), or
real numbers in one dimension (``Box``). Every other action space is put into one of these without
loss:

======================================  ====================================================
the simulation's action space           the network's
======================================  ====================================================
Discrete                                the same
MultiDiscrete, MultiBinary              MultiDiscrete
Tuple of Discrete                       MultiDiscrete
Box of integers with bounds             MultiDiscrete, one choice for each element
Box of real numbers in n dimensions     Box of one dimension
any of the first four, as one choice    Discrete, one for each combination
======================================  ====================================================
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from muxrl.protocol import spaces as plain

MAX_COMBINATIONS = 1_024
"""Most combinations to join into one choice: a network has an output for each, and must try it."""


@dataclass(frozen=True)
class ActionForm:
    """The actions of one agent as a network chooses them.

    Attributes:
        space: the network's action space, or the simulation's own if it cannot be converted.
        kind: the simulation's action space.
        is_one_choice: whether `space` is Discrete for a `kind` of several choices.
        is_scaled: whether real numbers are chosen in -1..1 if the bounds are known; else they are
            chosen within the bounds, and clipped to them.
    """

    space: plain.Space
    kind: plain.Space
    is_one_choice: bool = False
    is_scaled: bool = True

    @cached_property
    def choices(self) -> tuple[int, ...]:
        """The number of actions in each choice of the simulation's space; () for a Box of reals."""
        return tuple(n for _, n in plain.choices(self.kind))

    @cached_property
    def first(self) -> np.ndarray:
        """The lowest value of each choice, int64."""
        return np.array([low for low, _ in plain.choices(self.kind)], np.int64)

    @cached_property
    def bounds(self) -> tuple[np.ndarray, np.ndarray]:
        """If `space` is a Box: its lowest and highest numbers, in its dtype."""
        assert isinstance(self.space, plain.Box)
        return plain.typed_bounds(self.space)

    @cached_property
    def has_bounds(self) -> bool:
        """Whether `space` is a Box with finite bounds."""
        return isinstance(self.space, plain.Box) and bool(np.isfinite(self.bounds).all())

    @cached_property
    def log_scale(self) -> float:
        """The log-density of a network's action minus that of the simulation's."""
        if not (self.is_scaled and self.has_bounds):
            return 0.0
        # The density of an action that is scaled to [-1, 1] is the action's density times the
        # scale.
        widths = np.subtract(*self.bounds[::-1], dtype=np.float64)
        return float(np.log(widths[widths > 0] / 2).sum())

    @cached_property
    def combinations(self) -> np.ndarray:
        """If `is_one_choice`: the choices of each action, int64 ``[n, len(choices)]``."""
        return np.stack(np.unravel_index(np.arange(math.prod(self.choices)), self.choices), -1)

    @property
    def shape(self) -> tuple[int, ...] | None:
        """The shape of the simulation's actions if they are a Box, else None."""
        return self.kind.shape if isinstance(self.kind, plain.Box) else None

    def write_rows(self, actions: np.ndarray) -> Any:
        """Returns rows of the simulation's actions for a network's actions ``[E, n, ...]``."""
        if not self.choices:
            value = self._scaled(actions)
            return value.reshape(*value.shape[:2], *(self.shape or ()))
        if isinstance(self.kind, plain.Discrete):
            return actions + self.kind.start if self.kind.start else actions
        chosen = self.combinations[actions] if self.is_one_choice else actions
        if isinstance(self.kind, plain.TupleSpace):
            return list(np.moveaxis(chosen + self.first, -1, 0))
        if isinstance(self.kind, plain.Box):
            rows = (chosen + self.first).astype(self.kind.dtype)
            return rows.reshape(*rows.shape[:2], *self.kind.shape)
        return chosen

    def _scaled(self, value: np.ndarray) -> np.ndarray:
        """Returns a network's real numbers mapped into the bounds, as RLlib does."""
        if not isinstance(self.space, plain.Box) or (self.is_scaled and not self.has_bounds):
            return value
        low, high = self.bounds
        if self.is_scaled:
            value = low + (value + 1.0) * (high - low) / 2.0
        return np.clip(value, low, high)

    def read_rows(self, rows: Any) -> np.ndarray:
        """Returns the actions that a network would have chosen: undoes `write_rows`."""
        if isinstance(self.kind, plain.Discrete):
            return rows - self.kind.start if self.kind.start else rows
        rows = np.stack(rows, -1) if isinstance(rows, list) else rows.reshape(*rows.shape[:2], -1)
        if self.choices:
            chosen = rows.astype(np.int64) - self.first  # uint64 would become real
            if not self.is_one_choice:
                return chosen
            return np.ravel_multi_index(tuple(np.moveaxis(chosen, -1, 0)), self.choices)
        if not (self.is_scaled and self.has_bounds):
            return rows
        low, high = self.bounds
        return (rows - low) * 2.0 / (high - low) - 1.0

    # --- action masks -------------------------------------------------------------------

    def read_masks(self, masks: Any) -> np.ndarray:
        """Returns masks for the network's actions, float32 ``[E, n, k]``.

        Args:
            masks: rows with a number for each action of each choice, above 0 for available ones,
                one choice after another; for a Tuple a part for each choice. If a mask leaves a
                choice without actions, all of the network's actions are 0.
        """
        parts = masks if isinstance(masks, list) else [masks]
        lead = parts[0].shape[:2]
        own = [part.reshape(*lead, -1) > 0 for part in parts]
        flat = own[0] if len(own) == 1 else np.concatenate(own, -1)
        return self._masked(flat).astype(np.float32)

    def _masked(self, flat: np.ndarray) -> np.ndarray:
        """Returns which of the network's actions are available, given the available actions of each
        choice; bool ``[..., n]`` both."""
        if len(self.choices) == 1:
            return flat
        parts = np.split(flat, np.cumsum(self.choices)[:-1], axis=-1)
        leaves_some = np.logical_and.reduce([part.any(axis=-1) for part in parts])
        if self.is_one_choice:
            allowed = [part[..., self.combinations[:, i]] for i, part in enumerate(parts)]
            flat = np.logical_and.reduce(allowed)
        return flat & leaves_some[..., None]

    @property
    def is_plain(self) -> bool:
        """Whether the simulation's actions are the network's: integers counted from 0."""
        return isinstance(self.kind, plain.Discrete) and self.kind.start == 0


def action_form(space: plain.Space, *, as_one_choice: bool = False) -> ActionForm:
    """Returns the form in which a network chooses actions of `space`.

    Args:
        space: the simulation's action space.
        as_one_choice: whether several choices become one, for algorithms that learn a value for
            each action; spaces with more than `MAX_COMBINATIONS` combinations stay as they are.
    """
    choices = [n for _, n in plain.choices(space)]
    if isinstance(space, plain.Box) and np.dtype(space.dtype).kind == "f":
        flat = plain.box_within(*(bound.ravel() for bound in plain.typed_bounds(space)))
        return ActionForm(flat, space)
    if isinstance(space, plain.Discrete) or not choices:
        return ActionForm(space, space)
    if as_one_choice and math.prod(choices) <= MAX_COMBINATIONS:
        return ActionForm(plain.Discrete(math.prod(choices)), space, is_one_choice=True)
    return ActionForm(plain.MultiDiscrete(tuple(choices)), space)


def counted_from_0(space: plain.Space) -> plain.Space:
    """Returns a Discrete space without its `start`, any other as it is."""
    return plain.Discrete(space.n) if isinstance(space, plain.Discrete) else space
