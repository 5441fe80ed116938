"""``muxrl`` as a command, in this process."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

import pytest

from muxrl.orchestrator import cli


class Printed(NamedTuple):
    """What a command has written."""

    out: str
    err: str


class Muxrl:
    """Runs commands; takes their output."""

    def __init__(self, captured: pytest.CaptureFixture[str]) -> None:
        self._captured = captured

    def __call__(self, *arguments: str | Path, code: int = 0) -> Printed:
        """Returns what a command prints, which has to end with this exit code."""
        self._captured.readouterr()  # what came before is not the command's
        try:
            ended = cli.main(list(map(str, arguments)))
        except SystemExit as exit_:  # argparse's own
            ended = int(exit_.code or 0)
        printed = Printed(*self._captured.readouterr())
        assert ended == code, printed
        return printed
