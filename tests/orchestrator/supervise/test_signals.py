"""The first signal interrupts a run, later ones are ignored, and Ray does not interfere."""

from __future__ import annotations

import importlib
import os
import signal
import subprocess
import sys
import time

import pytest

from muxrl.orchestrator.supervise.signals import (
    claim_signals,
    ignore_signals,
    interruptible,
    uninterrupted,
    without_hangup,
)


def _tell(number: int) -> None:
    os.kill(os.getpid(), number)


@pytest.fixture(autouse=True)
def _handlers():
    """Handles SIGHUP as at a terminal, even under `nohup`; restores all handlers afterwards."""
    before = {n: signal.getsignal(n) for n in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)}
    signal.signal(signal.SIGHUP, signal.SIG_DFL)
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.mark.parametrize("first", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_only_the_first_signal_interrupts(first):
    with interruptible():
        with pytest.raises(KeyboardInterrupt):
            _tell(first)
        _tell(signal.SIGTERM)
        _tell(signal.SIGINT)
        claim_signals()  # as after ray.init, but after the first signal
        _tell(signal.SIGTERM)
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    with pytest.raises(KeyboardInterrupt):
        _tell(signal.SIGINT)


def test_a_shutdown_is_not_interrupted():
    with interruptible():
        ignore_signals()
        _tell(signal.SIGINT)
        _tell(signal.SIGTERM)
    with uninterrupted():
        _tell(signal.SIGINT)
    with pytest.raises(KeyboardInterrupt):
        _tell(signal.SIGINT)


@pytest.mark.parametrize("ignored", [signal.SIGINT, signal.SIGHUP])
def test_a_signal_that_was_ignored_from_the_beginning_stays_ignored(ignored):
    signal.signal(ignored, signal.SIG_IGN)
    with interruptible():
        _tell(ignored)
        with pytest.raises(KeyboardInterrupt):
            _tell(signal.SIGTERM)
    assert signal.getsignal(ignored) is signal.SIG_IGN


def test_a_hangup_does_not_end_children():
    with without_hangup():
        child = subprocess.Popen(["sleep", "30"])
    child.send_signal(signal.SIGHUP)
    with pytest.raises(subprocess.TimeoutExpired):
        child.wait(0.5)
    child.kill()
    assert child.wait() == -signal.SIGKILL


@pytest.fixture
def touchy(tmp_path, monkeypatch):
    """Gives a module whose import takes half a second, and catches any exception in it."""
    (tmp_path / "touchy.py").write_text(
        "import os, signal, time\n"
        "try:\n"
        "    os.kill(os.getpid(), signal.SIGINT)\n"
        "    time.sleep(0.5)\n"
        "    is_whole = True\n"
        "except BaseException:\n"
        "    is_whole = False\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    yield "touchy"
    sys.modules.pop("touchy", None)


def test_an_interruption_waits_for_the_end_of_an_import(touchy):
    def play() -> None:
        importlib.import_module(touchy)
        time.sleep(10)

    with interruptible(), pytest.raises(KeyboardInterrupt):
        play()
    assert sys.modules[touchy].is_whole


def test_an_endless_import_is_interrupted(touchy, monkeypatch):
    monkeypatch.setattr("muxrl.orchestrator.supervise.signals._IMPORT_S", 0.1)
    with interruptible():
        assert not importlib.import_module(touchy).is_whole


RAY_SHUT_DOWN = """
import os, signal
from muxrl.orchestrator.supervise.ray_session import ray_session
from muxrl.orchestrator.supervise.signals import claim_signals, ignore_signals, interruptible

with interruptible():
    with ray_session(num_cpus=1):
        claim_signals()
        try:
            os.kill(os.getpid(), signal.SIGTERM)
        except KeyboardInterrupt:
            print("interrupted")
    os.kill(os.getpid(), signal.SIGTERM)
    print("alive")
"""


@pytest.mark.ray
def test_rays_end_leaves_signals_as_they_are():
    """Ray's crash handler would reset SIGTERM to its default in the middle of a shutdown."""
    done = subprocess.run(
        [sys.executable, "-c", RAY_SHUT_DOWN], capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == ["interrupted", "alive"]
