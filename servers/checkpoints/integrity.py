"""Whether a checkpoint's files are what was written, by the hashes in its run's manifest."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Collection
from pathlib import Path

MANIFEST_FILE = "manifest.json"
"""Of a run's checkpoint, in the folder around those of its servers."""


def sha256(path: Path) -> str:
    """Returns a file's.

    Raises:
        OSError: it cannot be read.
    """
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def damage_of(path: Path, expected: str) -> str:
    """Says what is wrong with a file, "" if its SHA-256 is as expected."""
    try:
        if sha256(path) == expected:
            return ""
    except OSError as error:
        return f"{path} cannot be read: {error.strerror or error}"
    return f"{path} is not what was written: its SHA-256 differs from the manifest's"


def damage_of_server(path: Path, but: Collection[str] = ()) -> str:
    """Says what is wrong with a server's checkpoint, "" if nothing is, or no manifest names it.

    Args:
        path: its folder.
        but: files that are not looked at.
    """
    place = path.resolve()
    try:
        manifest = json.loads((place.parent / MANIFEST_FILE).read_bytes())
        files = manifest["servers"][place.name]["files"]
    except (OSError, ValueError, KeyError, TypeError):
        return ""
    damages = (damage_of(place / name, one) for name, one in files.items() if name not in but)
    return next(filter(None, damages), "")
