"""Assignments side by side: budgets, scores, roles among the same others, and the report."""

import csv
import json
import math
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pytest
from tests.orchestrator.comparisons.compared_runs import made_up_run, made_up_runs

import muxrl
from muxrl.orchestrator.comparisons.compare import compare_runs, default_folder
from muxrl.orchestrator.comparisons.comparison import Comparison
from muxrl.orchestrator.comparisons.files import marl_eval
from muxrl.orchestrator.comparisons.side_by_side import find_budget
from muxrl.orchestrator.comparisons.sources import read_sources
from muxrl.orchestrator.errors import CannotCompare

QMIX_PPO = "qmix hunters | ppo prey"


@pytest.fixture(scope="module")
def comparison(tmp_path_factory: pytest.TempPathFactory) -> Comparison:
    return compare_runs(made_up_runs(tmp_path_factory.mktemp("runs")), num_episodes=3)


@pytest.fixture(scope="module")
def written(comparison: Comparison, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return comparison.write(tmp_path_factory.mktemp("report") / "out").parent


def test_equal_budgets_are_taken_as_they_are(tmp_path: Path) -> None:
    runs = read_sources(made_up_runs(tmp_path)[:2]).runs
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
    scores = {s.contestant: s.score.mean for s in cut.standings if s.subject == "role:hunters"}
    # The second was halfway up its curve then.
    assert scores == pytest.approx({QMIX_PPO: 5.0, "ppo hunters | ppo prey": 2.5})
    with pytest.raises(CannotCompare, match="head to head needs equal budgets"):
        compare_runs(paths, num_episodes=2, should_meet=True)


def test_budgets_without_a_common_point_are_refused_by_name(tmp_path: Path) -> None:
    short = made_up_run(tmp_path, "QMIX", "PPO", 1, 5.0, budget=1_000)
    long = made_up_run(tmp_path, "PPO", "PPO", 1, 5.0, budget=5_000, points=(0.0, 1.0))
    runs = read_sources([short, long]).runs
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
    """Evaluated before and after training alone: no run has an earlier point to fall back on."""
    paths = [
        made_up_run(tmp_path, "QMIX", "PPO", seed, 5.0, budget=end, points=(0.0, 1.0))
        for seed, end in enumerate(ends)
    ]
    found = compare_runs(paths, num_episodes=2, budget=wanted)
    runs = found.standing(QMIX_PPO, "role:hunters").runs
    assert [run.env_steps for run in runs] == list(ends)
    assert [run.score for run in runs] == pytest.approx([5.0] * len(ends))
    assert (found.budget.env_steps, found.budget.is_cut) == (min(ends), False)
    data = marl_eval(found)["muxrl.experiments.simulations.zero_cost"]["ZeroCost"][QMIX_PPO]
    for run in data.values():  # what is handed on is what was scored
        assert np.mean(run["absolute_metrics"]["return_role_hunters"]) == pytest.approx(5.0)


def test_a_run_is_scored_at_the_point_that_made_the_budget(tmp_path: Path) -> None:
    """A second look, around the shorter run's end, would find the longer one a point earlier."""
    paths = [
        made_up_run(tmp_path, "QMIX", "PPO", 1, 5.0, budget=100_000),
        made_up_run(tmp_path, "QMIX", "PPO", 2, 5.0, budget=105_200, points=(0.0, 0.92, 1.0)),
    ]
    runs = compare_runs(paths, num_episodes=2).standing(QMIX_PPO, "role:hunters").runs
    assert [run.env_steps for run in runs] == [100_000, 105_200]
    assert [run.score for run in runs] == pytest.approx([5.0, 5.0])


def test_a_score_is_a_run_s_mean_return(comparison: Comparison) -> None:
    standing = comparison.standing(QMIX_PPO, "role:hunters")
    assert [run.score for run in standing.runs] == pytest.approx([5.1, 5.2, 5.3])
    assert (standing.score.mean, standing.score.low) == pytest.approx((5.2, 5.1))
    assert standing.area is not None
    assert standing.area.mean == pytest.approx(2.6)  # a line from 0 to 5.2
    assert comparison.standing(QMIX_PPO, "total").score.mean == pytest.approx(5.2)
    assert all(run.random_in_place == pytest.approx(0.0) for run in standing.runs)


def test_a_role_s_labels_are_compared_among_the_same_others(comparison: Comparison) -> None:
    hunters, prey = comparison.roles_compared
    assert hunters.contexts == ("ppo prey", "a2c prey")
    assert {s.label: s.num_runs for s in hunters.standings} == {"qmix": 6, "ppo": 6}
    pairing = next(p for p in hunters.pairings if p.first == "qmix")
    assert pairing.improvement.mean == 1.0
    assert pairing.difference is not None
    assert (pairing.difference.mean, pairing.difference.low) == pytest.approx((2.0, 2.0))
    assert pairing.num_pairs == 6
    first = prey.pairings[0]
    assert (first.first, first.second) == ("ppo", "a2c")
    assert first.difference is not None
    assert first.difference.mean == pytest.approx(1.0)


def test_a_label_is_not_compared_where_the_others_differ(tmp_path: Path) -> None:
    """QMIX against PPO's prey, PPO against A2C's: nobody can tell hunters from prey."""
    paths = [
        made_up_run(tmp_path, hunters, prey, seed, 5.0)
        for hunters, prey in (("QMIX", "PPO"), ("PPO", "A2C"))
        for seed in (1, 2)
    ]
    found = compare_runs(paths, num_episodes=2)
    assert found.roles_compared == ()
    assert any("no labels met the same others" in note for note in found.notes)


def test_thresholds_lie_halfway_from_random_to_the_best(comparison: Comparison) -> None:
    random = comparison.baselines[0].returns["role:hunters"].mean
    assert comparison.thresholds["role:hunters"] == pytest.approx((random + 6.2) / 2)
    assert "role:prey" not in comparison.thresholds  # nobody flees better than random


def test_thresholds_may_be_given(tmp_path: Path) -> None:
    paths = [made_up_run(tmp_path, "QMIX", "PPO", s, 5.0 + 0.1 * s) for s in (1, 2, 3)]
    thresholds = {"role:hunters": 5.25, "total": 2.0}
    given = compare_runs(paths, num_episodes=2, thresholds=thresholds)
    late, early = (given.standing(QMIX_PPO, key) for key in thresholds)
    assert late.num_reached == 1
    assert late.env_steps_to_threshold is None  # the median run never got there
    assert (early.env_steps_to_threshold, early.time_s_to_threshold) == (500, 5.0)
    with pytest.raises(CannotCompare, match=r"'role:prize'.*did you mean 'role:prey'"):
        compare_runs(paths, thresholds={"role:prize": 1.0})


def test_few_seeds_are_said_aloud(tmp_path: Path) -> None:
    notes = compare_runs(made_up_runs(tmp_path)[:1], num_episodes=2).notes
    assert any("has one seed" in note for note in notes)


def test_a_difference_without_an_interval_is_said_aloud(tmp_path: Path) -> None:
    """Among A2C's prey both have seed 1 alone in common: how pairs differ there nobody knows."""
    seeds = {("QMIX", "PPO"): (1, 2, 3), ("PPO", "PPO"): (1, 2, 3)}
    seeds |= {("QMIX", "A2C"): (1, 2), ("PPO", "A2C"): (1, 3)}
    paths = [made_up_run(tmp_path, *who, s, 5.0 + s) for who, each in seeds.items() for s in each]
    found = compare_runs(paths, num_episodes=2)
    difference = found.roles_compared[0].pairings[0].difference
    assert difference is not None
    assert difference.mean == pytest.approx(0.0)
    assert math.isnan(difference.low)
    told = [note for note in found.notes if "of one seed alone" in note]
    assert len(told) == 1
    assert "in role hunters the difference of qmix and ppo" in told[0]


def test_external_simulations_are_compared_without_playing(tmp_path: Path) -> None:
    paths = [made_up_run(tmp_path, "QMIX", "PPO", s, 5.0, env="external") for s in (1, 2)]
    found = compare_runs(paths)
    assert found.baselines == ()
    assert any("no baseline was played" in note for note in found.notes)
    with pytest.raises(CannotCompare, match="is external, so muxrl cannot start it"):
        compare_runs(paths, should_meet=True)


# --- what is written ------------------------------------------------------------------------


class Page(HTMLParser):
    """Collects what a page refers to, and whether its tags close."""

    VOID = ("meta", "img", "br", "link")

    def __init__(self, text: str) -> None:
        super().__init__()
        self.ids: set[str] = set()
        self.links: list[str] = []
        self.images: list[str] = []
        self.open: list[str] = []
        self.num_tables = 0
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        found = dict(attrs)
        self.ids.add(found.get("id") or "")
        self.num_tables += tag == "table"
        if tag == "a":
            self.links.append(found.get("href") or "")
        if tag == "img":
            self.images.append(found.get("src") or "")
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


def test_the_report_stands_alone_and_its_links_lead_somewhere(written: Path) -> None:
    page = Page((written / "report.html").read_text())
    assert page.open == []
    assert page.num_tables >= 8
    assert page.images
    assert all(image.startswith("data:image/svg+xml;base64,") for image in page.images)
    inside = [link[1:] for link in page.links if link.startswith("#")]
    assert set(inside) <= page.ids
    runs = [link for link in page.links if not link.startswith("#")]
    assert len(runs) == 12
    assert all((written / link / "plan.json").is_file() for link in runs)


def test_names_are_text_and_not_html(tmp_path: Path) -> None:
    paths = [
        made_up_run(tmp_path, "QMIX", "PPO", s, 5.0, settings={"note": f"<script>{s}</script>"})
        for s in (1, 2)
    ]
    page = compare_runs(paths, num_episodes=2).write(tmp_path / "out").read_text()
    assert "<script>1" not in page
    assert "&lt;script&gt;1" in page


def test_the_same_comparison_writes_the_same_files(comparison: Comparison, written: Path) -> None:
    again = comparison.write(written.parent / "again").parent
    assert {path.name for path in again.iterdir()} == {path.name for path in written.iterdir()}
    for path in written.iterdir():
        assert path.read_bytes() == (again / path.name).read_bytes(), path.name


def test_files_hold_what_the_frames_hold(comparison: Comparison, written: Path) -> None:
    with (written / "runs.csv").open() as file:
        rows = list(csv.DictReader(file))
    frame = comparison.frame()
    assert len(rows) == len(frame) == 12 * 5
    assert list(frame.columns) == list(rows[0])
    assert float(rows[0]["return"]) == pytest.approx(frame["return"][0])
    assert set(frame["seed"]) == {1, 2, 3}
    # Files name a run by where it lies from them: a report says nothing of the machine.
    assert not any(Path(row["run"]).is_absolute() for row in rows)
    assert [(written / row["run"]).resolve() for row in rows] == [Path(p) for p in frame["run"]]
    curves = comparison.frame("curves")
    assert len(curves) == 12 * 5 * 3
    standings = comparison.frame("standings")
    assert "baseline: random" in set(standings["contestant"])
    with pytest.raises(ValueError, match="there is no table 'run'"):
        comparison.frame("run")  # type: ignore[arg-type]


def test_json_has_marl_eval_s_shape(comparison: Comparison, written: Path) -> None:
    """Environment, task, algorithm, run, step; each metric one number for each episode."""
    data = json.loads((written / "marl_eval.json").read_text())
    algorithms = data["muxrl.experiments.simulations.zero_cost"]["ZeroCost"]
    assert set(algorithms) == {contestant.name for contestant in comparison.contestants}
    run = algorithms[QMIX_PPO]["seed_1"]
    assert list(run) == ["step_0", "step_1", "step_2", "absolute_metrics"]
    assert (run["step_1"]["step_count"], run["step_1"]["elapsed_time"]) == (500, 5.0)
    assert set(run["absolute_metrics"]) == {
        "return",
        "return_role_hunters",
        "return_role_prey",
        "return_agent_agent_0",
        "return_agent_agent_1",
    }
    values = run["absolute_metrics"]["return_role_hunters"]
    assert len(values) == 4
    assert np.mean(values) == pytest.approx(5.1)
    assert not any(math.isnan(value) for value in values)


def test_a_notebook_compares_with_paths_as_text(tmp_path: Path) -> None:
    assert muxrl.compare is compare_runs
    path = made_up_run(tmp_path, "QMIX", "PPO", 1, 5.0)
    frame = muxrl.compare([str(path)], num_episodes=1).frame("roles")
    assert list(frame.columns)[:2] == ["role", "label"]
    assert frame.empty  # one label in each role: there is nothing to compare


def test_a_report_goes_into_its_sweep_or_beside_the_first_run(tmp_path: Path) -> None:
    assert default_folder([tmp_path / "a", tmp_path / "b"]) == tmp_path / "comparison"
    (tmp_path / "trials.jsonl").touch()
    assert default_folder([tmp_path]) == tmp_path / "comparison"
