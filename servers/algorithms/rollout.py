"""Trajectories as batches: rows, or padded sequences for recurrent networks; what follows them.

All arrays go over pieces of episodes one after another. A piece of T transitions has T + 1
observations: the last one, after its last action, is what its value is bootstrapped from.
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
"""Floor of the deviation by which advantages are divided; RLlib's."""


@dataclass
class Rollout:
    """What was played, piece after piece.

    Attributes:
        lengths: transitions of each piece, ``[C]``.
        terminated: whether nothing follows a piece, bool ``[C]``.
        parts: of observations, by key ``[sum(lengths + 1), ...]``.
        actions: ``[sum(lengths), ...]``, as the policy chose them.
        rewards: float32 ``[sum(lengths)]``.
        outputs: what was recorded with each action, likewise.
        before: places of the observations that were acted on, among all of them.
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
        """Whether the policy chose each action, bool ``[sum(lengths)]``.

        Of one that was chosen elsewhere the log-probability is infinite: a policy gradient with it
        would be off-policy, but it trains the values. An agent that is absent chooses none.
        """
        is_own: np.ndarray = np.isfinite(self.outputs[LOG_PROB])
        if ALIVE in self.parts:
            is_own &= self.parts[ALIVE][self.before, 0] > 0
        return is_own

    def columns(self) -> dict[str, np.ndarray]:
        """Returns columns of the transitions: parts of observations, actions, what was recorded."""
        columns = {key: one[self.before] for key, one in self.parts.items()}
        columns |= {name: self.outputs[name] for name in (LOG_PROB, DISTRIBUTION)}
        return {**columns, ACTIONS: self.actions}


def advantages_of(
    values: np.ndarray, played: Rollout, *, gamma: float, lambda_: float
) -> np.ndarray:
    """Generalized advantage estimation over many pieces of episodes at a time.

    Schulman et al. 2016 (arXiv 1506.02438), equation 16.

    Args:
        values: ``[sum(lengths + 1)]``, piece after piece: of every observation, the last too.
        played: the pieces. One that has not terminated is bootstrapped from its last value,
            whether it was truncated or only cut.
        gamma: discount.
        lambda_: 0 trusts the values, 1 sums rewards up to the end of the piece.

    Returns:
        ``[sum(lengths)]`` float32.
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
    """Returns them shifted to mean 0 and scaled to deviation 1, over those of own actions."""
    own = advantages[is_own]
    std = own.std() if len(own) else np.inf
    if not np.isfinite(std):  # of numbers so large that the loss has to show them
        return advantages
    return (advantages - own.mean()) / max(MIN_STD, std)


@dataclass(frozen=True)
class Padded:
    """How transitions lie in sequences ``[S, L]`` of at most so many steps, padded at their ends.

    A sequence never goes over the end of a piece. With `has_last` the observation after a piece's
    last action is one step more of its last sequence.

    Args:
        lengths: of the pieces, ``[C]``.
        limit: steps of a sequence, at most.
        has_last: see above.
    """

    rows: np.ndarray
    """Of each place the row of its step among all (of its observation with `has_last`), int
    ``[S, L]``; 0 at the padding."""
    is_step: np.ndarray
    """Whether a place is none of the padding, bool ``[S, L]``."""
    begins: np.ndarray
    """Row of the first step of each sequence, ``[S]``."""

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
    """Yields the rows of each minibatch, `num_epochs` times over all of them.

    An epoch has ``ceil(num_transitions / size)`` minibatches whose numbers of rows differ by one at
    most, and each row is in one of them.

    Args:
        num_rows: transitions, or sequences, which stay whole.
        num_transitions: in all of them.
        size: largest number of transitions in a minibatch, about; None: all.
        num_epochs: passes.
        rng: draws them anew for each pass; None: they are in order.
    """
    num_parts = 1 if size is None else max(1, min(num_rows, -(-num_transitions // size)))
    for _ in range(num_epochs):
        if num_parts == 1:
            yield slice(None)
            continue
        order = np.arange(num_rows) if rng is None else rng.permutation(num_rows)
        yield from np.array_split(order, num_parts)


def explained_variance(targets: Tensor, values: Tensor) -> Tensor:
    """Returns the share of the targets' variance that values explain, at least -1."""
    variance = targets.var(correction=0)  # which one row has, too
    if variance == 0:
        return variance
    return (1.0 - (targets - values).var(correction=0) / variance).clamp(min=-1.0)
