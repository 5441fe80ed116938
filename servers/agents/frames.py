"""Frame stacking: a network reads the last observations of an agent side by side.

So it sees what one of them does not show, as a velocity (Mnih et al. 2015, whose four frames make
an Atari game Markov). Before an agent has observed so often in an episode, its first observation
stands for those that are missing, as in Gymnasium's ``FrameStackObservation`` with
``padding_type="reset"``. The oldest comes first.

A frame is an observation as a seat reads it: flattened, scaled and normalised, without action mask
and global state. It is read once and remembered so, that its part of later stacks is the same.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping

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
        self._frame_stack = frame_stack
        self.stacks: dict[str, np.ndarray] = {}
        """What each agent has read last."""
        self._newest: dict[str, np.ndarray] = {}
        """Read in this step, which may still be refused."""
        self.back: Collection[str] = ()
        """Agents that this step begins a new life of."""

    def stack(self, agent_id: str, frame: np.ndarray, *, is_final: bool) -> np.ndarray:
        """Returns the agent's last frames and this one, float32 ``[..., frame_stack * n]``.

        Args:
            agent_id: whose frame it is.
            frame: float32 ``[..., n]``.
            is_final: whether nothing follows from it; else `advance` remembers it. Then the
                caller does not change what is returned.
        """
        is_new = agent_id in self.back and not is_final
        before = None if is_new else self.stacks.get(agent_id)
        past = _first(frame, self._frame_stack) if before is None else _later(before, frame)
        stacked = np.concatenate([past, frame], axis=-1)
        if not is_final:
            self._newest[agent_id] = stacked
        return stacked

    def advance(self, agent_ids: Iterable[str]) -> None:
        """Goes on to the next step: what these agents have read now is past."""
        for agent_id in self.back:
            self.stacks.pop(agent_id, None)
        for agent_id in agent_ids:
            self.stacks[agent_id] = self._newest[agent_id]
        self._newest.clear()


class RowFrames:
    """As `Frames`, what the agents of many episodes see in one step.

    Args:
        frame_stack: as there.
        before: what they saw in the step before; None: no episode was in it.
        rows: of each episode in that one; None: all were in it, in the same order.
        others: by row, of episodes that were not in it, as `Frames.stacks`.
    """

    def __init__(
        self,
        frame_stack: int,
        before: RowFrames | None,
        rows: list[int] | None,
        others: Mapping[int, Mapping[str, np.ndarray]],
    ) -> None:
        self._frame_stack = frame_stack
        self._others = others
        self._before: Mapping[tuple[str, ...], np.ndarray] = {} if before is None else before.stacks
        self._rows = rows
        self.stacks: dict[tuple[str, ...], np.ndarray] = {}
        """What agents of a kind have read, ``[E, A, ..., frame_stack * n]``."""

    def stack(self, agents: tuple[str, ...], frames: np.ndarray) -> np.ndarray:
        """Returns the last frames of some agents and these ones, ``[E, A, ..., n]``."""
        before = self._before.get(agents)
        if before is None:
            past = _first(frames, self._frame_stack)
        else:
            past = _later(before, frames)
            past = past if self._rows is None else past[self._rows]
        for i, stacks in self._others.items():
            past[i] = _first(frames[i], self._frame_stack)
            for j, agent_id in enumerate(agents):
                if agent_id in stacks:
                    past[i, j] = _later(stacks[agent_id], frames)
        stacked = self.stacks[agents] = np.concatenate([past, frames], axis=-1)
        return stacked

    def forget(self) -> None:
        """Lets go of the step before, once all has been read."""
        self._before, self._others = {}, {}

    def of_row(self, row: int) -> dict[str, np.ndarray]:
        """Returns what the agents of an episode have read, as `Frames.stacks`."""
        return {
            agent_id: stacks[row, i]
            for agents, stacks in self.stacks.items()
            for i, agent_id in enumerate(agents)
        }


def _first(frame: np.ndarray, frame_stack: int) -> np.ndarray:
    """Returns what stands for what came before the first frame."""
    return np.concatenate([frame] * (frame_stack - 1), axis=-1)


def _later(stacked: np.ndarray, frame: np.ndarray) -> np.ndarray:
    """Returns what came before a frame, of the last stack."""
    return stacked[..., frame.shape[-1] :]
