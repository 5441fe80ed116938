"""Frame stacking: a network reads the last observations of an agent side by side.

So it sees what one of them does not show, as a velocity (Mnih et al. 2015, whose four frames make
an Atari game Markov). Before an agent has observed so often in an episode, its first observation
stands for those that are missing, as in Gymnasium's ``FrameStackObservation`` with
``padding_type="reset"``. The oldest comes first.

A frame is an observation as a seat reads it: flattened, scaled and normalised, without action mask
and global state. It is read once and remembered so, that its part of later stacks is the same.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Iterable

import numpy as np

from muxrl.protocol.spaces import Box, box_within, typed_bounds


def stacked_shape(shape: tuple[int, ...], frame_stack: int) -> tuple[int, ...]:
    """Returns the shape of so many frames: vectors end to end, images by channel."""
    return (*shape[:-1], shape[-1] * frame_stack)


def stacked_space(space: Box, frame_stack: int) -> Box:
    """Returns the space of so many frames."""
    if frame_stack == 1:
        return space
    return box_within(
        *(np.concatenate([bound] * frame_stack, axis=-1) for bound in typed_bounds(space))
    )


class Frames:
    """What a server's agents have seen in one episode, as far back as their networks look.

    Args:
        frame_stack: observations that a network reads, this one included; at least 2.
    """

    def __init__(self, frame_stack: int) -> None:
        self._num_past = frame_stack - 1
        self._past: dict[str, deque[np.ndarray]] = {}
        self._newest: dict[str, np.ndarray] = {}
        """Read in this step, which may still be refused."""
        self.back: Collection[str] = ()
        """Agents that this step begins a new life of."""

    def stack(self, agent_id: str, frame: np.ndarray, *, is_final: bool) -> np.ndarray:
        """Returns the agent's last frames and this one, float32 ``[..., frame_stack * n]``.

        Args:
            agent_id: whose frame it is.
            frame: float32 ``[..., n]``; the caller does not change it any more.
            is_final: whether nothing follows from it; else `advance` remembers it.
        """
        if not is_final:
            self._newest[agent_id] = frame
        is_new = agent_id in self.back and not is_final
        past = None if is_new else self._past.get(agent_id)
        return np.concatenate([*(past or [frame] * self._num_past), frame], axis=-1)

    def advance(self, agent_ids: Iterable[str]) -> None:
        """Goes on to the next step: what these agents have read now is past."""
        for agent_id in self.back:
            self._past.pop(agent_id, None)
        for agent_id in agent_ids:
            frame = self._newest[agent_id]
            past = self._past.get(agent_id)
            if past is None:
                self._past[agent_id] = deque([frame] * self._num_past, self._num_past)
            else:
                past.append(frame)
        self._newest.clear()
