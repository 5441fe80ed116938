"""A trainer's last sound state, to which it returns from an update that has spoilt it.

What it acts by is looked at after each update. To look at all, and to copy it, takes longer, and so
is done now and then: what was learned since the last copy is lost with a skipped update.
"""

from __future__ import annotations

import copy
import importlib
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from muxrl.servers.trainers.plain_state import Path, from_plain, leaves, shown, to_plain
from muxrl.servers.training.skipped_updates import MAX_LOSS, size_of

_SHARE = 0.02
"""Of the time, for looking at a whole state and copying it."""


class SoundState:
    """The state of a trainer that is sound now.

    Numbers that are not sound now, a best value so far or a buffer that is not filled yet, are
    not judged later either.

    Args:
        trainer: whose ``learned_state``, or its ``state``, is kept.
        num_watched: updates after a skipped one, after each of which all is looked at and copied:
            a replay may hold the number that has spoilt it still, and nothing would be learned
            between two.
    """

    def __init__(self, trainer: Any, num_watched: int) -> None:
        self._trainer = trainer
        is_whole = not hasattr(trainer, "learned_state")
        self._read = trainer.state if is_whole else trainer.learned_state
        self._often: tuple[str, Callable[[], Any]] = ("state", self._read)
        if hasattr(trainer, "weights"):
            self._often = "weights()", trainer.weights
        elif is_whole and getattr(trainer, "learns_from", "") == "replay":
            self._often = "", dict  # it takes long to read
        self._num_watched = num_watched
        self._num_left = 0
        self._began_at = time.perf_counter()
        both = (*self._beyond(is_all=True), *self._beyond(is_all=False))
        self._exempt = frozenset(place for place, _ in both)
        self.keep()

    @property
    def is_due(self) -> bool:
        """Whether it is time to look at all, and to keep a copy."""
        elapsed_s = time.perf_counter() - self._kept_at
        return self._num_left > 0 or elapsed_s >= self._took_s / _SHARE

    def find_corrupt(self, *, is_all: bool) -> str:
        """Returns what is not sound any more, in words; "" if what was looked at is."""
        self._began_at = time.perf_counter()
        found = [one for one in self._beyond(is_all=is_all) if one[0] not in self._exempt]
        place, number = max(found, key=lambda one: size_of(one[1]), default=("", 0.0))
        return place and f"{place} holds {number:.3g}, beyond {MAX_LOSS:.0e} or not finite"

    def keep(self) -> None:
        """Keeps a copy of the state, all of which has just been found sound."""
        self._copy = to_plain(self._read())
        self._kept_at = time.perf_counter()
        self._took_s = self._kept_at - self._began_at
        self._num_left = max(0, self._num_left - 1)

    def go_back(self) -> None:
        """Has the trainer load the copy."""
        self._trainer.load(from_plain(copy.deepcopy(self._copy)))
        self._num_left = self._num_watched

    def _beyond(self, *, is_all: bool) -> Iterator[tuple[str, float]]:
        """Yields the places of arrays and tensors that are not sound, with their largest number."""
        name, read = ("state", self._read) if is_all else self._often
        tensors: dict[Any, list[tuple[Path, Any]]] = defaultdict(list)
        for path, leaf in leaves(read()):
            if isinstance(leaf, np.ndarray) and leaf.dtype.kind == "f" and leaf.size:
                number = max(float(leaf.max()), float(leaf.min()), key=size_of)
                if not size_of(number) <= MAX_LOSS:
                    yield f"{name}{shown(path)}", number
            elif hasattr(leaf, "is_floating_point") and leaf.is_floating_point() and leaf.numel():
                tensors[leaf.device].append((path, leaf))
        for found in tensors.values():  # of a device, at once: one wait for it
            torch: Any = importlib.import_module("torch")
            with torch.no_grad():
                norms = torch._foreach_norm([leaf for _, leaf in found])
                sizes = torch.stack([norm.float() for norm in norms]).tolist()
            for (path, leaf), size in zip(found, sizes, strict=True):
                # The squares in a norm may overflow, of numbers that are sound.
                if not size <= MAX_LOSS and not (size := float(leaf.abs().max())) <= MAX_LOSS:
                    yield f"{name}{shown(path)}", size
