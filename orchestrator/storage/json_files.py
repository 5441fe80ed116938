"""Writes JSON and text files that are whole or absent, whatever kills the writer."""

from __future__ import annotations

import contextlib
import json
import math
import os
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np


def finite(value: Any) -> Any:
    """Returns a value for JSON: None for NaN and infinities, Python's numbers for numpy's.

    JSON has no NaN, and readers in other languages reject Python's spelling of it.
    """
    if isinstance(value, np.generic | np.ndarray):
        value = value.tolist()
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {str(key): finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [finite(item) for item in value]
    return value


def write_whole(path: Path, write: Callable[[Path], object]) -> None:
    """Lets `write` fill a temporary file next to `path`, then renames it to `path`.

    A reader sees the old file or the new one, never a part of it. If `write` raises, the old file
    stays.

    Raises:
        OSError: the folder cannot be written to.
    """
    descriptor, name = tempfile.mkstemp(
        prefix=f".{path.stem}-", suffix=path.suffix, dir=path.parent
    )
    os.close(descriptor)
    temporary = Path(name)
    try:
        write(temporary)
        with temporary.open("rb") as written:
            os.fsync(written.fileno())
        temporary.chmod(0o644)  # files of mkstemp are readable by their owner alone
        temporary.replace(path)
    except OSError as error:
        if error.filename is None:  # a full disk, say
            error.filename = str(path)
        raise
    finally:
        with contextlib.suppress(FileNotFoundError):
            temporary.unlink()


def write_bytes(path: Path, content: bytes) -> None:
    """Writes `content` to `path`, whole or not at all.

    Raises:
        OSError: the folder cannot be written to.
    """
    write_whole(path, lambda temporary: temporary.write_bytes(content))


def write_text(path: Path, text: str) -> None:
    """Writes `text` to `path` as UTF-8, whole or not at all.

    Raises:
        OSError: the folder cannot be written to.
    """
    write_whole(path, lambda temporary: temporary.write_text(text, encoding="utf-8"))


def write_json(path: Path, value: object) -> None:
    """Writes `value` to `path` as indented JSON, whole or not at all.

    Raises:
        TypeError: `value` holds something that JSON cannot hold.
        OSError: the folder cannot be written to.
    """
    write_text(path, json.dumps(finite(value), indent=2, allow_nan=False) + "\n")
