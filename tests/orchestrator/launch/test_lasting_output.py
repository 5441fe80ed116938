"""Programs print to a stdout and stderr that nobody reads, and go on."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

PROGRAM = """
import logging, os, sys
from pathlib import Path
from rich.console import Console
from muxrl.orchestrator.launch.lasting_output import lasting_output

with lasting_output():
    for _ in range(3):
        Console().print("a table")
        print("a line", flush=True)
        sys.stderr.write("an error\\n")
        logging.getLogger().warning("a warning")
    own = open(sys.argv[1], "w")
    assert own.fileno() > 2
    own.write("went on")
sys.stdout.write("left in a buffer at exit")
"""


def run(path: Path, **streams: int | None) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", PROGRAM, str(path)], text=True, timeout=60, check=False, **streams
    )


def test_a_program_outlives_the_reader_of_its_output(tmp_path: Path) -> None:
    reader, writer = os.pipe()
    os.close(reader)
    done = run(tmp_path / "own", stdout=writer, stderr=writer)
    os.close(writer)
    assert done.returncode == 0
    assert (tmp_path / "own").read_text() == "went on"


@pytest.mark.parametrize("closed", [">/dev/full 2>/dev/full", "<&-", ">&-", "2>&-", "<&- >&- 2>&-"])
def test_a_program_goes_on_with_a_full_disk_or_closed_streams(tmp_path: Path, closed: str) -> None:
    done = subprocess.run(
        ["bash", "-c", f'"$@" {closed}', "-", sys.executable, "-c", PROGRAM, tmp_path / "own"],
        timeout=60,
        check=False,
    )
    assert done.returncode == 0
    assert (tmp_path / "own").read_text() == "went on"


def test_output_that_can_be_written_is_written(tmp_path: Path) -> None:
    done = run(tmp_path / "own", stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    assert done.stdout == "a table\na line\n" * 3 + "left in a buffer at exit"
    assert done.stderr == "an error\na warning\n" * 3
