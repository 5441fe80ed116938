"""Reads the logs of a run's processes, once or as long as the run lasts."""

from __future__ import annotations

import contextlib
import time
from collections import deque
from collections.abc import Iterator, Sequence
from pathlib import Path

from muxrl.orchestrator.errors import ConfigError
from muxrl.orchestrator.records.run_directory import RunDirectory
from muxrl.orchestrator.records.run_status import read_status
from muxrl.protocol.suggestions import similar_or_known

_INTERVAL_S = 0.2


class Logs:
    """The logs of one run, or of some of its processes.

    Args:
        folder: the run's directory.
        processes: names of processes; empty: all, also those that begin later.

    Raises:
        ConfigError: a process has no log.
    """

    def __init__(self, folder: RunDirectory, processes: Sequence[str] = ()) -> None:
        self._folder = folder
        self._processes = list(processes)
        known = [path.stem for path in self._paths()]
        for process in processes:
            if process not in known:
                hint = similar_or_known(process, known, "there are")
                raise ConfigError([f"run {folder.name!r} has no log of {process!r}{hint}"])
        self._offsets: dict[Path, int] = {}

    @property
    def processes(self) -> list[str]:
        """Names of the processes whose logs are read."""
        return self._processes or [path.stem for path in self._paths()]

    def begin(self, num_lines: int) -> None:
        """Skips all but the last `num_lines` of each log, at least one."""
        for process in self.processes:
            path = self._folder.log(process)
            self._offsets[path] = _start_of_last_lines(path, num_lines)

    def read(self, *, is_last: bool = True) -> Iterator[tuple[str, str]]:
        """Yields the process and the text of each new line, log after log.

        Args:
            is_last: whether to yield incomplete last lines, too.
        """
        for process in self.processes:
            path = self._folder.log(process)
            yield from ((process, line) for line in self._lines(path, is_last=is_last))

    def follow(self) -> Iterator[tuple[str, str]]:
        """Yields process and line of new lines until the run has ended, or its process is dead."""
        while True:
            status = read_status(self._folder)
            is_over = status is None or status.is_over
            yield from self.read(is_last=is_over)
            if is_over:
                return
            time.sleep(_INTERVAL_S)

    def _paths(self) -> list[Path]:
        return sorted(self._folder.logs.glob("*.log"))

    def _lines(self, path: Path, *, is_last: bool) -> Iterator[str]:
        try:
            with path.open("rb") as file:
                offset = self._offsets.get(path, 0)
                if file.seek(0, 2) < offset:
                    offset = 0  # the log is shorter now: it was begun anew
                file.seek(offset)
                for line in file:
                    if not (is_last or line.endswith(b"\n")):
                        break
                    offset += len(line)
                    self._offsets[path] = offset
                    yield line.removesuffix(b"\n").decode(errors="replace")
        except FileNotFoundError:
            return


def _start_of_last_lines(path: Path, num_lines: int) -> int:
    """Returns the offset of a file's last lines, 0 if it has no more lines than that."""
    starts = deque([0], maxlen=num_lines + 1)
    with contextlib.suppress(FileNotFoundError), path.open("rb") as file:
        for line in file:
            starts.append(starts[-1] + len(line))
    return starts[0]
