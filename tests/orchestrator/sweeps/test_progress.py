import io
import re

import pytest
from rich.console import Console

from muxrl.orchestrator.sweeps.directory import TrialRecord
from muxrl.orchestrator.sweeps.progress import SweepProgress


def trial(number: int, status: str = "waiting", env_steps: int = 0, **more: object) -> TrialRecord:
    name = f"{number:02}-qmix_predators-ppo_prey-7bc1088f39d0-s{number}"
    roles = {"predators": "qmix", "prey": "ppo"}
    record = TrialRecord(name, "qmix:a|ppo:b", roles, {}, number, status, env_steps=env_steps)
    for key, value in more.items():
        setattr(record, key, value)
    return record


@pytest.fixture
def clock(monkeypatch):
    now = [0.0]
    monkeypatch.setattr("time.monotonic", lambda: now[0])
    return now


def shown(records, console, steps=()):
    """Shows the trials, changes them by each step, and returns what was printed."""
    with SweepProgress("tag-1", "return (predators)", records, 30, console) as progress:
        for step in steps:
            progress.update(step() or {})
    return console.file.getvalue()


def test_a_terminal_of_80_columns_names_trials_with_running_ones_first(clock):
    records = [trial(n, "done", 123_456_789, metric=-12_345.678) for n in range(20)]
    records += [trial(20, "running", 4_000, time_s=30.0, metric=1.5), trial(21, "running")]
    console = Console(
        file=io.StringIO(), force_terminal=True, force_interactive=True, width=80, height=16
    )
    clock[0] = 100.0

    def step():
        clock[0] = 130.0
        return {records[20].id: 30.0}

    plain = re.sub(r"\x1b\[[?0-9;]*[A-Za-z]", "", shown(records, console, [step]))
    text = plain[plain.rindex("tag-1") :]
    assert max(map(len, text.splitlines())) <= 80
    for one in ("20-qmix", "running", "0:00:30", "1.50", "starting"):
        assert one in text
    assert "14 more have ended" in text
    # Half a trial took 30 s, and nine and a half are left.
    assert "20 done, 2 running, 8 waiting; 0:00:30 so far, about 0:09:30 left" in text


def test_without_a_terminal_a_line_is_printed_at_news_and_every_minute(clock):
    records = [trial(0, "running", time_s=1.0, env_steps=100), trial(1)]
    console = Console(file=io.StringIO(), width=80)

    def at(time_s, status="running"):
        def step():
            clock[0], records[0].status = time_s, status
            return {records[0].id: 9.0}

        return step

    steps = [at(1.0), at(30.0), at(59.0), at(61.0), at(62.0, "done"), at(63.0, "done")]
    lines = shown(records, console, steps).splitlines()
    assert [line.partition(";")[2].partition(" so far")[0] for line in lines] == [
        " 0:00:01", " 0:01:01", " 0:01:02"
    ]  # fmt: skip
    assert lines[0].endswith("s0 running, 100 env steps, return (predators) –, 0:00:09 left"), (
        lines[0]
    )
