"""After how much training runs are compared, and which of their evaluations count."""

import io
import json
from pathlib import Path

import pytest
from rich.console import Console
from tests.orchestrator.comparisons.compared_runs import made_up_run, rows

from muxrl.orchestrator.comparisons.compare import compare_runs
from muxrl.orchestrator.comparisons.findings.compared_runs import find_budget, read_compared_runs
from muxrl.orchestrator.comparisons.matches import check_equal_training
from muxrl.orchestrator.comparisons.output.methods import methods
from muxrl.orchestrator.comparisons.output.written import print_comparison
from muxrl.orchestrator.errors import CannotCompare
from muxrl.orchestrator.storage.checkpoints import Manifest

QMIX_PPO = "qmix hunters | ppo prey"


def test_unequal_budgets_are_cut_to_the_steps_that_all_runs_have(tmp_path: Path) -> None:
    paths = [
        made_up_run(tmp_path, "QMIX", "PPO", 1, 5.0, budget=1_000),
        made_up_run(tmp_path, "PPO", "PPO", 1, 5.0, budget=2_000, num_episodes=8),
    ]
    cut = compare_runs(paths, num_episodes=2)
    assert (cut.budget.env_steps, cut.budget.is_cut, cut.budget.num_episodes) == (1_000, True, 4)
    assert any(note.startswith("cut to a common budget") for note in cut.notes)
    reached = rows(cut, "standings", subject="role:hunters", is_baseline=None)
    scores = {one["contestant"]: one["iqm"].mean for one in reached}
    # The second run was halfway up its curve then.
    assert scores == pytest.approx({QMIX_PPO: 5.0, "ppo hunters | ppo prey": 2.5})
    with pytest.raises(CannotCompare, match="head to head needs equal budgets"):
        compare_runs(paths, num_episodes=2, should_meet=True)


@pytest.mark.parametrize(("checkpoint", "is_refused"), [("last", True), ("best", True),
                                                        ("500", False)])  # fmt: skip
def test_checkpoints_after_unequal_training_are_refused_in_a_head_to_head(
    tmp_path: Path, checkpoint: str, is_refused: bool
) -> None:
    """It does not matter where the comparison is cut; here one run ended between two points."""
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


def test_steps_beyond_the_budget_are_noted_once_with_their_runs(tmp_path: Path) -> None:
    paths = [
        made_up_run(tmp_path, who, "PPO", seed, 5.0, beyond=beyond)
        for who, seed, beyond in (("QMIX", 1, 50), ("PPO", 1, 600), ("PPO", 2, 7_000))
    ]
    found = compare_runs(paths, num_episodes=2)
    (note,) = [note for note in found.notes if "trained on" in note]
    assert note.startswith(
        f"2 of 3 runs ({paths[1].name}, {paths[2].name}): the policies that were evaluated after "
        "1,000 env steps had been trained on 1,600 to 8,000, since"
    )


def test_a_budget_between_evaluations_is_named_by_the_env_steps_of_the_evaluation(
    tmp_path: Path,
) -> None:
    """The notes, the paper's paragraph and the terminal name the evaluations' env steps."""
    paths = [
        made_up_run(tmp_path, "QMIX", "PPO", 1, 5.0, budget=1_000),
        made_up_run(tmp_path, "PPO", "PPO", 1, 5.0, budget=2_000),
    ]
    found = compare_runs(paths, num_episodes=2, budget=1_020)
    assert any("and are compared after 1,000; later" in note for note in found.notes)
    assert "for 1,000 env steps" in methods(found)
    console = Console(file=io.StringIO(), width=200)
    print_comparison(found, console)
    assert isinstance(console.file, io.StringIO)
    assert "After 1,000 env steps of training. Baselines: mean" in console.file.getvalue()


def test_a_point_that_all_runs_have_is_preferred_to_a_later_one_nearby(tmp_path: Path) -> None:
    """Otherwise the run that was ended by the clock would be scored after more training."""
    paths = [
        made_up_run(tmp_path, "QMIX", "PPO", 1, 5.0, budget=10_000),
        made_up_run(tmp_path, "QMIX", "PPO", 2, 5.0, budget=10_200, points=(0.0, 50 / 51, 1.0)),
    ]
    budget = find_budget(read_compared_runs(paths).runs)
    assert (budget.place, budget.env_steps, budget.is_cut) == (10_000, 10_000, True)


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


@pytest.mark.parametrize(
    ("ends", "wanted"),
    [
        ((100_000, 105_200), None),
        ((96_000, 100_000, 104_000), None),
        ((95_500, 104_500), 100_000),
    ],
)
def test_runs_near_one_budget_are_scored_at_their_ends(
    tmp_path: Path, ends: tuple[int, ...], wanted: int | None
) -> None:
    """The runs were evaluated only before and after training, so no earlier point can be used."""
    paths = [
        made_up_run(tmp_path, "QMIX", "PPO", seed, 5.0, budget=end, points=(0.0, 1.0))
        for seed, end in enumerate(ends)
    ]
    found = compare_runs(paths, num_episodes=2, budget=wanted)
    runs = rows(found, "runs", subject="role:hunters")
    assert [run["env_steps"] for run in runs] == list(ends)
    assert [run["return"] for run in runs] == pytest.approx([5.0] * len(ends))
    assert (found.budget.env_steps, found.budget.is_cut) == (min(ends), False)


def test_a_run_is_scored_at_the_point_that_made_the_budget(tmp_path: Path) -> None:
    """A second search, around the shorter run's end, would find the longer run's earlier point."""
    paths = [
        made_up_run(tmp_path, "QMIX", "PPO", 1, 5.0, budget=100_000),
        made_up_run(tmp_path, "QMIX", "PPO", 2, 5.0, budget=105_200, points=(0.0, 0.92, 1.0)),
    ]
    runs = rows(compare_runs(paths, num_episodes=2), "runs", subject="role:hunters")
    assert [run["env_steps"] for run in runs] == [100_000, 105_200]
    assert [run["return"] for run in runs] == pytest.approx([5.0, 5.0])


def test_a_promoted_shadow_is_compared_by_its_returns_as_a_shadow(tmp_path: Path) -> None:
    path = made_up_run(tmp_path, "QMIX", "PPO", 1, 5.0)
    plan = json.loads((path / "plan.json").read_text())
    hunters = plan["servers"]["hunters"]
    plan["servers"]["dqn"] = {**hunters, "algorithm": "DQN", "shadow": "hunters"}
    hunters["replaced_by"] = "dqn"
    (path / "plan.json").write_text(json.dumps(plan))
    config = (path / "config.yaml").read_text()
    added = "servers:\n  dqn: {algorithm: DQN, shadow: hunters}\n"
    (path / "config.yaml").write_text(config.replace("servers:\n", added))
    file, rows_ = path / "metrics" / "evaluation.jsonl", []
    for row in map(json.loads, file.read_text().splitlines()):
        is_random = row["replaced"] == "hunters"
        if row["env_steps"] == 1_000 and is_random:
            row["replaced"] = "dqn"
        rows_.append(row)
        if row["env_steps"] == 500 and is_random:
            nine = {agent: [9.0] * 4 for agent in row["returns"]}
            rows_.append({**row, "replaced": "hunters=dqn", "returns": nine})
    file.write_text("".join(json.dumps(row) + "\n" for row in rows_))
    for budget, expected in ((500, 9.0), (1_000, 5.0)):
        found = compare_runs([path], num_episodes=2, budget=budget)
        (run,) = rows(found, "runs", subject="role:dqn")
        assert run["return"] == pytest.approx(expected)
