"""Files of processes on machines that do not see the run's directory: brought there, and back."""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from muxrl.servers.config import ServerPlan

_MOST_BYTES = 1 << 20
"""Of a log in one report."""

Files = Mapping[str, bytes]
"""By their path in a folder."""


def pack(folder: Path) -> dict[str, bytes]:
    """Returns the files below a folder; raises `OSError` if one cannot be read."""
    files = [path for path in folder.rglob("*") if path.is_file()]
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in files}


def unpack(files: Files, folder: Path) -> None:
    """Writes what `pack` returned; raises `OSError` if it cannot be written."""
    for name, content in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)


@contextlib.contextmanager
def place_for(draft: Path) -> Iterator[tuple[Path, dict[str, bytes]]]:
    """Yields where a part of a checkpoint is to be written, and what of it is to be sent back.

    Args:
        draft: where it belongs; its parent, whose name nobody else has, is there where the run's
            directory is seen, and nothing is to be sent.
    """
    files: dict[str, bytes] = {}
    if draft.parent.is_dir():
        yield draft, files
        return
    with tempfile.TemporaryDirectory(prefix="muxrl-away-") as folder:
        place = Path(folder) / draft.name
        yield place, files
        files |= pack(place)


@dataclass(frozen=True)
class Luggage:
    """The checkpoint from which a server begins, for a machine that may not see it.

    Attributes:
        node_id: Ray's id of the machine that has it.
        files: a reference to them; fetched only where they are needed.
    """

    node_id: str
    files: Any

    @classmethod
    def of(cls, plan: ServerPlan) -> Luggage | None:
        """Returns that of a plan; None if it needs none: there is one machine, or nothing to bring.

        Raises:
            OSError: a file cannot be read.
        """
        import ray

        path = plan.resume_from or plan.initialize_from
        if not path or len(ray.nodes()) == 1:
            return None
        node_id = ray.get_runtime_context().get_node_id()
        return cls(node_id, ray.put(pack(Path(path))))


@contextlib.contextmanager
def unpacked(plan: ServerPlan, luggage: Luggage | None) -> Iterator[ServerPlan]:
    """Yields the plan with its checkpoint on this machine, while the ``with`` block lasts."""
    import ray

    if luggage is None or luggage.node_id == ray.get_runtime_context().get_node_id():
        yield plan
        return
    with tempfile.TemporaryDirectory(prefix="muxrl-away-") as folder:
        unpack(ray.get(luggage.files), Path(folder))
        if plan.resume_from:
            yield replace(plan, resume_from=folder)
        else:
            yield replace(plan, initialize_from=folder)


@dataclass(frozen=True)
class Piece:
    """A part of a log."""

    text: bytes
    end: int
    """Where the next one begins."""


def read_log(path: Path, at: int) -> Piece:
    """Returns what a log has from there on, at most a mebibyte; raises `OSError`."""
    with path.open("rb") as file:
        file.seek(at)
        text = file.read(_MOST_BYTES)
    return Piece(text, at + len(text))


class AwayLog:
    """This process's own log, if the run's directory is not seen here.

    Args:
        path: of the log, which is there.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._sent = path.stat().st_size

    def piece(self) -> Piece:
        """Returns what has been written since the last call."""
        piece = read_log(self._path, self._sent)
        self._sent = piece.end
        return piece


def rest_of_log(node_id: str, path: Path, at: int, timeout_s: float = 10.0) -> bytes:
    """Returns what a process that is gone has left in its log; b"" if its machine is gone, too."""
    import ray
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    read = ray.remote(num_cpus=0, max_retries=0)(read_log).options(
        scheduling_strategy=NodeAffinitySchedulingStrategy(node_id, soft=False)
    )
    with contextlib.suppress(ray.exceptions.RayError):
        text: bytes = ray.get(read.remote(path, at), timeout=timeout_s).text
        return text
    return b""
