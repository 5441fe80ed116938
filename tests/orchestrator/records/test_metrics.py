import math
import signal
import subprocess
import sys
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest
from tests.orchestrator.records.full_disk import with_little_room

from muxrl.orchestrator.errors import CannotRecord, MalformedMetrics
from muxrl.orchestrator.records.metrics import MetricsWriter, read_metrics
from muxrl.orchestrator.records.run_directory import RunDirectory

ROOT = Path(__file__).resolve().parents[3]


@pytest.fixture
def run(tmp_path: Path) -> RunDirectory:
    return RunDirectory.create(tmp_path, "tag", datetime(2026, 11, 21))


def test_records_are_read_back_with_nan_as_none(run: RunDirectory) -> None:
    with MetricsWriter(run) as metrics:
        metrics.server("prey", {"env_steps": 10, "loss": math.nan, "learner": {"p": {"vf": 0.5}}})
        metrics.server("prey", {"env_steps": 20, "loss": math.inf, "learner": {}})
        metrics.joint({"env_steps": 20, "episode_return_mean": {"agent_0": -1.5}})
        metrics.evaluation({"env_steps": 20, "replaced": None, "returns": {"agent_0": [1.0]}})
    assert read_metrics(run.metrics / "prey.jsonl") == [
        {"env_steps": 10, "loss": None, "learner": {"p": {"vf": 0.5}}},
        {"env_steps": 20, "loss": None, "learner": {}},
    ]
    assert read_metrics(run.metrics / "joint.jsonl")[0]["episode_return_mean"] == {"agent_0": -1.5}
    assert read_metrics(run.metrics / "evaluation.jsonl")[0]["replaced"] is None
    assert "NaN" not in (run.metrics / "prey.jsonl").read_text()


def test_a_file_that_is_absent_or_empty_has_no_records(tmp_path: Path) -> None:
    assert read_metrics(tmp_path / "absent.jsonl") == []
    (tmp_path / "empty.jsonl").touch()
    assert read_metrics(tmp_path / "empty.jsonl") == []


