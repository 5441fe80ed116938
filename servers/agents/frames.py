"""Frame stacking: a network reads the last observations of an agent side by side.

So it can see what a single observation does not show, such as a velocity (Mnih et al. 2015, whose
four frames make an Atari game Markov). Until an agent has observed that often in an episode, its
first observation stands in for the missing ones, as in Gymnasium's ``FrameStackObservation`` with
``padding_type="reset"``. The oldest frame comes first.

A frame is an observation as a seat reads it: flattened, scaled and normalised, without action mask
and global state. It is read once and kept in that form, so that it is the same in later stacks.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np

from muxrl.protocol.rows import grown
from muxrl.protocol.spaces import Box, box_within, typed_bounds


def stacked_space(space: Box, frame_stack: int) -> Box:
    """Returns the space of `frame_stack` frames: vectors end to end, images by channel."""
    if frame_stack == 1:
        return space
    return box_within(
        *(np.concatenate([bound] * frame_stack, axis=-1) for bound in typed_bounds(space))
    )


class Frames:
    """The last frames of the agents of open episodes, by slot; see `Memory`.

    Args:
        frame_stack: number of observations that a network reads, including the newest; at least 2.
        num_slots: number of slots to begin with.
        num_agents: number of the server's agents.
    """

    def __init__(self, frame_stack: int, num_slots: int, num_agents: int) -> None:
        self._frame_stack = frame_stack
        self._has = np.zeros((num_slots, num_agents), bool)
        self._stacks: dict[tuple[int, ...], np.ndarray] = {}
        """By shape of a stack: ``[slots, agents, *shape]``."""

    def grow(self, num_slots: int) -> None:
        """Makes room for more slots."""
        self._has, self._stacks = grown(self._has, num_slots), grown(self._stacks, num_slots)

    def forget(self, slot: int, agents: Any = slice(None)) -> None:
        """Forgets the frames of some agents in a slot, given by their columns."""
        self._has[slot, agents] = False

    def stack(self, index: Any, frames: np.ndarray, new: np.ndarray | None) -> np.ndarray:
        """Returns agents' last frames with the new ones, ``[E, n, ..., frame_stack * k]``.

        Args:
            index: slots and columns of these agents.
            frames: the new frames, float32 ``[E, n, ..., k]``.
            new: bool ``[n]``: agents that begin a new life, and so have no earlier frames.
        """
        has = self._has[index]
        if new is not None:
            has = has & ~new
        past = np.concatenate([frames] * (self._frame_stack - 1), axis=-1)
        if has.any():
            shape = (*frames.shape[2:-1], frames.shape[-1] * self._frame_stack)
            later = self._stacks[shape][index][..., frames.shape[-1] :]
            past = np.where(has.reshape(has.shape + (1,) * (later.ndim - 2)), later, past)
        return np.concatenate([past, frames], axis=-1)

    def advance(self, newest: Iterable[tuple[Any, np.ndarray]]) -> None:
        """Goes on to the next step: stacks that were read in this one, by index, are kept."""
        for index, stacked in newest:
            shape = stacked.shape[2:]
            if shape not in self._stacks:
                self._stacks[shape] = np.zeros((*self._has.shape, *shape), stacked.dtype)
            self._stacks[shape][index] = stacked
            self._has[index] = True
