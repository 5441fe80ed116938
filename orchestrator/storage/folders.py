"""The folder of a run, a sweep or a league, which is new when made, and run by one process."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from datetime import datetime
from itertools import count
from pathlib import Path
from typing import ClassVar, Self

import msgspec

from muxrl.orchestrator.errors import SweepIsRunning
from muxrl.orchestrator.storage.process import Process
from muxrl.protocol.suggestions import did_you_mean
from muxrl.servers.checkpoints.folder_lock import held, is_held


@dataclass(frozen=True)
class Folder:
    """The folder with all files of one run, sweep or league. Make one with `create`."""

    path: Path
    _INNER: ClassVar[tuple[str, ...]] = ()
    """Subfolders that are made with it."""
    _FILES: ClassVar[tuple[str, ...]] = ()
    """Files that a folder of this kind has."""
    _NOT_ONE: ClassVar[type[Exception]] = FileNotFoundError
    """Raised for a folder of another kind; made of a path, and what is wrong with it."""

    @classmethod
    def create(cls, root: Path, name: str, now: datetime) -> Self:
        """Makes a new folder ``<name>-YYYYmmdd-HHMMSS`` under `root`, with ``-2``, ``-3``... added
        if there is one of that name, which another process may have made in the same second.

        Raises:
            OSError: `root` cannot be made or written to.
        """
        root.mkdir(parents=True, exist_ok=True)
        for path in _candidates(root, f"{name}-{now:%Y%m%d-%H%M%S}"):
            with contextlib.suppress(FileExistsError):
                path.mkdir()
                return cls(path)._filled()
        raise AssertionError("there is always a next number")

    @classmethod
    def create_at(cls, path: Path) -> Self:
        """Makes exactly this folder.

        Raises:
            FileExistsError: the folder exists already; nothing is ever overwritten.
            OSError: the folder cannot be made.
        """
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            path.mkdir()
        except FileExistsError:
            raise FileExistsError(
                f"{path} exists already, and a run never overwrites another one; name a folder "
                "that does not exist yet"
            ) from None
        return cls(path)._filled()

    @classmethod
    def make(cls, path: Path | None, root: Path, name: str) -> Self:
        """Makes exactly `path`, or if it is None, a new folder under `root`.

        Raises:
            OSError: see `create` and `create_at`.
        """
        return cls.create(root, name, datetime.now()) if path is None else cls.create_at(path)

    def _filled(self) -> Self:
        for name in self._INNER:
            (self.path / name).mkdir()
        return self

    @classmethod
    def open(cls, path: Path) -> Self:
        """Opens an existing folder.

        Raises:
            NotASweepDirectory, NotALeagueDirectory: there is no such folder, or it is of another
                kind.
        """
        if not path.is_dir():
            raise cls._NOT_ONE(path, no_such_folder(path))
        for name in cls._FILES:
            if not (path / name).is_file():
                raise cls._NOT_ONE(path, f"it has no {name}")
        return cls(path.resolve())

    @property
    def name(self) -> str:
        """The folder's own name."""
        return self.path.name

    @property
    def lock(self) -> Path:
        """The file that the process that runs it has locked, and into which it writes who it is."""
        return self.path / "lock"

    @contextlib.contextmanager
    def locked(self) -> Iterator[None]:
        """Keeps other processes from running it; released however this process ends.

        Raises:
            SweepIsRunning: another process is running it.
        """
        taken = f"another process is running {self.path}; wait for its end, or stop it first"
        with held(self.lock, lambda: SweepIsRunning(taken)):
            yield

    def write_owner(self, process: Process) -> None:
        """Writes into the lock file which process runs it from now on.

        Raises:
            OSError: the folder cannot be written to.
        """
        self.lock.write_text(json.dumps(asdict(process)), encoding="utf-8")

    @property
    def owner(self) -> Process | None:
        """The process that runs it, or ran it last; None if the lock file names none."""
        with contextlib.suppress(OSError, ValueError):
            return msgspec.json.decode(self.lock.read_bytes(), type=Process)
        return None

    @property
    def is_running(self) -> bool:
        """Whether a process runs it now."""
        owner = self.owner  # `is_held` alone might be in the way of a start
        return owner is not None and not owner.has_ended and is_held(self.lock)


def next_path(folder: Path, stem: str, suffix: str = "") -> Path:
    """Returns the first path ``stem``, ``stem-2``, ``stem-3``... that does not exist."""
    return next(path for path in _candidates(folder, stem, suffix) if not path.exists())


def _candidates(folder: Path, stem: str, suffix: str = "") -> Iterator[Path]:
    yield folder / f"{stem}{suffix}"
    for number in count(2):
        yield folder / f"{stem}-{number}{suffix}"


def no_such_folder(path: Path) -> str:
    """Returns a sentence that the folder is missing, with similar names of its siblings, if any."""
    siblings: list[str] = []
    with contextlib.suppress(OSError):
        siblings = sorted(entry.name for entry in path.parent.iterdir() if entry.is_dir())
    return f"there is no such folder{did_you_mean(path.name, siblings)}"
