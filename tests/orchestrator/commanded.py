"""Runs commands of ``muxrl`` in the process of the tests."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

import pytest

from muxrl.orchestrator import cli


class Printed(NamedTuple):
    """What a command has printed."""

    out: str
    err: str


class Muxrl:
    """Runs commands and returns what they print."""

    def __init__(self, captured: pytest.CaptureFixture[str]) -> None:
        self._captured = captured

    def __call__(self, *arguments: str | Path, code: int = 0) -> Printed:
        """Returns what a command prints; fails if its exit code is another one."""
        self._captured.readouterr()  # discards what was printed before the command
        try:
            ended = cli.main(list(map(str, arguments)))
        except SystemExit as exit_:  # raised by argparse
            ended = int(exit_.code or 0)
        printed = Printed(*self._captured.readouterr())
        assert ended == code, printed
        return printed
