"""Turns trajectories into batches: rows, or padded sequences for recurrent networks; and GAE.

All arrays go over pieces of episodes one after another. A piece of T transitions has T + 1
observations; the last one, after the last action, is there to bootstrap from.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from torch import Tensor

from muxrl.servers.agents.keys import ALIVE
from muxrl.servers.agents.log_probs import DISTRIBUTION, LOG_PROB
from muxrl.servers.algorithms.columns import ACTIONS
from muxrl.servers.episodes.trajectories import Trajectory, concatenated

MIN_STD = 1e-4
"""Least deviation by which advantages are divided, as in RLlib."""


@dataclass
class Rollout:
    """A batch of trajectories, piece after piece.

    Attributes:
        lengths: number of transitions of each piece, ``[C]``.
        terminated: whether nothing follows a piece, bool ``[C]``.
        parts: of observations, by key, ``[sum(lengths + 1), ...]``.
        actions: ``[sum(lengths), ...]``, as the policy chose them.
        rewards: float32 ``[sum(lengths)]``.
        outputs: recorded outputs of the policy for each action, by name, ``[sum(lengths), ...]``.
        before: places of the observations that were acted on, among all observations.
        trajectories: the pieces.
    """

    lengths: np.ndarray
    terminated: np.ndarray
    parts: dict[str, np.ndarray]
    actions: np.ndarray
    rewards: np.ndarray
    outputs: dict[str, Any]
    before: np.ndarray
    trajectories: Sequence[Trajectory] = ()

    @classmethod
    def of(cls, trajectories: Sequence[Trajectory]) -> Rollout:
        lengths = np.array([len(one) for one in trajectories])
        is_last = np.zeros(lengths.sum() + len(lengths), bool)
        is_last[np.cumsum(lengths + 1) - 1] = True
        first = trajectories[0].outputs
        return cls(
            lengths,
            np.array([one.is_terminated for one in trajectories]),
            concatenated([one.parts for one in trajectories]),
            np.concatenate([one.actions for one in trajectories]),
            np.concatenate([np.asarray(one.rewards, np.float32) for one in trajectories]),
            {name: concatenated([one.outputs[name] for one in trajectories]) for name in first},
            np.flatnonzero(~is_last),
            trajectories,
        )

    @property
    def is_own(self) -> np.ndarray:
        """Whether the policy itself chose each action, bool ``[sum(lengths)]``.

        An action that was chosen elsewhere has an infinite log-probability: its policy gradient
        would be off-policy, but it trains the values. An absent agent chooses no action.
        """
        is_own: np.ndarray = np.isfinite(self.outputs[LOG_PROB])
        if ALIVE in self.parts:
            is_own &= self.parts[ALIVE][self.before, 0] > 0
        return is_own

    def columns(self) -> dict[str, np.ndarray]:
        """Returns the transitions' columns: parts of observations, actions, recorded outputs."""
        columns = {key: one[self.before] for key, one in self.parts.items()}
        columns |= {name: self.outputs[name] for name in (LOG_PROB, DISTRIBUTION)}
        return {**columns, ACTIONS: self.actions}


def advantages_of(
    values: np.ndarray, played: Rollout, *, gamma: float, lambda_: float
) -> np.ndarray:
    """Computes generalized advantage estimates of many pieces of episodes at a time.

    Schulman et al. 2016 (arXiv 1506.02438), equation 16.

    Args:
        values: of every observation, piece after piece, with the last ones,
            ``[sum(lengths + 1)]``.
        played: the pieces. One that has not terminated is bootstrapped from its last value,
            whether it was truncated or only cut.
        gamma: discount factor.
        lambda_: 0 trusts the values, 1 sums up rewards to the end of the piece.

    Returns:
        Advantages, ``[sum(lengths)]`` float32.
    """
    lengths, is_terminated = played.lengths, played.terminated
    num_pieces, longest = len(lengths), int(lengths.max())
    has_step = np.arange(longest) < lengths[:, None]
    has_value = np.arange(longest + 1) < lengths[:, None] + 1
    padded_values = np.zeros((num_pieces, longest + 1), np.float32)
    padded_values[has_value] = values
    padded_values[is_terminated, lengths[is_terminated]] = 0.0
    errors = np.zeros((num_pieces, longest), np.float32)
    errors[has_step] = played.rewards
    errors += gamma * padded_values[:, 1:] - padded_values[:, :-1]
    errors *= has_step
    running = np.zeros(num_pieces, np.float32)
    for t in reversed(range(longest)):
        running = errors[:, t] + gamma * lambda_ * running
        errors[:, t] = running
    return errors[has_step]


