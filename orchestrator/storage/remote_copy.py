"""A copy of a run's directory in an object store or on another disk, by pyarrow's file systems.

A run can go on from what the copy holds at any moment: a checkpoint's manifest is copied after its
files and the metrics that it refers to, and what was deleted here is deleted there last.
"""

from __future__ import annotations

import logging
import os
import shutil
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from muxrl.orchestrator.errors import CannotResume, ConfigError
from muxrl.orchestrator.storage.checkpoints import CheckpointFolder, best_name, find_whole
from muxrl.protocol.suggestions import similar_or_known
from muxrl.servers.checkpoints.integrity import MANIFEST_FILE

logger = logging.getLogger(__name__)

SCHEMES = ("s3", "gs", "gcs", "abfs", "abfss", "hdfs", "file")
"""Of URIs that pyarrow knows."""
_OBJECT_STORES = ("s3", "gcs", "abfs")
"""Types of file systems that have no folders."""
_CONFIG_FILE = "config.yaml"


def find_problem(uri: str) -> str | None:
    """Returns what is wrong with the spelling of a URI; None: nothing."""
    parts = urlsplit(uri)
    if parts.scheme not in SCHEMES:
        hint = similar_or_known(parts.scheme, SCHEMES, "the schemes are")
        return f"expected a URI such as s3://bucket/folder, got {uri!r}{hint}"
    if not parts.path.strip("/") and not parts.netloc:
        return f"{uri!r} names no bucket and no folder"
    return None


class RemoteCopy:
    """Copies a folder whenever it is told to, in a thread of its own; a failure is tried again.

    Args:
        folder: of a run.
        uri: of the copy's parent; None: there is no copy, and nothing is done.
        name: of the copy's folder.
        is_new: whether nothing may be there yet.

    Raises:
        ConfigError: the place cannot be reached, or something is there already.
    """

    def __init__(self, folder: Path, uri: str | None, name: str, *, is_new: bool) -> None:
        self._uri, self._folder = uri, folder
        self._seen: dict[str, tuple[int, int] | None] = {}
        """What is there, by path: bytes and time of the file that was copied; None: unknown."""
        self._problem = ""
        self._is_wanted = threading.Event()
        self._is_over = False
        if uri is None:
            return
        try:
            self._files, root = _open(uri)
            self._root = f"{root}/{name}"
            self._seen = {path: None for path, _ in _listed(self._files, self._root)}
            if is_new and self._seen:
                raise FileExistsError(f"there is a folder {name!r} already")
            self._copy()
        except (OSError, ValueError) as error:
            raise ConfigError([f"storage_path: {uri} cannot hold a copy: {error}"]) from error
        self._thread = threading.Thread(target=self._work, name="remote-copy", daemon=True)
        self._thread.start()

    def update(self) -> None:
        """Has what has changed be copied; returns at once."""
        self._is_wanted.set()

    def finish(self, timeout_s: float) -> str:
        """Copies what is left.

        Args:
            timeout_s: for how long to wait for that.

        Returns:
            "", or in a sentence why the copy is not whole.
        """
        if self._uri is None:
            return ""
        self._is_over = True
        self._is_wanted.set()
        self._thread.join(timeout_s)
        if self._thread.is_alive():
            return f"the copy in {self._uri} was not whole after {timeout_s:g} s"
        return self._problem

    def _work(self) -> None:
        is_last = False
        while not is_last:
            self._is_wanted.wait()
            self._is_wanted.clear()
            is_last = self._is_over
            try:
                self._copy()
                self._problem = ""
            except Exception as error:  # pyarrow has many; else it would seem whole
                if not self._problem:
                    logger.warning("nothing was copied to %s", self._uri, exc_info=True)
                self._problem = f"the copy in {self._uri} is not whole: {error}"

    def _copy(self) -> None:
        """Copies what has changed, and deletes what is gone.

        Raises:
            OSError: the place cannot be reached.
        """
        while True:
            now = _contents(self._folder)
            changed = [path for path, stat in now.items() if self._seen.get(path) != stat]
            if self._send(sorted(changed, key=_order), now):
                break
        for path in sorted(self._seen.keys() - now.keys(), key=_order, reverse=True):
            self._files.delete_file(f"{self._root}/{path}")
            del self._seen[path]

    def _send(self, paths: list[str], now: dict[str, tuple[int, int]]) -> bool:
        """Copies files; False: one was deleted meanwhile, and what is there has to be seen anew."""
        for path in paths:
            place = f"{self._root}/{path}"
            parent, _, name = place.rpartition("/")
            part = place
            if self._files.type_name not in _OBJECT_STORES:  # in those a file is whole or absent
                self._files.create_dir(parent, recursive=True)
                part = f"{parent}/.{name}.part"
            try:
                source = (self._folder / path).open("rb")
            except FileNotFoundError:
                return False
            with source, self._files.open_output_stream(part) as copy:
                shutil.copyfileobj(source, copy)
            if part != place:
                self._files.move(part, place)
            self._seen[path] = now[path]
        return True


