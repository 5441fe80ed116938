"""A trainer's last sound state, to which it goes back after an update that has corrupted it.

The weights that act are checked after each update. Checking and copying the whole state takes
longer, and is done now and then: a skipped update loses what was learned since the last copy.
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
"""Share of the time that checking and copying whole states may take."""


class SoundState:
    """Keeps a copy of a trainer's sound state.

    Arrays that are unsound from the start, such as a best value so far or a buffer that is not
    filled yet, are not checked later either.

    Args:
        trainer: its ``learned_state``, or else its ``state``, is kept.
        num_watched: after a skipped update, the whole state is checked and copied after each of so
            many updates: a replay may still hold the number that has corrupted it, and what was
            learned in between would be lost again.
    """

    def __init__(self, trainer: Any, num_watched: int) -> None:
        self._trainer = trainer
        is_whole = not hasattr(trainer, "learned_state")
        self._read = trainer.state if is_whole else trainer.learned_state
        self._often: tuple[str, Callable[[], Any]] = ("state", self._read)
        if hasattr(trainer, "weights"):
            self._often = "weights()", trainer.weights
        elif is_whole and getattr(trainer, "learns_from", "") == "replay":
            self._often = "", dict  # a state with its replay takes long to read
        self._num_watched = num_watched
        self._num_left = 0
        self._began_at = time.perf_counter()
        both = (*self._beyond(is_all=True), *self._beyond(is_all=False))
        self._exempt = frozenset(place for place, _ in both)
        self.keep()

    @property
    def is_due(self) -> bool:
        """Whether it is time to check the whole state, and to keep a copy."""
        elapsed_s = time.perf_counter() - self._kept_at
        return self._num_left > 0 or elapsed_s >= self._took_s / _SHARE

    def find_corrupt(self, *, is_all: bool) -> str:
        """Returns what is not sound any more, in words; "" if everything checked is sound.

        Args:
            is_all: whether to check the whole state; else only the weights that act.
        """
        self._began_at = time.perf_counter()
        found = [one for one in self._beyond(is_all=is_all) if one[0] not in self._exempt]
        place, number = max(found, key=lambda one: size_of(one[1]), default=("", 0.0))
        return place and f"{place} holds {number:.3g}, beyond {MAX_LOSS:.0e} or not finite"

    def keep(self) -> None:
        """Keeps a copy of the state, which has just been found sound as a whole."""
        self._copy = to_plain(self._read())
        self._kept_at = time.perf_counter()
        self._took_s = self._kept_at - self._began_at
        self._num_left = max(0, self._num_left - 1)

    def go_back(self) -> None:
        """Makes the trainer load the kept copy."""
        self._trainer.load(from_plain(copy.deepcopy(self._copy)))
        self._num_left = self._num_watched

    def _beyond(self, *, is_all: bool) -> Iterator[tuple[str, float]]:
        """Yields the paths of unsound arrays and tensors, with their largest numbers."""
        name, read = ("state", self._read) if is_all else self._often
        tensors: dict[Any, list[tuple[Path, Any]]] = defaultdict(list)
        for path, leaf in leaves(read()):
            if isinstance(leaf, np.ndarray) and leaf.dtype.kind == "f" and leaf.size:
                number = max(float(leaf.max()), float(leaf.min()), key=size_of)
                if not size_of(number) <= MAX_LOSS:
                    yield f"{name}{shown(path)}", number
            elif hasattr(leaf, "is_floating_point") and leaf.is_floating_point() and leaf.numel():
                tensors[leaf.device].append((path, leaf))
        for found in tensors.values():  # all of a device at once, to wait for it once
            torch: Any = importlib.import_module("torch")
            with torch.no_grad():
                norms = torch._foreach_norm([leaf for _, leaf in found])
                sizes = torch.stack([norm.float() for norm in norms]).tolist()
            for (path, leaf), size in zip(found, sizes, strict=True):
                # The squares of sound numbers may overflow in a norm.
                if not size <= MAX_LOSS and not (size := float(leaf.abs().max())) <= MAX_LOSS:
                    yield f"{name}{shown(path)}", size
