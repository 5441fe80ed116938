"""Minibatches of a training batch, shuffled anew in every epoch."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
import tree


@dataclass(frozen=True)
class Minibatch:
    """What an update reads of a ``MultiAgentBatch``: columns by module id."""

    policy_batches: dict[str, dict[str, Any]]


class Minibatches:
    """Goes over each module's columns `num_epochs` times, in minibatches of about the same size.

    An epoch of n transitions has ``ceil(n / size)`` minibatches whose sizes differ by one at most,
    and each transition is in one of them. As in RLlib, a module with fewer transitions than
    another gets further epochs until that one is done.

    Args:
        batches: columns by module id, tensors whose first dimension is the transition.
        size: largest number of transitions of a module in one minibatch; None: all of them.
        num_epochs: passes over the module that has most transitions.
        should_shuffle: whether each pass draws its minibatches at random.
    """

    def __init__(
        self,
        batches: Mapping[str, Mapping[str, Any]],
        *,
        size: int | None,
        num_epochs: int,
        should_shuffle: bool,
    ) -> None:
        self._batches = batches
        self._size = size
        self._should_shuffle = should_shuffle
        self._lengths = {m: len(tree.flatten(batch)[0]) for m, batch in batches.items()}
        self._num = num_epochs * max(map(self._num_parts, self._lengths.values()))

    def _num_parts(self, length: int) -> int:
        return 1 if self._size is None else -(-length // self._size)

    def __len__(self) -> int:
        return self._num

    def __iter__(self) -> Iterator[Minibatch]:
        parts = {module_id: self._cycle(module_id) for module_id in self._batches}
        for _ in range(self._num):
            yield Minibatch({module_id: next(mine) for module_id, mine in parts.items()})

    def _cycle(self, module_id: str) -> Iterator[dict[str, Any]]:
        batch, length = dict(self._batches[module_id]), self._lengths[module_id]
        num_parts = self._num_parts(length)
        while True:
            if num_parts == 1:
                yield batch
                continue
            order = torch.randperm(length) if self._should_shuffle else torch.arange(length)
            for part in order.tensor_split(num_parts):
                yield _at(batch, part)


def _at(batch: dict[str, Any], rows: torch.Tensor) -> dict[str, Any]:
    return {key: _at(x, rows) if isinstance(x, dict) else x[rows] for key, x in batch.items()}
