"""Fixtures: one `muxrl watch` and one browser for all tests of a file."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from tests.orchestrator.watch.browser import CHROMIUM, Browser, browser

MUXRL = [
    sys.executable,
    "-c",
    "import sys; from muxrl.orchestrator.cli import main; sys.exit(main())",
]


@dataclass
class Site:
    """A page of `muxrl watch`, and the folder that it shows, which tests fill."""

    root: Path
    address: str
    process: subprocess.Popen[str]


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    root = tmp_path_factory.mktemp("runs")
    command = [*MUXRL, "watch", root]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            yield Site(root, process.stdout.readline().strip(), process)
            process.send_signal(signal.SIGINT)
            assert process.wait(20) == 0, "Ctrl-C is how it ends"
        finally:
            process.kill()


@pytest.fixture(scope="module")
def tab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    if not CHROMIUM:
        pytest.skip("no chromium here, so nobody looks at the page; Debian's package is chromium")
    with browser(tmp_path_factory.mktemp("chromium")) as opened:
        opened.resize(1280)
        yield opened
