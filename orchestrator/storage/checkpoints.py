"""A run's checkpoints: each has all of its servers at one moment, and is whole or absent.

::

    checkpoints/
    ├── 120000/              env steps of training before it
    │   ├── manifest.json    written last: a folder that has it is whole
    │   ├── ppo/             a server's part: muxrl.json and arrays
    │   └── qmix/
    ├── last -> 120000
    ├── best -> 80000        with `checkpoint.best`
    └── best-2 -> 100000     with its `keep: 2`

A checkpoint is written into a hidden folder beside these, and renamed once it is all on the disk.
In muxrl 0.1 every server had separate checkpoints: ``checkpoints/SERVER/last``.
"""

from __future__ import annotations

import contextlib
import json
import re
import secrets
import shutil
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import msgspec

from muxrl.orchestrator.errors import CannotResume
from muxrl.orchestrator.storage.json_files import write_json
from muxrl.protocol.suggestions import listed
from muxrl.servers.checkpoints.checkpoint import ABOUT_FILE, SET_ASIDE, sync_one
from muxrl.servers.checkpoints.formats import format_problem
from muxrl.servers.checkpoints.integrity import MANIFEST_FILE, damage_of, sha256

LAST = "last"
BEST = "best"
_BEST = re.compile(rf"{BEST}(-\d+)?").fullmatch
_FORMAT = 1
_HIDDEN = "."


@dataclass(frozen=True)
class SavedServer:
    """One server's part of a checkpoint."""

    algorithm: str
    iteration: int = 0
    files: Mapping[str, str] = field(default_factory=dict)
    """By path in the server's folder: the file's SHA-256."""
    weights_seq_no: int | None = None
    """Version of its weights, 0 before any update; None: it has none, or the manifest is older."""

    @classmethod
    def of(cls, algorithm: str, iteration: int, folder: Path) -> SavedServer:
        """Describes what a server has written into a folder, which is absent if it saved nothing.

        Raises:
            OSError: a file cannot be read.
        """
        version = None
        if (path := folder / ABOUT_FILE).is_file():  # a report might be of a later moment
            version = json.loads(path.read_text(encoding="utf-8")).get("weights_seq_no")
        return cls(algorithm, iteration, hash_files(folder), version)


@dataclass(frozen=True)
class Manifest:
    """The content of ``manifest.json``: all that a run needs to continue besides servers' files."""

    env_steps: int
    time_s: float
    """Seconds of training."""
    written_at: str
    """ISO 8601, UTC."""
    muxrl: str | None
    """The version of muxrl."""
    servers: Mapping[str, SavedServer]
    num_episodes_begun: Mapping[str, int]
    """By simulation process: how many episodes it has begun, and so how many seeds are used."""
    metrics_bytes: Mapping[str, int]
    """Bytes of each metrics file at this moment."""
    tally: Mapping[str, Any]
    """See `muxrl.orchestrator.launch.tally.Tally.state`."""
    evaluation_due_at: int | None = None
    """Env steps of the next evaluation; None: none is scheduled."""
    best: tuple[tuple[int, float], ...] = ()
    """The best checkpoints, the best one first: env steps, and the value by which it was judged."""
    best_by: str = ""
    """The metric by which they were judged, as a text to compare; "": none, or the manifest is
    older."""
    is_snapshot: bool = False
    """Whether it is kept for good, whatever `checkpoint.keep_every_env_steps` is later; False in
    older manifests, which do not say so."""

    def write(self, folder: Path) -> None:
        """Writes the manifest into the folder of a checkpoint.

        Raises:
            OSError: the file cannot be written.
        """
        write_json(folder / MANIFEST_FILE, {"format": _FORMAT, **asdict(self)})

    @classmethod
    def read(cls, folder: Path) -> Manifest:
        """Reads the manifest of a checkpoint.

        Raises:
            CannotResume: the file is absent, broken, or of another version.
        """
        path = folder / MANIFEST_FILE
        try:
            content = msgspec.json.decode(path.read_bytes())
            if problem := format_problem(content["format"], _FORMAT):
                raise CannotResume(f"{path} {problem}")
            return msgspec.convert(content, cls)
        except (OSError, ValueError, TypeError, KeyError) as error:
            raise CannotResume(f"{path} cannot be read: {error!r}") from error


