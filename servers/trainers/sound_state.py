"""A trainer's last sound state, to which it returns from an update that has spoilt it.

After an update every array and tensor of floats is looked at, without a copy. A copy to return to
takes longer, and so is taken now and then: what was learned since is lost with a skipped update.
A ``state`` with a replay takes long to read, too: it is looked at when a copy is due.
"""

from __future__ import annotations

import copy
import importlib
import time
from collections import defaultdict
from collections.abc import Iterator
from typing import Any

import numpy as np

from muxrl.servers.trainers.plain_state import from_plain, to_plain
from muxrl.servers.training.skipped_updates import MAX_LOSS, size_of

_SHARE = 0.02
"""Of the time that copies take at most."""


class SoundState:
    """The state of a trainer that is sound now.

    Numbers that are not sound now, a best value so far or a buffer that is not filled yet, are
    not judged later either.

    Args:
        trainer: whose ``learned_state`` is kept, or its ``state``.
        num_watched: updates after a skipped one, of each of which a copy is kept: a replay may
            hold the number that has spoilt it still, and nothing would be learned between two.
    """

    def __init__(self, trainer: Any, num_watched: int) -> None:
        self._trainer = trainer
        is_whole = not hasattr(trainer, "learned_state")
        self._read = trainer.state if is_whole else trainer.learned_state
        self._has_replay = is_whole and getattr(trainer, "learns_from", "") == "replay"
        self._num_watched = num_watched
        self._num_left = 0
        self._exempt = frozenset(path for path, _ in self._beyond())
        self._keep()

    def find_spoilt(self) -> str:
        """Returns what is not sound any more, in words; "" if all is."""
        if self._has_replay and not self._is_due:
            return ""
        found = [one for one in self._beyond() if one[0] not in self._exempt]
        path, number = max(found, key=lambda one: size_of(one[1]), default=("", 0.0))
        return path and f"{path} holds {number:.3g}, beyond {MAX_LOSS:.0e} or not finite"

    def keep(self) -> None:
        """Keeps the state as it is now, if a copy is due."""
        if self._is_due:
            self._keep()
        self._num_left = max(0, self._num_left - 1)

    def go_back(self) -> None:
        """Has the trainer load the copy."""
        self._trainer.load(from_plain(copy.deepcopy(self._copy)))
        self._num_left = self._num_watched

    @property
    def _is_due(self) -> bool:
        elapsed_s = time.perf_counter() - self._kept_at
        return self._num_left > 0 or elapsed_s >= self._took_s / _SHARE

    def _keep(self) -> None:
        began = time.perf_counter()
        self._copy = to_plain(self._read())
        self._kept_at = time.perf_counter()
        self._took_s = self._kept_at - began

    def _beyond(self) -> Iterator[tuple[str, float]]:
        """Yields the places of arrays and tensors that are not sound, with their largest number."""
        tensors: dict[Any, list[tuple[_Path, Any]]] = defaultdict(list)
        for path, leaf in _leaves(self._read()):
            if not isinstance(leaf, np.ndarray):
                tensors[leaf.device].append((path, leaf))
            else:
                number = max(float(leaf.max()), float(leaf.min()), key=size_of)
                if not size_of(number) <= MAX_LOSS:
                    yield _told(path), number
        for found in tensors.values():  # of a device, at once: one wait for it
            torch: Any = importlib.import_module("torch")
            with torch.no_grad():
                norms = torch._foreach_norm([leaf for _, leaf in found])
                sizes = torch.stack([norm.float() for norm in norms]).tolist()
            for (path, leaf), size in zip(found, sizes, strict=True):
                # The squares in a norm may overflow, of numbers that are sound.
                if not size <= MAX_LOSS and not (size := float(leaf.abs().max())) <= MAX_LOSS:
                    yield _told(path), size


_Path = tuple[Any, ...]
_PLAIN = frozenset({int, float, bool, str, type(None)})


def _leaves(state: Any) -> Iterator[tuple[_Path, Any]]:
    """Yields the arrays and tensors of floats in a state, with the keys on the way to each."""
    left: list[tuple[_Path, Any]] = [((), state)]
    while left:
        path, value = left.pop()
        if type(value) in _PLAIN:
            continue
        if isinstance(value, dict):
            left += [((*path, key), part) for key, part in value.items()]
        elif isinstance(value, list | tuple):
            left += [((*path, i), part) for i, part in enumerate(value)]
        elif isinstance(value, np.ndarray):
            if value.dtype.kind == "f" and value.size:
                yield path, value
        elif hasattr(value, "is_floating_point") and value.is_floating_point() and value.numel():
            yield path, value


def _told(path: _Path) -> str:
    return "state" + "".join(f"[{key!r}]" for key in path)
