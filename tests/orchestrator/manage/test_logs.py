"""The logs of a run's processes are read and followed by whole lines."""

from __future__ import annotations

from pathlib import Path

import pytest

from muxrl.orchestrator.errors import ConfigError
from muxrl.orchestrator.manage import logs as module
from muxrl.orchestrator.manage.logs import Logs
from muxrl.orchestrator.records.run_directory import RunDirectory
from muxrl.orchestrator.records.run_status import StatusFile


@pytest.fixture
def run(tmp_path: Path) -> RunDirectory:
    made = RunDirectory.create_at(tmp_path / "tag")
    made.log("ppo").write_text("one\n\nthree\n")
    made.log("a2c").write_text("first\nlast, without an end")
    return made


@pytest.mark.parametrize(
    ("num_lines", "expected"),
    [
        (1, ["last, without an end", "three"]),
        (2, ["first", "last, without an end", "", "three"]),
        (9, ["first", "last, without an end", "one", "", "three"]),
    ],
)
def test_the_last_lines_are_found_from_the_end(
    run: RunDirectory, num_lines: int, expected: list[str]
) -> None:
    logs = Logs(run)
    logs.begin(num_lines)
    assert [line for _, line in logs.read()] == expected


def test_new_lines_are_followed_until_the_run_has_ended(
    run: RunDirectory, monkeypatch: pytest.MonkeyPatch
) -> None:
    status = StatusFile(run)
    log = run.log("ppo").open("a")

    def first(_: float) -> None:
        log.write("four\nfi")
        log.flush()
        monkeypatch.setattr(module.time, "sleep", second)

    def second(_: float) -> None:
        log.write("ve\n")
        log.close()
        run.log("simulation-0").write_text("begun later\n")
        status.enter("done", 10)

    monkeypatch.setattr(module.time, "sleep", first)
    logs = Logs(run)
    logs.begin(1)
    seen = list(logs.follow())
    assert seen == [
        ("ppo", "three"),
        ("ppo", "four"),
        ("a2c", "last, without an end"),
        ("ppo", "five"),
        ("simulation-0", "begun later"),
    ]


def test_a_log_that_is_begun_anew_is_read_from_its_beginning(run: RunDirectory) -> None:
    logs = Logs(run, ["ppo"])
    assert len(list(logs.read())) == 3
    run.log("ppo").write_text("anew\n")
    assert list(logs.read()) == [("ppo", "anew")]


def test_a_missing_log_is_refused_with_a_similar_name(run: RunDirectory) -> None:
    with pytest.raises(ConfigError, match=r"no log of .pp.; did you mean .ppo.\?"):
        Logs(run, ["ppo", "pp"])
    with pytest.raises(ConfigError, match="there are a2c, ppo"):
        Logs(run, ["evaluation"])
