"""Reads steps as arrays: a `Step` is one row, a `StepRows` has several.

Rows are checked as a whole. If a value in them is not plain (a repeat, a value out of range, an
unknown episode), they are read row by row, with the check for single steps, which can say what is
wrong with which agent's value.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from msgspec.structs import replace

from muxrl.protocol.errors import MalformedMessage
from muxrl.protocol.messages import PlayedRows, PlayedSteps, Step, StepRows
from muxrl.protocol.rows import Kind, Layout, are_floats, are_rows, leaves, pick, singles
from muxrl.protocol.spaces import ACTION_MASK_KEY, Discrete
from muxrl.servers.episodes.step_check import StepCheck, log_prob_range

_INT64 = np.dtype(np.int64)
_LAST_T = np.iinfo(_INT64).max
_MAX_LAYOUTS = 256
_ROWS = ("t", "observations", "rewards", "state", "logged_actions", "logged_log_probs", "logits",
         "states")  # fmt: skip
"""Fields of `PlayedRows` with a row for each episode."""


class Reading:
    """Reads the steps of the clients of a server, or of a gateway.

    Args:
        check: the check of single steps.
        max_reward: largest absolute reward in rows; None: the same as in single steps.
    """

    def __init__(self, check: StepCheck, max_reward: float | None = None) -> None:
        self._agents, self._state_size = check.agents, check.state_size
        self.everybody = tuple(check.agents)
        self._max_reward = check.max_reward if max_reward is None else max_reward
        self._max_observation = check.max_observation
        self._layouts: dict[tuple[str, ...], Layout] = {}

    def agents_of(self, item: StepRows) -> tuple[str, ...]:
        """Returns the agents that act in each row of an item."""
        return tuple(item.agents) if item.agents else self.everybody

    def check(self, item: StepRows) -> bool:
        """Returns whether all values of an item fit their spaces and limits.

        Raises:
            MalformedMessage: its arrays do not have a row for each episode and agent.
        """
        if self._is_sound(item):
            return True
        self.check_shapes(item)
        return self._is_sound(item)

    def check_shapes(self, item: StepRows) -> None:
        """Raises `MalformedMessage` unless arrays have a row for each episode and agent."""
        lead = len(item.episode_ids)
        layout = self.layout(item)
        _check_rows("t", item.t, (lead,))
        if item.t.dtype.kind not in "iu" or lead == 0:
            raise MalformedMessage(
                "a step in rows needs at least one episode, and an integer t for each"
            )
        if item.t.dtype != _INT64:  # in 8 bits, 0 would follow 255
            if item.t.max() > _LAST_T:
                raise MalformedMessage(
                    f"there is no step t={item.t.max()}: the number is too large"
                )
            item.t = item.t.astype(_INT64)
        if item.rewards is not None:
            _check_rows("rewards", item.rewards, (lead, len(layout.agents)))
        if item.state is not None:
            _check_rows("state", item.state, (lead,), is_whole=False)
        _check_kinds("observations", layout.observed, item.observations, lead)
        if item.logged_actions is not None or isinstance(item, PlayedRows):
            _check_kinds("logged actions", layout.acted, item.logged_actions or [], lead)
        if item.logged_log_probs is not None:
            _check_rows("logged_log_probs", item.logged_log_probs, (lead, len(layout.agents)))
        if isinstance(item, PlayedRows):
            if item.logits:
                _check_kinds("logits", layout.acted, item.logits, lead)
            for name, states in item.states.items():
                _check_rows(f"states of {name[:40]!r}", states, (lead,), is_whole=False)

    def _is_sound(self, item: StepRows) -> bool:
        layout, t, lead = self.layout(item), item.t, len(item.episode_ids)
        if type(t) is not np.ndarray or t.dtype != _INT64 or t.shape != (lead,) or not lead:
            return False
        if not _are_all(layout.observed, item.observations, lead, self._max_observation):
            return False
        if not _are_sound_actions(layout, item, lead):
            return False
        rewards = item.rewards
        if rewards is not None:
            shape = lead, len(layout.agents)
            if not are_floats(rewards, shape, self._max_reward, np.float64):
                return False
            if lead == 1:
                if not t[0] and rewards.any():  # no reward precedes the first action
                    return False
            elif not t.all() and rewards[t == 0].any():
                return False
        return self._state_size is None or are_floats(
            item.state, (lead, self._state_size), self._max_observation, np.float32
        )

    def played_singles(self, item: PlayedRows) -> list[PlayedSteps]:
        """Returns an item for each episode of the rows.

        Raises:
            MalformedMessage: as `check`.
        """
        self.check_shapes(item)
        layout = self.layout(item)
        found = []
        for row, step in enumerate(singles(layout, item)):
            logits = {
                agent_id: rows[row : row + 1, column]
                for kind, rows in zip(layout.acted, item.logits, strict=bool(item.logits))
                for column, agent_id in enumerate(kind.agents)
            }
            states = {name: rows[row] for name, rows in item.states.items()}
            version = item.weights_seq_no
            found.append(PlayedSteps(step.episode_id, version, [step], logits, states))
        return found

    def singles(self, item: StepRows) -> list[Step]:
        """Returns rows that have been checked as single steps."""
        return singles(self.layout(item), item)

    def layout(self, item: StepRows) -> Layout:
        """Returns the layout of the agents of an item.

        Raises:
            MalformedMessage: an agent is unknown, or named twice.
        """
        agents = self.agents_of(item)
        found = self._layouts.get(agents)
        if found is not None:
            return found
        if unknown := [a for a in agents if a not in self._agents]:
            raise MalformedMessage(f"there is no agent {unknown[0]!r} here, but its rows came")
        if len(set(agents)) < len(agents):
            raise MalformedMessage("an agent is named twice in the rows of a step")
        if len(self._layouts) >= _MAX_LAYOUTS:
            self._layouts.clear()
        found = self._layouts[agents] = Layout(agents, self._agents)
        return found


def rows_where(item: PlayedRows, where: np.ndarray) -> PlayedRows:
    """Returns the rows of an item at some positions."""
    picked = {name: pick(getattr(item, name), where) for name in _ROWS}
    return replace(item, episode_ids=[item.episode_ids[i] for i in where.tolist()], **picked)


def _are_all(kinds: Sequence[Kind], rows: Sequence[Any], lead: int, most: float) -> bool:
    return len(rows) == len(kinds) and all(
        are_rows(kind, own, lead, most) for kind, own in zip(kinds, rows, strict=True)
    )


def _are_sound_actions(layout: Layout, item: StepRows, lead: int) -> bool:
    """Returns whether logged actions were possible, and had possible log-probabilities."""
    actions, log_probs = item.logged_actions, item.logged_log_probs
    if actions is None or not _are_all(layout.acted, actions, lead, math.inf):
        return actions is None and log_probs is None
    shape = (lead, len(layout.agents))
    if log_probs is not None and getattr(log_probs, "shape", ()) != shape:
        return False
    masks = {
        agent_id: pick(rows[ACTION_MASK_KEY], (slice(None), column))
        for kind, rows in zip(layout.observed, item.observations, strict=True)
        if ACTION_MASK_KEY in getattr(kind.space, "spaces", ())
        for column, agent_id in enumerate(kind.agents)
    }
    for kind, rows in zip(layout.acted, actions, strict=True):
        if log_probs is not None:
            low, high = log_prob_range(kind.space)
            own = log_probs[:, kind.places]
            if own.dtype != np.float64 or ((own < low) | (own > high)).any():  # true for NaN, too
                return False
        for column, agent_id in enumerate(kind.agents):
            if agent_id not in masks:
                continue
            mask, space = masks[agent_id], kind.space
            if not isinstance(space, Discrete) or getattr(mask, "shape", ()) != (lead, space.n):
                return False  # checked in each single step
            if not mask[np.arange(lead), rows[:, column] - space.start].all():
                return False
    return True


def _check_kinds(what: str, kinds: Sequence[Kind], rows: Sequence[Any], lead: int) -> None:
    """Raises `MalformedMessage` unless these are rows for each kind of space."""
    if len(rows) != len(kinds):
        raise MalformedMessage(
            f"rows of {what} came for {len(rows)} spaces, but the step's agents have {len(kinds)}"
        )
    for kind, own in zip(kinds, rows, strict=True):
        for leaf in leaves(kind.space, own):
            shape = (lead, len(kind.agents))
            _check_rows(f"{what} of {kind.agents[0]!r}", leaf, shape, is_whole=False)


def _check_rows(what: str, rows: Any, shape: tuple[int, ...], *, is_whole: bool = True) -> None:
    """Raises `MalformedMessage` unless these are an array of a shape, or one that begins so."""
    of_rows = getattr(rows, "shape", ())
    if isinstance(rows, np.ndarray) and (of_rows if is_whole else of_rows[: len(shape)]) == shape:
        return
    raise MalformedMessage(
        f"{what} of a step in rows must be an array of shape {shape}"
        f"{'' if is_whole else ' and more'}; rows need msgpack, in JSON a step has dicts by agent",
        expected=f"shape {shape}",
        got=f"shape {of_rows}" if isinstance(rows, np.ndarray) else type(rows).__name__,
    )