def standardised(advantages: np.ndarray, is_own: np.ndarray) -> np.ndarray:
    """Returns advantages with mean 0 and deviation 1 over the policy's own actions.

    Args:
        advantages: ``[N]``.
        is_own: whether the policy itself chose each action, bool ``[N]``.
    """
    own = advantages[is_own]
    std = own.std() if len(own) else np.inf
    if not np.isfinite(std):  # too large numbers: left for the loss to show
        return advantages
    return (advantages - own.mean()) / max(MIN_STD, std)


@dataclass(frozen=True)
class Padded:
    """Places of transitions in sequences ``[S, L]``, padded at their ends.

    A sequence never goes over the end of a piece. With `has_last`, the observation after a piece's
    last action is an additional step of its last sequence.

    Args:
        lengths: of the pieces, ``[C]``.
        limit: most steps of a sequence.
        has_last: see above.
    """

    rows: np.ndarray
    """Index of each place's step among all transitions, or with `has_last` of its observation among
    all observations, int ``[S, L]``; 0 at the padding."""
    is_step: np.ndarray
    """Whether a place has a step, bool ``[S, L]``; False at the padding."""
    begins: np.ndarray
    """Index of the first step of each sequence, ``[S]``."""

    @classmethod
    def of(cls, lengths: np.ndarray, limit: int, *, has_last: bool = False) -> Padded:
        begins, sizes = [], []
        first = 0
        for length in lengths.tolist():
            for begin in range(0, length, limit):
                size = min(limit, length - begin)
                begins.append(first + begin)
                sizes.append(size + (has_last and begin + size == length))
            first += length + has_last
        longest = np.arange(max(sizes))
        is_step = longest < np.array(sizes)[:, None]
        rows = np.where(is_step, np.array(begins)[:, None] + longest, 0)
        return cls(rows, is_step, np.array(begins))


def minibatches(
    num_rows: int,
    num_transitions: int,
    size: int | None,
    num_epochs: int,
    rng: np.random.Generator | None,
) -> Iterator[np.ndarray | slice]:
    """Yields the rows of each minibatch, in `num_epochs` passes over all rows.

    An epoch has ``ceil(num_transitions / size)`` minibatches whose numbers of rows differ by one at
    most, and each row is in one of them.

    Args:
        num_rows: number of transitions, or of sequences, which stay whole.
        num_transitions: number of transitions in all rows.
        size: about the largest number of transitions in a minibatch; None: all.
        num_epochs: number of passes.
        rng: shuffles the rows for each pass; None: rows stay in order.
    """
    num_parts = 1 if size is None else max(1, min(num_rows, -(-num_transitions // size)))
    for _ in range(num_epochs):
        if num_parts == 1:
            yield slice(None)
            continue
        order = np.arange(num_rows) if rng is None else rng.permutation(num_rows)
        yield from np.array_split(order, num_parts)


def explained_variance(targets: Tensor, values: Tensor) -> Tensor:
    """Returns the share of the targets' variance that the values explain, at least -1."""
    variance = targets.var(correction=0)  # not NaN for a single row
    if variance == 0:
        return variance
    return (1.0 - (targets - values).var(correction=0) / variance).clamp(min=-1.0)
