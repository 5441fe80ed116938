"""`muxrl.compare` finds scores, thresholds, roles among the same others, and notes."""

import json
import math
import re
from pathlib import Path

import numpy as np
import pytest
from tests.orchestrator.comparisons.compared_runs import (
    ENV,
    made_up_run,
    made_up_runs,
    row,
    rows,
)
from tests.orchestrator.records.recorded import run_of

import muxrl
from muxrl.client.adapters.simulation import COMMON
from muxrl.orchestrator.comparisons.compare import Comparison, compare_runs, default_folder
from muxrl.orchestrator.comparisons.findings.by_parameter import _groups
from muxrl.orchestrator.comparisons.output.methods import all_settings, methods
from muxrl.orchestrator.comparisons.output.written import baseline_caption
from muxrl.orchestrator.config import ExperimentConfig, SimulationConfig, to_yaml
from muxrl.orchestrator.errors import CannotCompare
from muxrl.orchestrator.records.metrics import MetricsWriter, read_metrics
from muxrl.orchestrator.records.run_directory import RunDirectory
from muxrl.orchestrator.records.run_status import StatusFile
from muxrl.orchestrator.reports.report import write_report
from muxrl.orchestrator.storage.checkpoints import Manifest
from muxrl.orchestrator.storage.json_files import write_json
from muxrl.protocol.messages import ServerWarning
from muxrl.servers.config import ServerConfig

QMIX_PPO = "qmix hunters | ppo prey"


def test_a_score_is_a_run_s_mean_return(comparison: Comparison) -> None:
    of = {"contestant": QMIX_PPO, "subject": "role:hunters"}
    standing, runs = row(comparison, "standings", **of), rows(comparison, "runs", **of)
    assert [run["return"] for run in runs] == pytest.approx([5.1, 5.2, 5.3])
    assert standing.iqm.mean == pytest.approx(5.2)
    factor = math.sqrt(3 / 2) * 4.30265 / 1.95996  # of three runs, see `widened`
    assert standing.iqm.low == pytest.approx(5.2 - 0.1 * factor)
    assert standing.area.mean == pytest.approx(2.6)  # the curve is a line from 0 to 5.2
    for run in runs:  # the areas of single episodes have the run's area as their mean
        assert run["area_in_episodes"].mean() == pytest.approx(run["area_under_curve"])
        assert run["random_in_place"] == pytest.approx(0.0)


def test_a_role_s_labels_are_compared_among_the_same_others(comparison: Comparison) -> None:
    hunters = rows(comparison, "roles", role="hunters")
    assert hunters[0]["among"] == ("ppo prey", "a2c prey")
    assert {s["label"]: s["num_runs"] for s in hunters} == {"qmix": 6, "ppo": 6}
    pairing = row(comparison, "pairings", role="hunters", first="qmix")
    assert pairing.improvement.mean == 1.0
    reach = (
        2.77645 * 0.01 / math.sqrt(6)
    )  # t with 4 degrees of freedom; the differences are 1.99, 2 and 2.01 among each of the others
    assert (pairing.difference.mean, pairing.difference.low) == pytest.approx((2.0, 2.0 - reach))
    assert pairing.num_pairs == 6
    first = rows(comparison, "pairings", role="prey")[0]
    assert (first["first"], first["second"]) == ("ppo", "a2c")
    assert first["difference"].mean == pytest.approx(1.0)


def test_a_label_is_not_compared_where_the_others_differ(tmp_path: Path) -> None:
    """QMIX hunts PPO's prey, PPO hunts A2C's: hunters' and prey's parts cannot be told apart."""
    paths = [
        made_up_run(tmp_path, hunters, prey, seed, 5.0)
        for hunters, prey in (("QMIX", "PPO"), ("PPO", "A2C"))
        for seed in (1, 2)
    ]
    found = compare_runs(paths, num_episodes=2)
    assert found.frame("roles").empty
    assert any("no two labels of " in note for note in found.notes)


