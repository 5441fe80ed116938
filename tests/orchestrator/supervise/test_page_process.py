"""The live page of a run is a process that ends with the run's, however the run ends."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import urllib.error
import urllib.request
from pathlib import Path

import pytest
from tests.compliance.real_servers import wait_until
from tests.orchestrator.records.recorded import new_run
from tests.processes import assert_all_end, marked

from muxrl.orchestrator.supervise import page_process as beside
from muxrl.orchestrator.supervise.page_process import page_of

RUN = """
import sys, time
from pathlib import Path
from muxrl.orchestrator.supervise.page_process import page_of
with page_of(Path(sys.argv[1]), True, lambda text, **_: print(text, flush=True)):
    time.sleep(60)
"""


def test_the_page_is_served_while_the_run_goes_on(tmp_path: Path, mark: str) -> None:
    said: list[str] = []
    with page_of(new_run(tmp_path).path, True, lambda text, **_: said.append(text)):
        address = said[0].split()[-1]
        with urllib.request.urlopen(address, timeout=20) as page:
            assert b"muxrl watch" in page.read()
        (process,) = marked(mark)
        lowest = min(os.getpriority(os.PRIO_PROCESS, 0) + 10, 19)
        assert os.getpriority(os.PRIO_PROCESS, process.pid) == lowest, "after the run"
    with pytest.raises(urllib.error.URLError):
        urllib.request.urlopen(address, timeout=20)


@pytest.mark.parametrize("too_soon_s", [0.0, 1_000.0])
def test_one_that_is_killed_is_said_and_started_again_at_its_address_unless_it_is_hopeless(
    tmp_path: Path,
    mark: str,
    too_soon_s: float,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setattr(beside, "_TOO_SOON_S", too_soon_s)
    said: list[str] = []
    with page_of(new_run(tmp_path).path, True, lambda text, **_: said.append(text)):
        address = said[0].split()[-1]
        urllib.request.urlopen(address, timeout=20).close()
        (process,) = marked(mark)
        os.kill(process.pid, signal.SIGKILL)
        told = "it is not started again" if too_soon_s else f"it is started again at {address}"
        wait_until(lambda: told in caplog.text)
        assert "the live page has ended (exit code -9)" in caplog.text
        if too_soon_s:
            with pytest.raises(urllib.error.URLError):
                urllib.request.urlopen(address, timeout=20)
        else:
            with urllib.request.urlopen(address, timeout=20) as page:
                assert page.status == 200


def test_the_page_s_process_ends_when_the_run_is_killed(tmp_path: Path, mark: str) -> None:
    command = [sys.executable, "-c", RUN, str(new_run(tmp_path).path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as run:
        assert run.stdout is not None
        with urllib.request.urlopen(run.stdout.readline().split()[-1], timeout=20) as page:
            assert page.status == 200
        run.kill()
    assert_all_end(mark, 10.0)


def test_no_page_is_served_unless_it_is_asked_for(tmp_path: Path, mark: str) -> None:
    said: list[str] = []
    with page_of(tmp_path, False, lambda text, **_: said.append(text)):
        assert not marked(mark)
    assert not said


def test_a_page_that_cannot_be_served_never_ends_a_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(beside.sys, "executable", str(tmp_path / "no-python"))
    said: list[str] = []
    with page_of(tmp_path, True, lambda text, **_: said.append(text)):
        assert not said
    assert "cannot serve the live page of" in caplog.text