class CheckpointFolder:
    """The folder ``checkpoints`` of a run.

    Args:
        path: the folder's path.
    """

    def __init__(self, path: Path) -> None:
        self.path = path.absolute()

    # --- write --------------------------------------------------------------------------

    def draft(self, env_steps: int) -> Path:
        """Makes an empty folder into which a checkpoint is written; removes leftovers of others.

        Raises:
            OSError: the folder cannot be made: the run's directory is gone, for instance.
        """
        if not self.path.exists():
            self.path.mkdir()
        self.restore()
        self._tidy()
        # A new name each time: a server that was given up may still write into an earlier draft.
        draft = self.path / f"{_HIDDEN}{env_steps}-{secrets.token_hex(4)}"
        draft.mkdir()
        return draft

    def commit(self, draft: Path, manifest: Manifest) -> Path:
        """Completes a draft, moves it to its place, and points the link `last` to it.

        Raises:
            OSError: the disk is full, or something else is in its place.
        """
        manifest.write(draft)
        sync_one(draft)
        place = self.path / str(manifest.env_steps)
        old = place.with_name(f"{_HIDDEN}old-{place.name}")
        if place.exists():  # at the same env steps: a resumed run has ended at once
            place.rename(old)
        draft.rename(place)
        _remove(old)
        self.link(LAST, manifest.env_steps)
        sync_one(self.path)
        return place

    def link(self, name: str, env_steps: int) -> None:
        """Points a link with this name to a checkpoint.

        Raises:
            OSError: the link cannot be made.
        """
        link = self.path / f"{_HIDDEN}{name}"
        _remove(link)
        link.symlink_to(str(env_steps))
        link.replace(self.path / name)

    def note_best(self, best: Sequence[tuple[int, float]], best_by: str) -> None:
        """Writes into the newest manifest which checkpoints are best, and removes surplus links.

        Args:
            best: see `Manifest`.
            best_by: see `Manifest`.

        Raises:
            OSError: the manifest cannot be written.
        """
        for name in self._best_names()[len(best) :]:
            _remove(self.path / name)
        for env_steps in self.env_steps[:1]:
            place = self.path / str(env_steps)
            with contextlib.suppress(CannotResume):  # it is damaged, and an older manifest counts
                replace(Manifest.read(place), best=tuple(best), best_by=best_by).write(place)

    def drop(self, draft: Path) -> None:
        """Removes a draft that was not completed."""
        _remove(draft)

    def snapshots(self, every: int | None) -> list[int]:
        """Returns the env steps of snapshots: the first checkpoint at or after each multiple of
        `every`."""
        first: dict[int, int] = {}
        for env_steps in self.env_steps if every else ():
            first[env_steps // (every or 1)] = env_steps  # the oldest comes last, and stays
        return sorted(env_steps for multiple, env_steps in first.items() if multiple)

    def prune(self, keep_last: int, keep: Collection[int] = (), every: int | None = None) -> None:
        """Deletes all checkpoints but the newest, snapshots, and those to which a link points.

        Args:
            keep_last: how many of the newest checkpoints to keep.
            keep: env steps of other checkpoints to keep.
            every: see `snapshots`.
        """
        keep = {*keep, *self.snapshots(every)}
        named = {(self.path / name).resolve() for name in (LAST, *self._best_names())}
        for env_steps in self.env_steps[keep_last:]:
            place = self.path / str(env_steps)
            is_named = place.resolve() in named
            if not (env_steps in keep or is_named or self._is_marked(env_steps)):
                # Renamed first: what a killed process leaves of it must not look like a checkpoint.
                left = place.with_name(f"{_HIDDEN}pruned-{place.name}")
                with contextlib.suppress(OSError):
                    place.rename(left)
                    _remove(left)

    def _is_marked(self, env_steps: int) -> bool:
        with contextlib.suppress(CannotResume):  # a damaged manifest
            return Manifest.read(self.path / str(env_steps)).is_snapshot
        return False

    def _tidy(self) -> None:
        """Removes what a killed writer has left."""
        for left in self.path.glob(f"{_HIDDEN}*"):
            _remove(left)

    def restore(self) -> None:
        """Puts back a checkpoint that was being replaced when its writer was killed.

        Raises:
            OSError: the checkpoint cannot be renamed.
        """
        for old in self.path.glob(f"{_HIDDEN}old-*/{MANIFEST_FILE}"):
            place = self.path / old.parent.name.removeprefix(f"{_HIDDEN}old-")
            if not place.exists():
                old.parent.rename(place)

    def set_aside(self, after: int) -> None:
        """Renames checkpoints that are newer than `after` to ``N.unused``.

        What a killed writer has left is removed.

        Args:
            after: env steps of the checkpoint from which the run continues.

        Raises:
            OSError: a checkpoint cannot be renamed.
        """
        self._tidy()
        for env_steps in self.env_steps:
            if env_steps > after:
                place = self.path / str(env_steps)
                unused = place.with_name(f"{place.name}{SET_ASIDE}")
                _remove(unused)
                place.rename(unused)
        self.link(LAST, after)
        for name in self._best_names():
            if not (self.path / name).exists():
                _remove(self.path / name)

    # --- read ---------------------------------------------------------------------------

    @property
    def env_steps(self) -> list[int]:
        """Env steps of all checkpoints in the folder, newest first."""
        return sorted(
            (int(p.parent.name) for p in self.path.glob(f"*/{MANIFEST_FILE}") if _is_place(p)),
            reverse=True,
        )

    def find(self, name: str = LAST) -> Path | None:
        """Returns a checkpoint's folder by name or env steps; None if it is not there."""
        place = self.path / name
        if (place / MANIFEST_FILE).is_file():
            return place
        if name == LAST and self.env_steps:  # the folder was copied without its links
            return self.path / str(self.env_steps[0])
        return None

    def names(self, server_id: str) -> list[str]:
        """Returns the names of all checkpoints that have a part of this server."""
        called = (LAST, *self._best_names())
        named = [n for n in called if (p := self.find(n)) and (p / server_id).is_dir()]
        places = [str(n) for n in self.env_steps if (self.path / str(n) / server_id).is_dir()]
        return [*places, *named] if places else sorted(self._of_0_1(server_id))

    def saved_text(self, server_id: str) -> str:
        """Returns which checkpoints a server has, for a refusal: "it has 4000, last"."""
        saved = self.names(server_id)
        return f"it has {listed(saved)}" if saved else "none was saved"

    def of_server(self, server_id: str, name: str = LAST) -> Path | None:
        """Returns the folder of a server's part of a checkpoint, also in the layout of 0.1."""
        place = self.find(name)
        if place is not None and (place / server_id).is_dir():
            return place / server_id
        return self._of_0_1(server_id).get(name)

    def _best_names(self) -> list[str]:
        """Returns the names of the best checkpoints, the best one first."""
        names = [path.name for path in self.path.glob(f"{BEST}*") if _BEST(path.name)]
        return sorted(names, key=lambda name: (len(name), name))

    def _of_0_1(self, server_id: str) -> dict[str, Path]:
        folder = self.path / server_id
        if server_id == LAST or _BEST(server_id) or (folder / MANIFEST_FILE).exists():
            return {}
        return {p.name: p for p in folder.glob("*") if p.is_dir()}


def best_name(rank: int) -> str:
    """Returns the name of the best checkpoint (0), the second best (1), and so on."""
    return f"{BEST}-{rank + 1}" if rank else BEST


def hash_files(folder: Path) -> dict[str, str]:
    """Returns the SHA-256 of every file below a folder, by its path in the folder.

    Raises:
        OSError: a file cannot be read.
    """
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    return {path.relative_to(folder).as_posix(): sha256(path) for path in files}


def find_whole(
    checkpoints: CheckpointFolder, only: str | None = None
) -> tuple[tuple[Path, Manifest] | None, list[str]]:
    """Returns the newest whole checkpoint, and what is wrong with newer ones.

    Args:
        checkpoints: the checkpoints of a run.
        only: the server whose part has to be there and whole; None: all parts have to be whole.

    Returns:
        The checkpoint's folder and manifest, None if there is none; and a sentence for each newer,
        damaged checkpoint.
    """
    problems = []
    for env_steps in checkpoints.env_steps:
        place = checkpoints.path / str(env_steps)
        try:
            manifest = Manifest.read(place)
        except CannotResume as error:
            problems.append(str(error))
            continue
        if only is None or only in manifest.servers:
            damage = next(find_damage(place, manifest, only), None)
            if damage is None:
                return (place, manifest), problems
            problems.append(damage)
    return None, problems


def find_damage(place: Path, manifest: Manifest, only: str | None = None) -> Iterator[str]:
    """Yields a sentence for each file of a checkpoint that is missing or has changed.

    Args:
        place: the checkpoint's folder.
        manifest: the checkpoint's manifest.
        only: the server whose files are checked; None: all servers.
    """
    for server_id, server in manifest.servers.items():
        if only is not None and server_id != only:
            continue
        for name, expected in server.files.items():
            if damage := damage_of(place / server_id / name, expected):
                yield damage


def _is_place(manifest: Path) -> bool:
    return manifest.parent.name.isdecimal() and not manifest.parent.is_symlink()


def _remove(path: Path) -> None:
    if path.is_symlink() or path.is_file():
        path.unlink(missing_ok=True)
    else:
        shutil.rmtree(path, ignore_errors=True)