def test_labels_stand_in_the_order_of_their_runs(tmp_path: Path) -> None:
    """The order does not depend on which of the runs are among common others."""
    who = [("QMIX", "A2C"), ("A2C", "PPO"), ("QMIX", "PPO")]
    found = compare_runs([made_up_run(tmp_path, *one, 1, 5.0) for one in who], num_episodes=2)
    assert [one["label"] for one in rows(found, "roles", role="hunters")] == ["qmix", "a2c"]


def test_warnings_in_logs_are_noted_once_with_their_runs(tmp_path: Path) -> None:
    paths = [made_up_run(tmp_path, "QMIX", "PPO", seed, 5.0) for seed in (1, 2, 3)]
    for num, path in enumerate(paths[:2], 1):
        warning = ServerWarning("far rewards", num, 40, f"a reward of {num}e9: is it a mistake?")
        of_run = [ServerWarning("server 'prey': its target network is never copied")]
        StatusFile(RunDirectory.open(path)).warn({"": of_run, "prey": [warning]}, "")
    names = "qmix-ppo-1-20261121-000000, qmix-ppo-2-20261121-000000"
    notes = compare_runs(paths, num_episodes=2).notes
    assert [note for note in notes if "in 2 of 3 runs" in note] == [
        f"in 2 of 3 runs ({names}): server 'prey': its target network is never copied",
        f"in 2 of 3 runs ({names}): the log of prey warns of far rewards; see its report",
    ]


def test_lost_processes_and_episodes_are_noted_once_with_their_runs(tmp_path: Path) -> None:
    """Notes repeat the words of the runs' reports."""
    paths = [made_up_run(tmp_path, "QMIX", "PPO", seed, 5.0) for seed in (1, 2, 3)]
    for num, path in enumerate(paths[:2], 1):
        with MetricsWriter(RunDirectory.open(path)) as metrics:
            lost = {"restarted": ["hunters"], "num_lost_episodes": 4}
            metrics.joint({"env_steps": 40, **lost, "num_random_episodes": {"hunters": num}})
    names = "qmix-ppo-1-20261121-000000, qmix-ppo-2-20261121-000000"
    notes = compare_runs(paths, num_episodes=2).notes
    told = [note.removeprefix(f"2 of 3 runs ({names}): ") for note in notes if names in note]
    assert told[0] == "hunters was lost and started again 1×, at 40 env steps"
    assert told[1].startswith("4 training episodes were cut short since a process was lost;")
    assert told[2].startswith("agents of hunters acted at random in 1 to 2 training episodes")
    assert write_report(RunDirectory.open(paths[0])).notes[1].endswith(told[1])


def test_changes_by_a_resume_are_noted_and_are_in_the_paper_s_paragraph(tmp_path: Path) -> None:
    lr = {"lr": 0.0003}
    paths = [made_up_run(tmp_path, "QMIX", "PPO", seed, 5.0, settings=lr) for seed in (1, 2)]
    run = RunDirectory.open(paths[0])
    before = run.read_config()
    before.servers["hunters"].settings["lr"] = 0.001
    run.former_config(500).write_text(to_yaml(before))
    found = compare_runs(paths, num_episodes=2)
    told = "servers.hunters.settings.lr was 0.001 until 500 env steps, then 0.0003"
    assert f"run {run.name}: {told}" in found.notes
    (note,) = [note for note in found.notes if "count as seeds" in note]
    assert note.startswith(f"{QMIX_PPO}: runs that count as seeds")
    assert f"In {run.name}, {told}." in methods(found)
    assert "| 0.001 until 500 env steps, then 0.0003 or 0.0003 |" in all_settings(found)


