"""Paths that are not there yet: the plain name, or with ``-2``, ``-3``... after it."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import count
from pathlib import Path


def next_path(folder: Path, stem: str, suffix: str = "") -> Path:
    """Returns the first path ``stem``, ``stem-2``, ``stem-3``... that does not exist."""
    return next(path for path in _candidates(folder, stem, suffix) if not path.exists())


def make_next_folder(parent: Path, stem: str) -> Path:
    """Makes the first folder of that kind; safe against another process doing the same.

    Raises:
        OSError: `parent` cannot be made or written to.
    """
    parent.mkdir(parents=True, exist_ok=True)
    for path in _candidates(parent, stem):
        try:
            path.mkdir()
        except FileExistsError:
            continue
        return path
    raise AssertionError("there is always a next number")


def _candidates(folder: Path, stem: str, suffix: str = "") -> Iterator[Path]:
    yield folder / f"{stem}{suffix}"
    for number in count(2):
        yield folder / f"{stem}-{number}{suffix}"
