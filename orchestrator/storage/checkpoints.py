"""A run's checkpoints: all of its servers at one moment, each checkpoint whole or absent.

::

    checkpoints/
    ├── 120000/              env steps of training before it
    │   ├── manifest.json    written last: a folder that has it is whole
    │   ├── ppo/             a server's own: muxrl.json and arrays
    │   └── qmix/
    ├── last -> 120000
    ├── best -> 80000        with `checkpoint.best`
    └── best-2 -> 100000     with its `keep: 2`

A checkpoint grows in a hidden folder beside these and is moved to its place when all of it is on
the disk. In muxrl 0.1 every server had its own: ``checkpoints/SERVER/last``.
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
    """Path in its folder to SHA-256."""
    weights_seq_no: int | None = None
    """Version of its weights, 0 before any update; None: it has none, or the file is older."""

    @classmethod
    def of(cls, algorithm: str, iteration: int, folder: Path) -> SavedServer:
        """Returns what a server has written into a folder, absent where it had nothing to save.

        Raises:
            OSError: a file cannot be read.
        """
        version = None
        if (path := folder / ABOUT_FILE).is_file():  # a report would be of a later moment
            version = json.loads(path.read_text(encoding="utf-8")).get("weights_seq_no")
        return cls(algorithm, iteration, hash_files(folder), version)


@dataclass(frozen=True)
class Manifest:
    """What ``manifest.json`` says: all that a run needs beside its servers' files to continue."""

    env_steps: int
    time_s: float
    """Seconds of training."""
    written_at: str
    """ISO 8601, UTC."""
    muxrl: str | None
    """Its version."""
    servers: Mapping[str, SavedServer]
    num_episodes_begun: Mapping[str, int]
    """By simulation process: as many seeds are used up."""
    metrics_bytes: Mapping[str, int]
    """How long each metrics file was."""
    tally: Mapping[str, Any]
    """See `muxrl.orchestrator.launch.tally.Tally.state`."""
    evaluation_due_at: int | None = None
    """Env steps; None: none is scheduled."""
    best: tuple[tuple[int, float], ...] = ()
    """Env steps of the checkpoints that are called best, the best one first, and what each
    returned."""
    best_by: str = ""
    """By what: the same text, the same metric; "": nothing, or the manifest is older."""
    is_snapshot: bool = False
    """Whether it is kept for good, whatever `checkpoint.keep_every_env_steps` is later; older
    manifests do not say so."""

    def write(self, folder: Path) -> None:
        """Writes it into the folder of a checkpoint.

        Raises:
            OSError: it cannot be written.
        """
        write_json(folder / MANIFEST_FILE, {"format": _FORMAT, **asdict(self)})

    @classmethod
    def read(cls, folder: Path) -> Manifest:
        """Reads it back.

        Raises:
            CannotResume: it is absent, broken, or of another version.
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
        path: of the folder.
    """

    def __init__(self, path: Path) -> None:
        self.path = path.absolute()

    # --- write --------------------------------------------------------------------------

    def draft(self, env_steps: int) -> Path:
        """Makes an empty folder for a checkpoint to grow in; leftovers of others are removed.

        Raises:
            OSError: it cannot be made: the run's directory is gone, for instance.
        """
        if not self.path.exists():
            self.path.mkdir()
        self.restore()
        self._tidy()
        # A name of its own: a server that was given up may still write into the one before.
        draft = self.path / f"{_HIDDEN}{env_steps}-{secrets.token_hex(4)}"
        draft.mkdir()
        return draft

    def commit(self, draft: Path, manifest: Manifest) -> Path:
        """Completes a draft, moves it to its place, and lets `last` lead there.

        Raises:
            OSError: the disk is full, or something else is in its place.
        """
        manifest.write(draft)
        sync_one(draft)
        place = self.path / str(manifest.env_steps)
        old = place.with_name(f"{_HIDDEN}old-{place.name}")
        if place.exists():  # of the same moment: the run was resumed and ended at once
            place.rename(old)
        draft.rename(place)
        _remove(old)
        self.link(LAST, manifest.env_steps)
        sync_one(self.path)
        return place

    def link(self, name: str, env_steps: int) -> None:
        """Lets a name lead to a checkpoint from now on.

        Raises:
            OSError: it cannot be made.
        """
        link = self.path / f"{_HIDDEN}{name}"
        _remove(link)
        link.symlink_to(str(env_steps))
        link.replace(self.path / name)

    def note_best(self, best: Sequence[tuple[int, float]], best_by: str) -> None:
        """Has the newest manifest say which checkpoints are best; removes names of further ones.

        Args:
            best: see `Manifest`.
            best_by: likewise.

        Raises:
            OSError: it cannot be written.
        """
        for name in self._best_names()[len(best) :]:
            _remove(self.path / name)
        for env_steps in self.env_steps[:1]:
            place = self.path / str(env_steps)
            with contextlib.suppress(CannotResume):  # it is damaged: an older one counts
                replace(Manifest.read(place), best=tuple(best), best_by=best_by).write(place)

    def drop(self, draft: Path) -> None:
        """Removes a draft that was not completed."""
        _remove(draft)

    def snapshots(self, every: int | None) -> list[int]:
        """Returns the env steps of the first checkpoint from each multiple of `every` on."""
        first: dict[int, int] = {}
        for env_steps in self.env_steps if every else ():
            first[env_steps // (every or 1)] = env_steps  # the oldest comes last
        return sorted(env_steps for multiple, env_steps in first.items() if multiple)

    def prune(self, keep_last: int, keep: Collection[int] = (), every: int | None = None) -> None:
        """Deletes all checkpoints but the newest ones, snapshots, and those that a name leads to.

        Args:
            keep_last: how many.
            keep: env steps of others to keep.
            every: see `snapshots`.
        """
        keep = {*keep, *self.snapshots(every)}
        named = {(self.path / name).resolve() for name in (LAST, *self._best_names())}
        for env_steps in self.env_steps[keep_last:]:
            place = self.path / str(env_steps)
            is_named = place.resolve() in named
            if not (env_steps in keep or is_named or self._is_marked(env_steps)):
                # Under a hidden name, so that what a killed writer leaves of it is no checkpoint.
                left = place.with_name(f"{_HIDDEN}pruned-{place.name}")
                with contextlib.suppress(OSError):
                    place.rename(left)
                    _remove(left)

    def _is_marked(self, env_steps: int) -> bool:
        with contextlib.suppress(CannotResume):  # it is damaged
            return Manifest.read(self.path / str(env_steps)).is_snapshot
        return False

    def _tidy(self) -> None:
        """Removes what a writer that was killed has left."""
        for left in self.path.glob(f"{_HIDDEN}*"):
            _remove(left)

    def restore(self) -> None:
        """Puts a checkpoint back that was being replaced when the writer was killed.

        Raises:
            OSError: it cannot be moved.
        """
        for old in self.path.glob(f"{_HIDDEN}old-*/{MANIFEST_FILE}"):
            place = self.path / old.parent.name.removeprefix(f"{_HIDDEN}old-")
            if not place.exists():
                old.parent.rename(place)

    def set_aside(self, after: int) -> None:
        """Renames newer checkpoints to ``N.unused``: the run continues from `after`, not from them.

        What a writer that was killed has left is removed.

        Args:
            after: env steps of the checkpoint from which it continues.

        Raises:
            OSError: one cannot be moved.
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
        """Those of all checkpoints that are there, newest first."""
        return sorted(
            (int(p.parent.name) for p in self.path.glob(f"*/{MANIFEST_FILE}") if _is_place(p)),
            reverse=True,
        )

    def find(self, name: str = LAST) -> Path | None:
        """Returns a checkpoint's folder by name or env steps; None if it is not there."""
        place = self.path / name
        if (place / MANIFEST_FILE).is_file():
            return place
        if name == LAST and self.env_steps:  # copied without its links
            return self.path / str(self.env_steps[0])
        return None

    def names(self, server_id: str) -> list[str]:
        """Returns what the checkpoints of a server are called."""
        called = (LAST, *self._best_names())
        named = [n for n in called if (p := self.find(n)) and (p / server_id).is_dir()]
        places = [str(n) for n in self.env_steps if (self.path / str(n) / server_id).is_dir()]
        return [*places, *named] if places else sorted(self._of_0_1(server_id))

    def saved_text(self, server_id: str) -> str:
        """Returns which checkpoints a server has, for a refusal: "it has 4000, last"."""
        saved = self.names(server_id)
        return f"it has {listed(saved)}" if saved else "none was saved"

    def of_server(self, server_id: str, name: str = LAST) -> Path | None:
        """Returns the folder of a server's own checkpoint, in the layout of 0.1, too."""
        place = self.find(name)
        if place is not None and (place / server_id).is_dir():
            return place / server_id
        return self._of_0_1(server_id).get(name)

    def _best_names(self) -> list[str]:
        """Returns those that there are, the best one first."""
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
    """Returns the SHA-256 of every file below a folder, by its path from there.

    Raises:
        OSError: one cannot be read.
    """
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    return {path.relative_to(folder).as_posix(): sha256(path) for path in files}


def find_whole(
    checkpoints: CheckpointFolder, only: str | None = None
) -> tuple[tuple[Path, Manifest] | None, list[str]]:
    """Returns the newest checkpoint that is whole, and what is wrong with newer ones.

    Args:
        checkpoints: of a run.
        only: the server whose part has to be there and whole; None: all parts.

    Returns:
        The checkpoint's folder and manifest, None if there is no such one; and a sentence for each
        newer one.
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
    """Yields a sentence for each file of a checkpoint that is missing or not what was written.

    Args:
        place: the checkpoint's folder.
        manifest: its own.
        only: the server whose files are looked at; None: all.
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