def test_thresholds_lie_halfway_from_random_to_the_best(
    comparison: Comparison, tmp_path: Path
) -> None:
    """The measure is the advantage over random agents in the same place, else the return."""
    assert comparison.measures["role:hunters"] == "advantage"
    assert comparison.thresholds["role:hunters"] == pytest.approx(6.2 / 2)
    assert comparison.measures["role:prey"] == "return"
    assert "role:prey" not in comparison.thresholds  # no prey returns more than random prey
    paths = [made_up_run(tmp_path, "QMIX", "PPO", s, -5.0) for s in (1, 2)]
    found = compare_runs(paths, num_episodes=2)
    random = row(found, "standings", contestant="baseline: random", subject="role:prey")
    assert found.thresholds["role:prey"] == pytest.approx((random.mean.mean + 5.0) / 2)


def test_thresholds_may_be_given(tmp_path: Path) -> None:
    paths = [made_up_run(tmp_path, "QMIX", "PPO", s, 5.0 + 0.1 * s) for s in (1, 2, 3)]
    thresholds = {"role:hunters": 5.25, "total": 2.0}
    given = compare_runs(paths, num_episodes=2, thresholds=thresholds, cooperative=True)
    late, early = (row(given, "standings", contestant=QMIX_PPO, subject=s) for s in thresholds)
    assert late.num_reached == 1
    assert late.env_steps_to_threshold is None  # the median run never reached it
    assert (early.env_steps_to_threshold, early.time_s_to_threshold) == (500, 5.0)
    with pytest.raises(CannotCompare, match=r"'role:prize'.*did you mean 'role:prey'"):
        compare_runs(paths, thresholds={"role:prize": 1.0})


def test_prey_are_not_credited_with_hunters_that_have_not_learned(tmp_path: Path) -> None:
    """The prey's return is highest before training, when the hunters cannot hunt yet."""
    paths = [made_up_run(tmp_path, "QMIX", "PPO", s, 5.0, prey_gain=2.0) for s in (1, 2, 3)]
    found = compare_runs(paths, num_episodes=2)
    prey = row(found, "standings", contestant=QMIX_PPO, subject="role:prey")
    assert found.measures["role:prey"] == "advantage"
    assert found.thresholds["role:prey"] == pytest.approx(1.0)
    assert (prey.num_reached, prey.env_steps_to_threshold) == (3, 500)
    assert prey.area.mean == pytest.approx(1.0)  # from 0 to 2, while the returns fall from 0 to -5
    by_return = compare_runs(paths, num_episodes=2, thresholds={"role:prey": -1.0})
    prey = row(by_return, "standings", contestant=QMIX_PPO, subject="role:prey")
    assert (prey.num_reached, prey.env_steps_to_threshold) == (0, None)
    assert any("of role prey was met before training, in 3 runs" in n for n in by_return.notes)


@pytest.mark.parametrize(
    ("num_updates", "measures_untrained", "verdict"),
    [
        ((0, 0), False, "made no update"),
        ((3, 0), True, "not shown: untrained"),
        ((3, 3, 0), False, "not shown: some made no update"),
        ((3, 3, 3), False, "learned"),
    ],
)
def test_a_server_without_updates_is_not_said_to_have_learned(
    tmp_path: Path, num_updates: tuple[int, ...], measures_untrained: bool, verdict: str
) -> None:
    """The policies of a server without updates are the untrained ones, so they play only once."""
    paths = []
    for seed, num in enumerate(num_updates):
        untrained = -1.0 if num and measures_untrained else None
        path = made_up_run(tmp_path, "QMIX", "PPO", seed, 5.0 + seed / 10, untrained=untrained)
        with MetricsWriter(RunDirectory(path)) as metrics:
            states = {"hunters": {"weights_seq_no": num}}
            metrics.joint({"env_steps": 1_000, "servers": states})
        paths.append(path)
    found = compare_runs(paths, num_episodes=2)
    learner = row(found, "learners", role="hunters")
    assert learner.verdict == verdict
    assert learner.advantage.low > 0
    (sentence,) = [one for one in found.headline if "qmix as hunters" in one]
    if any(num_updates):
        verb = "is shown" if verdict == "learned" else "is not shown"
        assert f"{verb} to have learned" in sentence
    else:
        assert sentence == (
            "Not judged: qmix as hunters beside ppo prey, which made no update, so there is "
            "nothing to judge."
        )


