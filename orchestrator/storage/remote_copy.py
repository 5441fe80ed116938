"""Copies a run's directory to an object store or another disk, with pyarrow's file systems.

At any moment a run can be resumed from the copy: a checkpoint's manifest is copied after its files
and the metrics to which it refers, and files that were deleted here are deleted in the copy last.
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
"""Schemes of URIs that pyarrow knows."""
_OBJECT_STORES = ("s3", "gcs", "abfs")
"""pyarrow's types of file systems without folders."""
_CONFIG_FILE = "config.yaml"


def find_problem(uri: str) -> str | None:
    """Returns what is wrong with the form of a URI; None if nothing is."""
    parts = urlsplit(uri)
    if parts.scheme not in SCHEMES:
        hint = similar_or_known(parts.scheme, SCHEMES, "the schemes are")
        return f"expected a URI such as s3://bucket/folder, got {uri!r}{hint}"
    if not parts.path.strip("/") and not parts.netloc:
        return f"{uri!r} names no bucket and no folder"
    return None


class RemoteCopy:
    """Copies a folder in a separate thread whenever `update` is called, failed copies again.

    Args:
        folder: the folder of a run.
        uri: URI of the folder that gets the copy; None: nothing is copied.
        name: name of the copy's folder.
        is_new: whether a copy of that name must not exist yet.

    Raises:
        ConfigError: the place of the copy cannot be reached, or a copy exists already.
    """

    def __init__(self, folder: Path, uri: str | None, name: str, *, is_new: bool) -> None:
        self._uri, self._folder = uri, folder
        self._seen: dict[str, tuple[int, int] | None] = {}
        """By path in the copy: bytes and time of the file that was copied; None: unknown."""
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
                raise FileExistsError(f"a folder {name!r} exists there already")
            self._copy()
        except (OSError, ValueError) as error:
            raise ConfigError([f"storage_path: {uri} cannot hold a copy: {error}"]) from error
        self._thread = threading.Thread(target=self._work, name="remote-copy", daemon=True)
        self._thread.start()

    def update(self) -> None:
        """Starts to copy all changes; returns at once."""
        self._is_wanted.set()

    def finish(self, timeout_s: float) -> str:
        """Copies all changes that are left.

        Args:
            timeout_s: for how long to wait for that.

        Returns:
            A sentence on why the copy is not whole; "" if it is.
        """
        if self._uri is None:
            return ""
        self._is_over = True
        self._is_wanted.set()
        self._thread.join(timeout_s)
        if self._thread.is_alive():
            return f"the copy in {self._uri} was not complete after {timeout_s:g} s"
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
            except Exception as error:  # pyarrow raises many; none may make the copy seem whole
                if not self._problem:
                    logger.warning("nothing was copied to %s", self._uri, exc_info=True)
                self._problem = f"the copy in {self._uri} is incomplete: {error}"

    def _copy(self) -> None:
        """Copies changed files, and deletes files that are gone.

        Raises:
            OSError: the copy cannot be reached.
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
        """Copies files; returns False if one was deleted meanwhile: then list the files again."""
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
    """Fetches the copy of a run, so that the run can continue here.

    Args:
        uri: URI of the run's copy.
        place: path of the run's new folder; None: the copy's name, under ``runs``.

    Returns:
        The run's folder.

    Raises:
        CannotResume: there is no run, it cannot be read, or `place` exists already.
    """
    place = place or Path("runs", urlsplit(uri).path.rstrip("/").rpartition("/")[2])
    if problem := find_problem(uri):
        raise CannotResume(problem)
    if place.exists():
        raise CannotResume(f"{place} exists already: resume that run, or move it away")
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
    """Makes the links to the best checkpoints, which an object store does not keep."""
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
    """Yields each file's path in a folder, and its whole path; nothing if there is no folder."""
    from pyarrow import fs

    for info in files.get_file_info(fs.FileSelector(root, allow_not_found=True, recursive=True)):
        if info.type == fs.FileType.File:
            yield info.path.removeprefix(root).lstrip("/"), info.path


def _contents(folder: Path) -> dict[str, tuple[int, int]]:
    """Returns bytes and time of each file, by its path, without hidden files (drafts) and links."""
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
    """Sort key: files that refer to others come after them, first metrics, then manifests."""
    return path.endswith(f"/{MANIFEST_FILE}"), path.startswith("metrics/"), path
