"""Checks that a checkpoint's files are unchanged, by the hashes in its run's manifest."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Collection
from pathlib import Path

MANIFEST_FILE = "manifest.json"
"""File of a run's checkpoint, in the folder around its servers' checkpoints."""


def sha256(path: Path) -> str:
    """Returns the SHA-256 of a file.

    Raises:
        OSError: the file cannot be read.
    """
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def damage_of(path: Path, expected: str) -> str:
    """Returns what is wrong with a file, "" if its SHA-256 is as expected."""
    try:
        if sha256(path) == expected:
            return ""
    except OSError as error:
        return f"{path} cannot be read: {error.strerror or error}"
    return f"{path} has changed since it was written: its SHA-256 differs from the manifest's"


def damage_of_server(path: Path, but: Collection[str] = ()) -> str:
    """Returns what is wrong with a server's checkpoint, "" for nothing or without a manifest.

    Args:
        path: folder of the checkpoint.
        but: names of files that are not checked.
    """
    place = path.resolve()
    try:
        manifest = json.loads((place.parent / MANIFEST_FILE).read_bytes())
        files = manifest["servers"][place.name]["files"]
    except (OSError, ValueError, KeyError, TypeError):
        return ""
    damages = (damage_of(place / name, one) for name, one in files.items() if name not in but)
    return next(filter(None, damages), "")