@pytest.mark.parametrize(
    ("sides", "verdict"), [((), "plays itself"), (("agent_0", "agent_1"), "side by side")]
)
def test_a_server_on_both_sides_is_described_as_in_its_report(
    tmp_path: Path, sides: tuple[str, ...], verdict: str
) -> None:
    paths = []
    for seed in (1, 2):
        server = ServerConfig(algorithm="PPO", agents=["agent_0", "agent_1"])
        simulation = SimulationConfig(env=ENV, kwargs={"num_agents": 2, "num_steps": 5})
        config = ExperimentConfig(seed=seed, simulation=simulation, servers={"both": server})
        run = run_of(tmp_path, f"duel-{seed}", config)
        with MetricsWriter(run) as metrics:
            for env_steps in (0, 1_000):
                luck = [(-1.0) ** i + seed for i in range(30)]
                replaced = [None, "both", *(f"both/{side}" for side in sides if env_steps)]
                for who in replaced:
                    won = [one - (who == "both/agent_0") * 9.0 for one in luck]
                    row = {"env_steps": env_steps, "replaced": who, "first_seed": 7}
                    row |= {"agents": [who.removeprefix("both/")]} if who in replaced[2:] else {}
                    returns = {"agent_0": won, "agent_1": [-one for one in won]}
                    metrics.evaluation({**row, "num_episodes": 30, "returns": returns})
        paths.append(run.path)
    found = compare_runs(paths, num_episodes=2)
    (learner,) = rows(found, "learners")
    assert (learner["verdict"], learner["num_runs"]) == (verdict, 0)
    assert math.isnan(learner["advantage"].mean)
    assert not any("learned" in sentence for sentence in found.headline)
    assert found.headline[-1].startswith("Not judged: ppo as agent, which plays against itself")
    in_place = {one["random_in_place"] for one in rows(found, "runs", subject="agent:agent_0")}
    assert (in_place == {-8.0, -7.0}) is bool(sides)  # only if each side was replaced alone


def test_a_role_that_no_run_has_learned_reaches_no_threshold(tmp_path: Path) -> None:
    paths = [made_up_run(tmp_path, "QMIX", "RANDOM", s, 5.0) for s in (1, 2)]
    found = compare_runs(paths, num_episodes=2, thresholds={"role:prey": -9.0})
    who = "qmix hunters | random prey"
    prey = row(found, "standings", contestant=who, subject="role:prey")
    assert (prey.num_reached, prey.area) == (0, None)
    assert set(found.frame("learners").role) == {"hunters"}


def test_the_sum_of_all_agents_is_measured_where_they_cooperate(tmp_path: Path) -> None:
    opposed = [made_up_run(tmp_path, "QMIX", "PPO", s, 5.0) for s in (1, 2)]
    assert "total" not in [s.key for s in compare_runs(opposed, num_episodes=2).subjects]
    asked = compare_runs(opposed, num_episodes=2, cooperative=True)
    total = row(asked, "standings", contestant=QMIX_PPO, subject="total")
    assert total.iqm.mean == pytest.approx(5.0)


def test_a_note_says_that_there_are_few_seeds(tmp_path: Path) -> None:
    notes = compare_runs(made_up_runs(tmp_path)[:1], num_episodes=2).notes
    assert any("has one seed" in note for note in notes)


