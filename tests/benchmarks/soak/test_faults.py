from __future__ import annotations

import itertools
import signal
import subprocess
import time
from pathlib import Path
from typing import get_args

import pytest
from benchmarks.soak import faults as soak_faults
from benchmarks.soak.faults import Fault, Kind, faults


def test_one_seed_decides_and_every_round_has_all_kinds() -> None:
    def first(seed: int) -> list[Fault]:
        return list(itertools.islice(faults(seed, ["a", "b"], ["s"]), 15))

    assert first(0) == first(0) != first(1)
    for begin in (0, 5, 10):
        assert {fault.kind for fault in first(0)[begin : begin + 5]} == set(get_args(Kind))
    for fault in first(0):
        victims = {
            "kill a simulation": {"s"},
            "kill the evaluation": {"evaluation"},
            "pause": {"a", "b", "s"},
        }
        assert fault.victim in victims.get(fault.kind, {"a", "b"})


def state(pid: int) -> str:
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]


def test_what_they_do(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(soak_faults, "PAUSE_S", 0.3)
    process = subprocess.Popen(["sleep", "60"])
    try:
        Fault("pause", "a").do(process.pid)
        time.sleep(0.1)
        assert state(process.pid) == "T"
        time.sleep(0.6)
        assert state(process.pid) == "S"
        Fault("stop a server", "a").do(process.pid)
        time.sleep(0.6)
        assert state(process.pid) == "T"
        Fault("kill a server", "a").do(process.pid)
        assert process.wait(5) == -signal.SIGKILL
    finally:
        process.kill()
        process.wait()
