"""A process that launches run after run, for tests whose fault spares the launcher.

    python -m tests.faults.host FOLDER

The fork server, and what it and the command import, cost more processor time than a small run.
Here they are started once, and each environment is looked at only once. Each line of standard input
is a JSON list: the name of a run, and the arguments of ``muxrl``. The command's output goes to
``FOLDER/NAME.output``, then its exit code to ``FOLDER/NAME.code``.
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
import traceback
from collections.abc import Iterator
from pathlib import Path

from tests.looks import look_once

from muxrl.orchestrator import cli
from muxrl.orchestrator.reports import report
from muxrl.orchestrator.supervise import fork_server

READY = "ready"
"""The host creates a file of this name in its folder when it is ready to read lines."""


@contextlib.contextmanager
def _output(path: Path) -> Iterator[None]:
    """Sends all output to a file, including the output of child processes."""
    before = [os.dup(number) for number in (1, 2)]
    with path.open("w") as file:
        for number in (1, 2):
            os.dup2(file.fileno(), number)
    try:
        yield
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        for number, old in zip((1, 2), before, strict=True):
            os.dup2(old, number)
            os.close(old)


def _run(arguments: list[str]) -> int:
    try:
        return cli.main(arguments)
    except SystemExit as end:
        return int(end.code or 0)
    except BaseException:
        traceback.print_exc()
        return 1


def main() -> None:
    folder = Path(sys.argv[1])
    look_once()
    report.learning_png = lambda _: b""  # only plain launches draw pictures
    with fork_server.running():
        (folder / READY).touch()
        for line in sys.stdin:
            name, arguments = json.loads(line)
            with _output(folder / f"{name}.output"):
                code = _run(arguments)
            new = folder / f"{name}.new"
            new.write_text(str(code))
            new.rename(folder / f"{name}.code")


if __name__ == "__main__":
    main()