def test_a_note_names_differences_without_an_interval(tmp_path: Path) -> None:
    """Among A2C's prey both labels have only seed 1 in common, so its pairs show no spread."""
    seeds = {("QMIX", "PPO"): (1, 2, 3), ("PPO", "PPO"): (1, 2, 3)}
    seeds |= {("QMIX", "A2C"): (1, 2), ("PPO", "A2C"): (1, 3)}
    paths = [made_up_run(tmp_path, *who, s, 5.0 + s) for who, each in seeds.items() for s in each]
    found = compare_runs(paths, num_episodes=2)
    difference = rows(found, "pairings", role="hunters")[0]["difference"]
    assert difference.mean == pytest.approx(0.0)
    assert math.isnan(difference.low)
    told = [note for note in found.notes if "only one common seed" in note]
    assert ["in role hunters the difference between qmix and ppo" in note for note in told] == [
        True,
        False,
    ]
    # Those of the prey, whose differences are 0 for every seed.
    assert "of a few seeds are all equal" in told[1]


def test_external_simulations_are_compared_without_playing(tmp_path: Path) -> None:
    paths = [made_up_run(tmp_path, "QMIX", "PPO", s, 5.0, env="external") for s in (1, 2)]
    found = compare_runs(paths)
    assert rows(found, "standings", is_baseline=True) == []
    assert any("no baseline was played" in note for note in found.notes)
    with pytest.raises(CannotCompare, match="is external, so muxrl cannot start it"):
        compare_runs(paths, should_meet=True)


def test_a_notebook_compares_with_paths_as_text(tmp_path: Path) -> None:
    assert muxrl.compare is compare_runs
    path = made_up_run(tmp_path, "QMIX", "PPO", 1, 5.0)
    frame = muxrl.compare([str(path)], num_episodes=1).frame("roles")
    assert list(frame.columns)[:2] == ["role", "label"]
    assert frame.empty  # each role has only one label, so that there is nothing to compare


def test_a_report_goes_into_its_sweep_or_beside_the_first_run(tmp_path: Path) -> None:
    assert default_folder([tmp_path / "a", tmp_path / "b"]) == tmp_path / "comparison"
    (tmp_path / "trials.jsonl").touch()
    assert default_folder([tmp_path]) == tmp_path / "comparison"


def test_the_simulation_s_metrics_stand_beside_the_returns(tmp_path: Path) -> None:
    paths = [
        made_up_run(tmp_path, "QMIX", "PPO", seed, 5.0 + 0.1 * seed, has_metrics=seed > 1)
        for seed in (1, 2, 3)
    ]
    found = compare_runs(paths, num_episodes=2, thresholds={"metric:win": 0.5})
    assert [subject.key for subject in found.metrics] == ["metric:hits:hunters", "metric:win"]
    assert row(found, "standings", contestant=QMIX_PPO, subject="metric:win").iqm.mean == 0.5
    wins = rows(found, "runs", subject="metric:win")
    assert math.isnan(wins[0]["return"]), "the first run had no metrics yet"
    assert [run["met_untrained"] for run in wins] == [False, True, True]
    hits = rows(found, "runs", subject="metric:hits:hunters")[1:]
    assert [run["return"] for run in hits] == pytest.approx([52.0, 53.0])
    assert [run["random_in_place"] for run in hits] == pytest.approx([0.0, 0.0])
    report = found.write(tmp_path / "report")
    page = report.read_text()
    assert "The simulation&#39;s metrics" in page or "The simulation's metrics" in page
    assert "hits:hunters (mean over 2 agents)" in page
    curves = found.frame("curves")
    won = curves[curves.subject == "metric:win"]
    assert won[["seed", "env_steps", "return"]].to_numpy().tolist() == [
        [seed, env_steps, 0.5] for seed in (2, 3) for env_steps in (0, 500, 1000)
    ]


def test_a_notebook_shows_the_headline_and_the_returns(comparison: Comparison) -> None:
    page = comparison._repr_html_()
    assert page.count("<table") == 1
    for contestant in comparison.contestants:
        assert contestant.name in page
    assert len(re.findall("<p>", page)) == 1 + len(comparison.headline) + len(comparison.notes)


