"""At how much training runs are compared, and which of their evaluations count."""

from pathlib import Path

import pytest
from tests.orchestrator.comparisons.compared_runs import made_up_run, made_up_runs, rows

from muxrl.orchestrator.comparisons.compare import compare_runs
from muxrl.orchestrator.comparisons.findings.compared_runs import find_budget, read_compared_runs
from muxrl.orchestrator.comparisons.matches import check_equal_training
from muxrl.orchestrator.errors import CannotCompare
from muxrl.orchestrator.storage.checkpoints import Manifest

QMIX_PPO = "qmix hunters | ppo prey"


def test_equal_budgets_are_taken_as_they_are(tmp_path: Path) -> None:
    runs = read_compared_runs(made_up_runs(tmp_path)[:2]).runs
    budget = find_budget(runs)
    assert (budget.env_steps, budget.longest, budget.is_cut) == (1_000, 1_000, False)
    assert find_budget(runs, 500).is_cut


def test_unequal_budgets_are_cut_to_what_all_have(tmp_path: Path) -> None:
    paths = [
        made_up_run(tmp_path, "QMIX", "PPO", 1, 5.0, budget=1_000),
        made_up_run(tmp_path, "PPO", "PPO", 1, 5.0, budget=2_000, num_episodes=8),
    ]
    cut = compare_runs(paths, num_episodes=2)
    assert (cut.budget.env_steps, cut.budget.is_cut, cut.budget.num_episodes) == (1_000, True, 4)
    assert any(note.startswith("cut to a common budget") for note in cut.notes)
    reached = rows(cut, "standings", subject="role:hunters", is_baseline=None)
    scores = {one["contestant"]: one["iqm"].mean for one in reached}
    # The second was halfway up its curve then.
    assert scores == pytest.approx({QMIX_PPO: 5.0, "ppo hunters | ppo prey": 2.5})
    with pytest.raises(CannotCompare, match="head to head needs equal budgets"):
        compare_runs(paths, num_episodes=2, should_meet=True)


@pytest.mark.parametrize(("checkpoint", "is_refused"), [("last", True), ("best", True),
                                                        ("500", False)])  # fmt: skip
def test_checkpoints_of_unequal_training_do_not_meet(
    tmp_path: Path, checkpoint: str, is_refused: bool
) -> None:
    """Whatever was evaluated, and wherever the comparison is cut: one ended between two points."""
    paths = [made_up_run(tmp_path, who, "PPO", 1, 5.0) for who in ("QMIX", "PPO")]
    for path, last in zip(paths, (1_000, 1_200), strict=True):
        for name, env_steps in (("500", 500), ("last", last), ("best", 800)):
            (path / "checkpoints" / name).mkdir(parents=True)
            manifest = Manifest(env_steps, 0.0, "", None, {}, {}, {}, {})
            manifest.write(path / "checkpoints" / name)
    runs = read_compared_runs(paths).runs
    if not is_refused:
        check_equal_training(runs, checkpoint)
        return
    told = r"trained for 1,000 env steps, those of .* for 1,200; choose a checkpoint that all have"
    with pytest.raises(CannotCompare, match=told):
        compare_runs(paths, num_episodes=2, should_meet=True, checkpoint=checkpoint, budget=500)


def test_budgets_without_a_common_point_are_refused_by_name(tmp_path: Path) -> None:
    short = made_up_run(tmp_path, "QMIX", "PPO", 1, 5.0, budget=1_000)
    long = made_up_run(tmp_path, "PPO", "PPO", 1, 5.0, budget=5_000, points=(0.0, 1.0))
    runs = read_compared_runs([short, long]).runs
    with pytest.raises(CannotCompare) as refused:
        find_budget(runs)
    for named in (short.name, long.name, "1,000", "5,000", "evaluation.interval_env_steps"):
        assert named in str(refused.value)
    with pytest.raises(CannotCompare, match=f"3,000 env steps is more than run '{short.name}'"):
        find_budget(runs, 3_000)


_ENDS = (0.0, 1.0)
"""Evaluated before and after training alone: there is no earlier point to fall back on."""


@pytest.mark.parametrize(
    ("ends", "points", "wanted", "scored"),
    [
        ((100_000, 105_200), [_ENDS] * 2, None, 5.0),
        ((96_000, 100_000, 104_000), [_ENDS] * 3, None, 5.0),
        ((95_500, 104_500), [_ENDS] * 2, 100_000, 5.0),
        # A second look, around the shorter one's end, would find the longer one a point earlier.
        ((100_000, 105_200), [(0.0, 0.5, 1.0), (0.0, 0.92, 1.0)], None, 5.0),
        # A point that all have goes before a later one nearby: of a run that the clock ended late.
        ((10_000, 10_200), [(0.0, 0.5, 1.0), (0.0, 50 / 51, 1.0)], None, 5.0 * 50 / 51),
    ],
)
def test_runs_near_one_budget_are_scored_at_points_that_are_alike(
    tmp_path: Path,
    ends: tuple[int, ...],
    points: list[tuple[float, ...]],
    wanted: int | None,
    scored: float,
) -> None:
    paths = [
        made_up_run(tmp_path, "QMIX", "PPO", seed, 5.0, budget=end, points=of_run)
        for seed, (end, of_run) in enumerate(zip(ends, points, strict=True))
    ]
    found = compare_runs(paths, num_episodes=2, budget=wanted)
    runs = rows(found, "runs", subject="role:hunters")
    is_cut = scored < 5.0
    assert [run["env_steps"] for run in runs] == ([10_000] * 2 if is_cut else list(ends))
    returns = [*[5.0] * (len(ends) - 1), scored]
    assert [run["return"] for run in runs] == pytest.approx(returns)
    assert (found.budget.env_steps, found.budget.is_cut) == (min(ends), is_cut)