@pytest.mark.parametrize("piece", [1, 5, 1 << 20])
def test_a_resumed_writer_does_not_append_to_a_torn_line(
    run: RunDirectory, piece: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("muxrl.orchestrator.records.metrics._CHUNK_BYTES", piece)
    (run.metrics / "joint.jsonl").write_bytes(b'{"env_st')
    (run.metrics / "prey.jsonl").write_bytes(b'{"env_steps": 1}\n{"env_st')
    with MetricsWriter(run) as metrics:
        metrics.server("prey", {"env_steps": 2})
        metrics.joint({"env_steps": 3})
    assert read_metrics(run.metrics / "prey.jsonl") == [{"env_steps": 1}, {"env_steps": 2}]
    assert read_metrics(run.metrics / "joint.jsonl") == [{"env_steps": 3}]


def test_a_line_that_does_not_fit_on_the_disk_is_cut_off_and_named(run: RunDirectory) -> None:
    program = """
with MetricsWriter(run) as metrics:
    for n in (1_000, 2_000):
        metrics.joint({"env_steps": n})
    give_room((run.metrics / "joint.jsonl").stat().st_size + 5)
    try:
        metrics.joint({"env_steps": 3_000})
    except CannotRecord as error:
        print(error)
    give_room(-1)
    metrics.joint({"env_steps": 4_000})
"""
    done = with_little_room(run.path, program)
    assert done.returncode == 0, done.stderr
    path = run.metrics / "joint.jsonl"
    assert done.stdout.strip() == (
        f"cannot write to {path}: File too large; the metrics are complete up to env step 2,000"
    )
    assert [r["env_steps"] for r in read_metrics(path)] == [1_000, 2_000, 4_000]


def test_a_file_that_cannot_be_created_is_named(run: RunDirectory) -> None:
    run.metrics.rmdir()
    metrics = MetricsWriter(run)
    with pytest.raises(CannotRecord, match=r"prey.jsonl: No such file.* env step 0$"):
        metrics.server("prey", {"env_steps": 1})


@pytest.mark.parametrize("is_back", [False, True])
def test_a_folder_that_was_removed_is_noticed_at_the_next_record(
    run: RunDirectory, is_back: bool
) -> None:
    with MetricsWriter(run) as metrics:
        metrics.joint({"env_steps": 7})
        run.path.rename(run.path.with_name("elsewhere"))  # for the run it is removed
        if is_back:
            run.metrics.mkdir(parents=True)
            (run.metrics / "joint.jsonl").touch()
        with pytest.raises(CannotRecord, match=r"joint.jsonl: .* complete up to env step 7$"):
            metrics.joint({"env_steps": 8})


@pytest.mark.parametrize("broken", ['{"a": ', "3"])
def test_a_broken_line_before_the_last_is_an_error(tmp_path: Path, broken: str) -> None:
    path = tmp_path / "prey.jsonl"
    path.write_text('{"a": 1}\n' + broken + '\n{"a": 3}\n')
    with pytest.raises(MalformedMetrics, match="line 2") as caught:
        read_metrics(path)
    assert (caught.value.path, caught.value.line) == (path, 2)


def test_a_listener_gets_only_the_rows_that_were_written(run: RunDirectory) -> None:
    taken: list[tuple[str, dict[str, Any]]] = []
    with MetricsWriter(run, lambda name, record: taken.append((name, dict(record)))) as metrics:
        metrics.server("prey", {"env_steps": 10})
        metrics.joint({"env_steps": 20})
        metrics.evaluation({"env_steps": 20, "returns": {}})
        (run.metrics / "late.jsonl").mkdir()
        with pytest.raises(CannotRecord):
            metrics.server("late", {"env_steps": 30})
    assert taken == [
        ("prey", {"env_steps": 10}),
        ("joint", {"env_steps": 20}),
        ("evaluation", {"env_steps": 20, "returns": {}}),
    ]


def test_nothing_is_written_after_close(run: RunDirectory) -> None:
    metrics = MetricsWriter(run)
    metrics.close()
    metrics.close()
    with pytest.raises(ValueError, match="closed"):
        metrics.joint({"env_steps": 1})


def test_a_killed_writer_loses_no_written_record(run: RunDirectory) -> None:
    program = (
        "import os, signal\n"
        "from pathlib import Path\n"
        "from muxrl.orchestrator.records.metrics import MetricsWriter\n"
        "from muxrl.orchestrator.records.run_directory import RunDirectory\n"
        f"metrics = MetricsWriter(RunDirectory(Path({str(run.path)!r})))\n"
        "for n in range(100): metrics.joint({'env_steps': n})\n"
        "os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    done = subprocess.run([sys.executable, "-c", program], cwd=ROOT, timeout=60, check=False)
    assert done.returncode == -signal.SIGKILL
    records = read_metrics(run.metrics / "joint.jsonl")
    assert [record["env_steps"] for record in records] == list(range(100))


def test_rows_after_the_checkpoint_are_dropped_when_a_run_is_resumed(run: RunDirectory) -> None:
    with MetricsWriter(run) as metrics:
        metrics.server("prey", {"env_steps": 10})
        metrics.joint({"env_steps": 15})
        lengths = metrics.sync()
        metrics.server("prey", {"env_steps": 20})
        metrics.server("late", {"env_steps": 20})
        metrics.joint({"env_steps": 25})
    with (run.metrics / "joint.jsonl").open("a") as file:
        file.write('{"env_st')  # the process was killed
    with MetricsWriter(run) as metrics:
        metrics.cut_back(lengths, 15)
        metrics.server("prey", {"env_steps": 21})
        metrics.joint({"env_steps": 30, "loss": 1.0})
    steps = {
        path.stem: [record["env_steps"] for record in read_metrics(path)]
        for path in run.metrics.iterdir()
    }
    assert steps == {"prey": [10, 21], "late": [], "joint": [15, 30]}


def test_rows_of_one_server_are_cut_back_without_those_of_others(run: RunDirectory) -> None:
    with MetricsWriter(run) as metrics:
        for name in ("prey", "wolves"):
            metrics.server(name, {"env_steps": 10})
        lengths = metrics.sync()
        for name in ("prey", "wolves"):
            metrics.server(name, {"env_steps": 20})
        metrics.cut_back_server("prey", lengths["prey.jsonl"])
        metrics.cut_back_server("absent", 0)
        metrics.server("prey", {"env_steps": 15})
    prey, wolves = (read_metrics(run.metrics / f"{name}.jsonl") for name in ("prey", "wolves"))
    assert [record["env_steps"] for record in prey] == [10, 15]
    assert [record["env_steps"] for record in wolves] == [10, 20]