def test_returns_are_compared_at_each_value_of_a_parameter(tmp_path: Path) -> None:
    """One run draws values, `muxrl evaluate` sets the other's; every second episode is a "win"."""
    paths = [made_up_run(tmp_path, h, "PPO", 1, 5.0, has_metrics=True) for h in ("QMIX", "PPO")]
    for path, choice in zip(paths, ([0, 1], 1), strict=True):
        config = RunDirectory(path).read_config()
        given = {"win": {"choice": choice} if choice != 1 else choice, "wind": 3}
        config.simulation.parameters = given
        RunDirectory(path).write_config(to_yaml(config))
    for name in ("checkpoints/last", "evaluations"):
        (paths[1] / name).mkdir(parents=True)
    Manifest(1000, 0.0, "", None, {}, {}, {}, {}).write(paths[1] / "checkpoints" / "last")
    # Of another checkpoint, of another value of another parameter, and the same episode again.
    for number, (checkpoint, wind) in enumerate(
        [("last", 3.0), ("500", 3.0), ("last", 9.0), ("last", 3.0)]
    ):
        learned = {"checkpoint": f"checkpoints/{checkpoint}/hunters", "rule": "greedy"}
        told = {
            "servers": {"hunters": learned, "prey": {"checkpoint": "", "rule": "fixed"}},
            "replaced": {},
            "seeds": [10_000],
            "episode_returns": {"agent_0": [4.0 + wind], "agent_1": [9.0], "agent_2": [0.0]},
            "episode_metrics": {"win": {COMMON: [2.0]}, "wind": {COMMON: [wind]}},
        }
        write_json(paths[1] / "evaluations" / f"{number}.json", told)
    del told["episode_metrics"]
    others = {"old": {**told, "format": 1}, "new": {"format": 99}, "foreign": []}
    for name, content in others.items():
        write_json(paths[1] / "evaluations" / f"{name}.json", content)
    found = compare_runs(paths, num_episodes=2)
    of_hunters = rows(found, "parameters", subject="role:hunters")
    assert {x["parameter"] for x in of_hunters} == {"win"}, "each wind has another win"
    at = {(x["contestant"][:4], x["value"]): x["iqm"].mean for x in of_hunters}
    assert [x["num_episodes"] for x in of_hunters if x["value"] == "2"] == [1]
    hits = rows(found, "parameters", subject="metric:hits:hunters")
    assert {x["contestant"][:4] for x in hits} == {"qmix"}, "no evaluation afterwards has them"
    assert at == pytest.approx(
        {("qmix", "0"): 4.9, ("qmix", "1"): 5.1, ("ppo ", "0"): 4.9, ("ppo ", "1"): 5.1,
         ("ppo ", "2"): 8.0}
    )  # fmt: skip
    (note,) = [x for x in found.notes if "evaluated with different values of win, so" in x]
    assert note.endswith(f"head with win={{'choice': [0, 1]}}, as run {paths[0].name!r}")
    assert "over 2 episodes with win={'choice': [0, 1]}; no policy" in baseline_caption(found)
    left_out = "".join(note for note in found.notes if "leave out" in note)
    other = "is no evaluation that this version of muxrl writes"
    for name, why in (
        ("old", f"{other} (Object missing required field `episode_metrics`)"),
        ("new", "was made by a newer muxrl (format 99; this one reads up to 2): update muxrl"),
        ("foreign", f"{other} (Expected `object`, got `array`)"),
    ):
        path = paths[1] / "evaluations" / f"{name}.json"
        assert f"the returns by parameter leave out {path}: the file {why}" in left_out
    assert "Return of hunters (mean over 2 agents) by win" in found.write(tmp_path).read_text()
    assert {*found.frame("parameters")["value"]} == {"0", "1", "2"}