def fetch(uri: str, place: Path | None = None) -> Path:
    """Brings back a copy of a run, which then can continue here.

    Args:
        uri: of the run's copy.
        place: where the run's folder is made; None: under ``runs``, with the copy's name.

    Returns:
        The run's folder.

    Raises:
        CannotResume: there is no run, it cannot be read, or something is in its place.
    """
    place = place or Path("runs", urlsplit(uri).path.rstrip("/").rpartition("/")[2])
    if problem := find_problem(uri):
        raise CannotResume(problem)
    if place.exists():
        raise CannotResume(f"{place} is here already: resume that, or move it away")
    growing = place.with_name(f".{place.name}.fetched")
    shutil.rmtree(growing, ignore_errors=True)
    try:
        files, root = _open(uri)
        found = dict(_listed(files, root))
        if _CONFIG_FILE not in found:
            raise CannotResume(f"{uri} holds no run: it has no {_CONFIG_FILE}")
        for path, source in found.items():
            (growing / path).parent.mkdir(parents=True, exist_ok=True)
            with files.open_input_stream(source) as stream, (growing / path).open("wb") as file:
                shutil.copyfileobj(stream, file)
        _link_best(CheckpointFolder(growing / "checkpoints"))
        growing.rename(place)
    except (OSError, ValueError) as error:
        raise CannotResume(f"{uri} cannot be fetched: {error}") from error
    return place


def _link_best(checkpoints: CheckpointFolder) -> None:
    """Gives the best checkpoints their names: an object store has no links."""
    newest, _ = find_whole(checkpoints)
    for rank, (env_steps, _) in enumerate(newest[1].best if newest else ()):
        if env_steps in checkpoints.env_steps:
            checkpoints.link(best_name(rank), env_steps)


def _open(uri: str) -> tuple[Any, str]:
    """Returns the file system of a URI, and the path in it."""
    from pyarrow import fs

    files, path = fs.FileSystem.from_uri(uri)
    return files, path.rstrip("/")


def _listed(files: Any, root: str) -> Iterator[tuple[str, str]]:
    """Yields each file's path from a folder on, and its whole path; none if there is no folder."""
    from pyarrow import fs

    for info in files.get_file_info(fs.FileSelector(root, allow_not_found=True, recursive=True)):
        if info.type == fs.FileType.File:
            yield info.path.removeprefix(root).lstrip("/"), info.path


def _contents(folder: Path) -> dict[str, tuple[int, int]]:
    """Returns bytes and time of each file, by its path; hidden ones are drafts, links names."""
    found = {}
    for place, subfolders, names in os.walk(folder):
        subfolders[:] = [name for name in subfolders if not name.startswith(".")]
        for name in names:
            path = Path(place, name)
            if name.startswith(".") or path.is_symlink():
                continue
            try:
                stat = path.stat()
            except FileNotFoundError:  # deleted meanwhile
                continue
            found[path.relative_to(folder).as_posix()] = stat.st_size, stat.st_mtime_ns
    return found


def _order(path: str) -> tuple[bool, bool, str]:
    """Sorts what refers to other files behind them: metrics, then manifests."""
    return path.endswith(f"/{MANIFEST_FILE}"), path.startswith("metrics/"), path
