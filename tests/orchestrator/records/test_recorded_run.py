import json
import math
import tracemalloc
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from tests.orchestrator.records.recorded import evaluation, new_run, whole_run

from muxrl.client.adapters.simulation import COMMON
from muxrl.orchestrator.records.metrics import MetricsWriter
from muxrl.orchestrator.records.recorded_run import RecordedRun
from muxrl.orchestrator.records.run_directory import RunDirectory


def record(run: RunDirectory, *evaluations: dict[str, object]) -> RecordedRun:
    with MetricsWriter(run) as metrics:
        for one in evaluations:
            metrics.evaluation(one)
    return RecordedRun.read(run.path)


def test_a_whole_run_is_read(tmp_path: Path) -> None:
    run = whole_run(tmp_path, seed=7)
    read = RecordedRun.read(run.path)
    assert (read.name, read.seed, read.should_explore) == (run.name, 7, False)
    assert [point.env_steps for point in read.points] == [0, 1_000]
    assert set(read.points[1].num_episodes) == {"", "wolves", "sheep"}
    assert read.env_steps == {"wolves": 980, "sheep": 970}
    wolves = read.training["wolves"]  # means over the known returns of wolf_0 and wolf_1
    assert wolves.env_steps.tolist() == [100, 500, 990]
    assert wolves.returns.tolist() == [1.0, 1.0, 2.0]
    # The joint records have no return of the sheep, so it is the server's own number.
    sheep = read.training["sheep"]
    assert (sheep.env_steps.tolist(), sheep.returns.tolist()) == ([970], [-4.0])


def test_evaluations_are_read_as_one_wide_frame(tmp_path: Path) -> None:
    """An episode without any agent keeps its place, to be paired with that of another condition.

    A condition may have fewer episodes.
    """
    metrics = {"win": {COMMON: [1.0, 0.0]}, "hits": {"sheep": [None, 2.0]}}
    frame = record(
        new_run(tmp_path),
        evaluation(0, None, [1.0, None, None], [3.0, 6.0], [1.0]),
        evaluation(0, "wolves", [4.0, 5.0], [7.0, 8.0], [0.0, 0.0]) | {"metrics": metrics},
    ).evaluations
    assert frame.index.names == ["env_steps", "replaced", "episode"]
    assert frame.columns.names == ["metric", "agent"]
    num = {"": 3, "wolves": 2}
    assert frame.index.tolist() == [(0, who, k) for who, n in num.items() for k in range(n)]
    nan = math.nan
    expected = {
        ("return", "wolf_0"): [1.0, nan, nan, 4.0, 5.0],
        ("return", "wolf_1"): [3.0, 6.0, nan, 7.0, 8.0],
        ("return", "sheep"): [1.0, nan, nan, 0.0, 0.0],
        ("win", COMMON): [nan, nan, nan, 1.0, 0.0],
        ("hits", "sheep"): [nan, nan, nan, nan, 2.0],
    }
    assert list(frame.columns) == list(expected)
    np.testing.assert_array_equal(frame.to_numpy().T, [*expected.values()])


def test_conditions_a_few_env_steps_apart_are_one_point(tmp_path: Path) -> None:
    ones = [1.0], [1.0], [1.0]
    read = record(
        new_run(tmp_path),
        evaluation(100, None, *ones),
        evaluation(103, "wolves", *ones),
        evaluation(200, None, *ones),
        evaluation(204, "wolves", *ones),
    )
    assert [(p.env_steps, set(p.num_episodes)) for p in read.points] == [
        (100, {"", "wolves"}),
        (200, {"", "wolves"}),
    ]


@pytest.mark.parametrize("later", [(None,), (None, "sheep"), (None, "sheep", "wolves")])
def test_the_later_of_two_evaluations_at_the_same_env_step_counts_if_it_is_whole(
    tmp_path: Path, later: Sequence[str | None]
) -> None:
    """If it is not whole, it was stopped, and its episodes are not mixed with the earlier ones."""
    twos = [2.0, 2.0], [2.0, 2.0], [2.0, 2.0]
    read = record(
        new_run(tmp_path),
        evaluation(100, None, [1.0], [1.0], [1.0]),
        evaluation(100, "sheep", [1.0], [1.0], [1.0]),
        *(evaluation(100, who, *twos) for who in later),
    )
    (point,) = read.points
    sheep = read.evaluations["return", "sheep"]
    if len(later) == 1:
        assert point.num_episodes == {"": 1, "sheep": 1}
        assert sheep.to_dict() == {(100, "", 0): 1.0, (100, "sheep", 0): 1.0}
    else:
        assert point.num_episodes == dict.fromkeys(("", *later[1:]), 2)
        assert set(sheep) == {2.0}


def test_evaluations_by_another_rule_than_the_last_are_left_out(tmp_path: Path) -> None:
    read = record(
        new_run(tmp_path),
        evaluation(0, None, [1.0], [1.0], [1.0], should_explore=True),
        evaluation(100, None, [2.0], [2.0], [2.0]),
    )
    assert [point.env_steps for point in read.points] == [100]
    assert read.should_explore is False


def test_rows_after_a_resume_replace_those_that_they_repeat(tmp_path: Path) -> None:
    run = new_run(tmp_path)
    with MetricsWriter(run) as metrics:
        for env_steps, level in ((10, 1.0), (20, 2.0), (30, 3.0), (20, 5.0), (40, 6.0)):
            metrics.joint({"env_steps": env_steps, "episode_return_mean": {"sheep": level}})
    curve = RecordedRun.read(run.path).training["sheep"]
    assert curve.env_steps.tolist() == [10, 20, 40]
    assert curve.returns.tolist() == [1.0, 5.0, 6.0]


def test_a_servers_training_return_is_read_from_the_joint_rows(tmp_path: Path) -> None:
    run = new_run(tmp_path)
    by_agent = {"wolf_0": 1.0, "wolf_1": 5.0}
    with MetricsWriter(run) as metrics:
        # Older runs have no returns by server.
        metrics.joint({"env_steps": 10, "episode_return_mean": by_agent})
        metrics.joint(
            {"env_steps": 20, "episode_return_mean": by_agent, "returns": {"wolves": 2.0}}
        )
    assert RecordedRun.read(run.path).training["wolves"].returns.tolist() == [3.0, 2.0]


def test_a_long_run_is_read_in_little_memory_and_its_curve_keeps_its_shape_and_end(
    tmp_path: Path,
) -> None:
    run = new_run(tmp_path)
    RecordedRun.read(run.path)  # so that imports do not count
    num = 60_001
    with (run.metrics / "joint.jsonl").open("w") as file:
        for i in range(1, num + 1):
            row = {"env_steps": i * 10, "episode_return_mean": {"sheep": i / num, "wolf_0": 1.0}}
            file.write(json.dumps(row) + "\n")
    tracemalloc.start()
    try:
        curve = RecordedRun.read(run.path).training["sheep"]
        _, peak_bytes = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak_bytes < 100 * num  # all records together take ten times as much
    assert 2_500 <= len(curve.env_steps) <= 5_000
    assert len(set(np.diff(curve.env_steps))) == 1
    assert curve.env_steps[-1] == num * 10
    assert curve.returns == pytest.approx(curve.env_steps / (num * 10))