def test_intervals_of_proportions_stay_between_0_and_1(tmp_path: Path) -> None:
    """This holds at each value of a parameter, too, and for the area under the curves."""
    paths = []
    for seed in (1, 2):
        path = made_up_run(tmp_path, "QMIX", "PPO", seed, 5.0, has_metrics=True)
        paths.append(path)
        run = RunDirectory(path)
        config = run.read_config()
        config.simulation.parameters = {"wind": {"choice": [0, 1]}}
        run.write_config(to_yaml(config))
        plan = json.loads((path / "plan.json").read_text())
        run.write_plan({**plan, "metrics": ["win"]})
        told = read_metrics(run.metrics / "evaluation.jsonl")
        (run.metrics / "evaluation.jsonl").unlink()
        with MetricsWriter(run) as metrics:
            for one in told:
                won = {"win": {COMMON: [1, 1, seed - 1, 1]}, "wind": {COMMON: [0, 0, 1, 1]}}
                metrics.evaluation({**one, "metrics": won})
    found = compare_runs(paths, num_episodes=2)
    standing = row(found, "standings", contestant=QMIX_PPO, subject="metric:win")
    ours = rows(found, "parameters", subject="metric:win", parameter="wind")
    estimates = {"area": standing.area, "iqm": standing.iqm} | {x["value"]: x["iqm"] for x in ours}
    means = {what: one.mean for what, one in estimates.items()}
    assert means == {"area": 0.875, "iqm": 0.875, "0": 1.0, "1": 0.75}
    for one in estimates.values():
        assert 0.0 <= one.low < one.mean <= one.high <= 1.0


def test_a_run_without_a_parameter_is_left_out_of_its_values(tmp_path: Path) -> None:
    paths = [made_up_run(tmp_path, h, "PPO", 1, 5.0, has_metrics=True) for h in ("QMIX", "PPO")]
    config = RunDirectory(paths[0]).read_config()
    config.simulation.parameters = {"win": {"choice": [0, 1]}}
    RunDirectory(paths[0]).write_config(to_yaml(config))
    found = compare_runs(paths, num_episodes=2).frame("parameters")
    assert {(row.contestant[:4], row.value) for row in found.itertuples()} == {
        ("qmix", "0"),
        ("qmix", "1"),
    }


def test_without_parameters_no_written_evaluation_is_read(tmp_path: Path) -> None:
    run = made_up_run(tmp_path, "QMIX", "PPO", 1, 5.0)
    (run / "evaluations").mkdir()
    write_json(run / "evaluations" / "old.json", {"format": 1})
    assert not any("old.json" in note for note in compare_runs([run], num_episodes=2).notes)


def test_a_parameter_with_many_values_is_compared_by_ranges() -> None:
    names = [name for name, *_ in _groups(np.arange(8.0))]
    assert names == ["0 to 1", "2 to 3", "4 to 5", "6 to 7"]
    assert _groups(np.array([2.5, math.nan, 2.5])) == [("2.5", 2.5, 2.5)]


def test_baselines_are_played_whatever_the_runs_inferred_with(tmp_path: Path) -> None:
    simulation = {"inference_mode": {"hunters": "local"}}
    run = made_up_run(tmp_path, "QMIX", "PPO", 1, 5.0, simulation=simulation)
    found = compare_runs([run], num_episodes=2)
    assert {one["contestant"] for one in rows(found, "standings", is_baseline=True)} == {
        "baseline: random"
    }


def test_a_scripted_policy_that_cannot_play_ends_no_comparison(tmp_path: Path) -> None:
    broken = {"policy": "nowhere_at_all:flee"}
    paths = [
        made_up_run(tmp_path, "SCRIPTED", "PPO", 1, 5.0, settings=broken),
        made_up_run(tmp_path, "QMIX", "PPO", 1, 5.0),
    ]
    found = compare_runs(paths, num_episodes=2)
    assert {one["contestant"] for one in rows(found, "standings", is_baseline=True)} == {
        "baseline: random"
    }
    (note,) = [note for note in found.notes if "as a baseline" in note]
    assert "the scripted policy 'scripted' could not be played as a baseline: " in note
    assert "nowhere_at_all" in note
