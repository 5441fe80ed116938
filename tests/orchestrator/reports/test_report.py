import html
import io
import json
import re
from dataclasses import replace
from pathlib import Path

import pytest
from PIL import Image
from rich.console import Console
from tests.orchestrator.records.recorded import (
    ASSIGNMENT,
    evaluation,
    new_run,
    whole_run,
    write_whole_run,
)

from muxrl.orchestrator.config import load_config, to_yaml
from muxrl.orchestrator.errors import DifferentRuns
from muxrl.orchestrator.measure.results import Report
from muxrl.orchestrator.records.metrics import MetricsWriter
from muxrl.orchestrator.records.rows import JointRow
from muxrl.orchestrator.records.run_directory import RunDirectory
from muxrl.orchestrator.records.run_status import EndState, StatusFile
from muxrl.orchestrator.reports.plain_table import broken
from muxrl.orchestrator.reports.report import combine_runs, print_report, write_report
from muxrl.orchestrator.storage.versions import SHOWN
from muxrl.protocol.messages import ServerWarning


def printed(report: Report, width: int = 80, hidden_metrics: str = "") -> str:
    console = Console(file=io.StringIO(), width=width)
    print_report(report, console, hidden_metrics)
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


def files(run: RunDirectory) -> tuple[dict[str, object], str, tuple[int, int]]:
    """Returns both summaries and the size of the picture."""
    with Image.open(run.path / "plots" / "learning.png") as picture:
        size = picture.size
    return (
        json.loads((run.path / "summary.json").read_text()),
        (run.path / "summary.md").read_text(),
        size,
    )


def test_metrics_can_be_left_out_where_a_report_is_printed(tmp_path: Path) -> None:
    run = new_run(tmp_path)
    told = {"return_against_wolves.now": {"sheep": [1.0, 2.0]}, "score": {"sheep": [3.0, 4.0]}}
    with MetricsWriter(run) as metrics:
        row = evaluation(1_000, None, [5.0, 6.0], [5.0, 6.0], [-1.0, -2.0])
        metrics.evaluation({**row, "metrics": told})
    report = write_report(run)
    assert all(name in printed(report, width=120) for name in told)
    shown = printed(report, width=120, hidden_metrics="return_against_")
    assert "score" in shown
    assert "return_against_" not in shown
    assert r"return\_against\_wolves.now" in files(run)[1]


def test_fixed_policies_are_shown_and_not_judged(tmp_path: Path) -> None:
    run = new_run(tmp_path)
    plan = json.loads((run.path / "plan.json").read_text())
    plan["servers"]["sheep"] |= {"algorithm": "RANDOM", "learns": False}
    run.write_plan(plan)
    with MetricsWriter(run) as metrics:
        for replaced in (None, "wolves"):
            metrics.evaluation(evaluation(1_000, replaced, [5.0, 6.0], [5.0, 6.0], [-1.0, -2.0]))
    report = write_report(run)
    wolves, sheep = report.servers
    assert (wolves.learns, sheep.learns) == (True, False)
    assert sheep.final.learned.mean == -1.5
    assert report.notes == ()  # no note says "never measured with random in its place"
    summary, markdown, _ = files(run)
    assert summary["servers"]["sheep"]["learns"] is False  # type: ignore[index]
    row = "| sheep | RANDOM | sheep | – | – | −1.50 [−7.85, 4.85] | – | – | does not learn |"
    assert row in markdown
    assert "does not learn" in " ".join(printed(report, width=120).split())


@pytest.mark.usefixtures("undrawn")
@pytest.mark.parametrize(
    ("of_run", "num_env_steps", "why"),
    [
        (1_000, 0, "none of its agents acted in a training episode"),
        (1_000, 90, "its first batch needs more"),
        (0, 0, "its first batch needs more"),  # the run failed before its first row
    ],
)
def test_a_server_that_never_acted_is_not_credited_with_the_runs_env_steps(
    tmp_path: Path, of_run: int, num_env_steps: int, why: str
) -> None:
    run = new_run(tmp_path)
    if of_run:
        write_whole_run(run)
    state = {"weights_seq_no": 0, "num_env_steps": num_env_steps}
    with MetricsWriter(run) as metrics:
        metrics.joint({"env_steps": of_run, "servers": {"sheep": state}})
    report = write_report(run)
    assert report.servers[1].env_steps == num_env_steps
    note = next(n for n in report.notes if "sheep made no update" in n)
    assert f"since {why}" in note


@pytest.mark.parametrize("num_updates", [0, 1])
def test_a_server_without_updates_is_not_judged(tmp_path: Path, num_updates: int) -> None:
    run = whole_run(tmp_path)
    with MetricsWriter(run) as metrics:
        of_server = {"wolves": {"weights_seq_no": 7}, "sheep": {"weights_seq_no": num_updates}}
        metrics.joint({"env_steps": 1_000, "servers": of_server})
    report = write_report(run)
    wolves, sheep = report.servers
    assert wolves.has_updates
    assert sheep.has_updates == bool(num_updates)
    told = [note for note in report.notes if "made no update" in note]
    assert len(told) == (0 if num_updates else 1)
    assert all(note.startswith(f"run {run.path.name}: sheep made no update") for note in told)
    shown = [*files(run)[1].splitlines(), (run.path / "report.html").read_text()]
    row = next(line for line in shown if line.startswith("| sheep"))
    assert row.endswith("| worse |" if num_updates else "| made no update |")
    assert ("sheep (PPO) made no update" in shown[-1]) == (not num_updates)


@pytest.mark.usefixtures("undrawn")
def test_actions_that_the_simulation_chose_are_not_credited_to_the_algorithm(
    tmp_path: Path,
) -> None:
    run = new_run(tmp_path)
    plan = json.loads((run.path / "plan.json").read_text())
    plan["servers"]["sheep"] |= {"algorithm": "RANDOM", "learns": False}
    run.write_plan(plan)
    write_whole_run(run)
    with MetricsWriter(run) as metrics:
        of_server = {"wolves": {"num_logged_actions": 9}, "sheep": {"num_logged_actions": 1_234}}
        metrics.joint({"env_steps": 1_000, "servers": of_server})
    report = write_report(run)
    judged = [server.judgement for server in report.servers]
    assert judged == ["better than random", "logged actions"]
    wolves, sheep = [note for note in report.notes if "logged_actions" in note]
    assert "simulations chose 9 actions for the agents of wolves themselves" in wolves
    assert "its train return measures whatever chose these actions" in wolves
    assert "simulations chose 1,234 actions for the agents of sheep themselves" in sheep
    assert "its returns measure whatever chose these actions" in sheep


@pytest.mark.usefixtures("undrawn")
def test_an_evaluation_in_which_the_simulation_acted_is_not_judged(tmp_path: Path) -> None:
    run = whole_run(tmp_path)
    with MetricsWriter(run) as metrics:
        row = evaluation(2_000, None, [9.0], [9.0], [1.0])
        metrics.evaluation({**row, "logged_agents": ["wolf_1"]})
        metrics.evaluation(evaluation(2_000, "wolves", [1.0], [1.0], [1.0]))
    report = write_report(run)
    assert report.servers[0].judgement == "logged actions"
    assert report.servers[1].judgement != "logged actions"
    (note,) = [note for note in report.notes if "is_evaluation" in note]
    assert "chose actions for the agents of wolves in the last evaluation" in note
    assert "| logged actions |" in (run.path / "summary.md").read_text()


@pytest.mark.usefixtures("undrawn")
def test_warnings_in_logs_are_in_the_report(tmp_path: Path) -> None:
    run = whole_run(tmp_path)
    text = "a reward of 'sheep_0' in episode e7 is 9e+11: is it a mistake?"
    warnings = {
        "": [
            ServerWarning("checkpoints refused", 2, 300, "no checkpoint of server 'sheep'"),
            ServerWarning("server 'wolves': its target network is never copied"),
        ],
        "sheep": [ServerWarning("far rewards", 1_212, 1_400, text)],
    }
    StatusFile(run).warn(warnings, "")
    notes = [note for note in write_report(run).notes if "warn" in note or "refused" in note]
    assert notes == [
        f"in run {run.name}, checkpoints refused 2×, first at 300 env steps: no checkpoint of "
        "server 'sheep'",
        f"a warning of run {run.name}: server 'wolves': its target network is never copied",
        f"in run {run.name}, the log of sheep warns of far rewards 1,212×, first at 1,400 env "
        f"steps: {text}",
    ]
    for file in ("summary.json", "summary.md", "report.html"):
        shown = html.unescape((run.path / file).read_text())
        assert "is it a mistake?" in shown, file


def test_a_whole_run_end_to_end(tmp_path: Path) -> None:
    run = whole_run(tmp_path)
    report = write_report(run)
    assert [comparison.env_steps for comparison in report.servers[0].curve] == [0, 1_000]
    (note,) = report.notes
    assert note.startswith("sheep returns less than when it began: evaluated at −1.00 [")

    summary, markdown, size = files(run)
    assert f"**Note:** {note}." in markdown
    assert summary["assignment"] == ASSIGNMENT
    assert summary["evaluated_actions"] == "greedy"
    final = summary["servers"]["sheep"]["final"]  # type: ignore[index]
    assert (final["advantage"]["mean"], final["verdict"]) == (-1.0, "worse")
    # Train return of 3 and 1, evaluated 5 and 6, 0 and 1 with random agents in its place.
    row = "| wolves | QMIX | wolf\\_0, wolf\\_1 | 980 | 2.00 | 5.50 [−0.85, 11.85] | 0.50 [−5.73, "
    assert row in markdown
    assert "plots/learning.png" in markdown
    assert size[0] == 1_600
    assert "2 episodes, greedy actions, seed 1" in report.caption
    assert "95 % over episodes: what to expect of these policies in other" in report.caption
    assert "pairs" not in report.caption
    text = printed(report)
    for expected in ("wolves", "QMIX", "wolf_1", "+5.00", "5.50", "worse", "greedy actions"):
        assert expected in text
    assert max(map(len, text.splitlines())) <= 80


def test_a_run_cut_short_reports_its_last_complete_evaluation(tmp_path: Path) -> None:
    run = whole_run(tmp_path)
    with MetricsWriter(run) as metrics:
        metrics.evaluation(evaluation(2_000, None, [9.0, 9.0], [9.0, 9.0], [9.0, 9.0]))
    with (run.metrics / "evaluation.jsonl").open("a") as file:
        file.write('{"time_s": 21, "env_steps": 2000, "repl')  # killed while it wrote this line
    report = write_report(run)
    assert report.servers[0].final.env_steps == 1_000
    assert report.servers[0].curve[-1].env_steps == 2_000
    assert report.servers[0].curve[-1].random is None


def test_the_report_says_what_was_not_measured(tmp_path: Path) -> None:
    """First nothing is recorded, then training returns alone, then an evaluation without random."""
    run = new_run(tmp_path)
    report = write_report(run)
    assert [server.train_return for server in report.servers] == [None, None]
    assert files(run)[0]["servers"]["sheep"]["final"] is None  # type: ignore[index]
    with MetricsWriter(run) as metrics:
        metrics.joint({"env_steps": 10, "episode_return_mean": {"wolf_0": 3.0, "wolf_1": 1.0}})
    report = write_report(run)
    assert [server.final for server in report.servers] == [None, None]
    assert report.servers[0].train_return == pytest.approx(2.0)
    assert report.headline == (
        "wolves (QMIX) was never evaluated.",
        "sheep (PPO) was never evaluated.",
    )
    assert "only training returns" in printed(report)
    assert files(run)[2][0] == 1_600
    assert "no evaluation was recorded" in (run.path / "report.html").read_text()
    with MetricsWriter(run) as metrics:
        metrics.evaluation(evaluation(50, None, [1.0], [3.0], [0.0]))
    report = write_report(run)
    final = report.servers[0].final
    assert (final.learned.mean, final.verdict) == (2.0, None)
    assert report.notes == (
        "servers never compared with random agents in their place: wolves, sheep",
    )
    assert files(run)[0]["servers"]["wolves"]["final"]["learned"]["low"] is None  # type: ignore[index]
    assert report.headline[0] == (
        "wolves (QMIX) returns 2.00 [–] over episodes; random agents in its place were not "
        "measured."
    )
    fixed = tuple(replace(server, learns=False) for server in report.servers)
    assert replace(report, servers=fixed).headline == ()


@pytest.mark.usefixtures("undrawn")
@pytest.mark.parametrize("state", ["done", "failed"])
def test_a_run_in_which_no_episode_ended_says_so(tmp_path: Path, state: EndState) -> None:
    run = new_run(tmp_path)
    with MetricsWriter(run) as metrics:
        metrics.joint(JointRow(env_steps=1_000))
    StatusFile(run).enter(state, 1_000, "")
    notes = [note for note in write_report(run).notes if "no episode ended" in note]
    assert len(notes) == (state == "done")  # a failed run has its cause in another note


def test_seeds_are_combined(tmp_path: Path) -> None:
    runs = [new_run(tmp_path, seed) for seed in (1, 2, 3)]
    for shift, run in enumerate(runs):
        write_whole_run(run, shift=10.0 * shift)
    out = tmp_path / "study"
    report = combine_runs([run.path for run in runs], out)
    assert sorted(path.name for path in out.iterdir()) == [
        "learning.png",
        "report.html",
        "summary.json",
        "summary.md",
    ]
    final = report.servers[0].final
    assert report.seeds == (1, 2, 3)
    assert "95 % over 3 seeds: what to expect of training again" in report.caption
    assert [len(curve) for curve in report.servers[0].seed_curves] == [2, 2, 2]
    assert "+5.00 [4.97, 5.02] over 3 seeds, above 0 in 3 of 3 seeds." in report.headline[0]
    assert "over 3 seeds, above 0 in 3 of 3 seeds" in (out / "report.html").read_text()
    episodes = combine_runs([run.path for run in runs], out, over_episodes=True)
    assert "95 % over episodes" in episodes.caption
    over_episodes = episodes.servers[0].final
    wider, width = (f.learned.high - f.learned.low for f in (final, over_episodes))
    assert width < wider


@pytest.mark.usefixtures("undrawn")
def test_the_verdict_says_if_some_seeds_made_no_update(tmp_path: Path) -> None:
    runs = [new_run(tmp_path, seed) for seed in (1, 2, 3)]
    for shift, run in enumerate(runs):
        write_whole_run(run, shift=10.0 * shift)
        with MetricsWriter(run) as metrics:
            of_server = {"wolves": {"weights_seq_no": shift}, "sheep": {"weights_seq_no": 1}}
            metrics.joint({"env_steps": 1_000, "servers": of_server})
    out = tmp_path / "study"
    report = combine_runs([run.path for run in runs], out)
    wolves, sheep = report.servers
    assert (wolves.has_updates, wolves.final.num_seeds_without_update) == (True, 1)
    assert wolves.judgement == "better than random, but some seeds made no update"
    assert sheep.judgement == "worse"
    assert report.headline[0].startswith(
        "wolves (QMIX) is better than random agents in its place, but some of its seeds made no "
        "update: +5.00 ["
    )
    assert any(f"run {runs[0].name}: wolves made no update" in note for note in report.notes)
    written = json.loads((out / "summary.json").read_text())["servers"]["wolves"]["final"]
    assert written["verdict"] == wolves.judgement
    for text in ((out / "summary.md").read_text(), " ".join(printed(report, 200).split())):
        assert "but some seeds made no update" in text


@pytest.mark.usefixtures("undrawn")
def test_seeds_of_unlike_length_share_only_the_points_they_all_have(tmp_path: Path) -> None:
    runs = [new_run(tmp_path, seed) for seed in (1, 2)]
    for run, all_env_steps in zip(runs, ([0, 1_000, 2_000], [0, 1_000, 1_020]), strict=True):
        with MetricsWriter(run) as metrics:
            for env_steps in all_env_steps:
                for replaced in (None, "wolves", "sheep"):
                    metrics.evaluation(evaluation(env_steps, replaced, [1.0], [1.0], [1.0]))
    report = combine_runs([run.path for run in runs], tmp_path / "study")
    assert [c.env_steps for c in report.servers[0].curve] == [0, 1_000]
    assert any("env steps, 1,020 to 2,000;" in note for note in report.notes)


@pytest.mark.usefixtures("undrawn")
def test_runs_of_different_experiments_are_not_combined(tmp_path: Path) -> None:
    first, other = new_run(tmp_path, 1), new_run(tmp_path, 2, "ppo:wolf_0,wolf_1|ppo:sheep")
    with pytest.raises(DifferentRuns, match="nothing but the seed"):
        combine_runs([first.path, other.path], tmp_path / "study")


@pytest.mark.usefixtures("undrawn")
def test_runs_of_one_assignment_that_differ_in_a_server_name_it(tmp_path: Path) -> None:
    runs = [new_run(tmp_path, seed) for seed in (1, 2)]
    for run in runs:
        write_whole_run(run)
    plan = json.loads((runs[1].path / "plan.json").read_text())
    plan["servers"]["more"] = {**plan["servers"]["wolves"], "shadow": "wolves"}
    (runs[1].path / "plan.json").write_text(json.dumps(plan))
    with pytest.raises(DifferentRuns, match="cannot be combined: server 'more'; expected"):
        combine_runs([run.path for run in runs], tmp_path / "study")


@pytest.mark.parametrize(
    ("changes", "conflict"),
    [
        (["servers.ppo.settings.lr=0.1"], "ppo.lr is 0.0003 against 0.1"),
        (
            ["simulation.kwargs={size: 3}", "servers.ppo.normalize_rewards=true"],
            "ppo.normalize_rewards is False against True, simulation.kwargs.size is its default "
            "against 3;",
        ),
        (["simulation.metrics={a: mean}"], "simulation.metrics.a is sum against mean"),
        (["servers.ppo.initialize_from=runs/two"], "ppo.initialize_from is new weights against a"),
    ],
)
@pytest.mark.usefixtures("undrawn")
def test_runs_of_other_settings_are_not_combined(
    tmp_path: Path, changes: list[str], conflict: str
) -> None:
    same = ["simulation.metrics={a: sum}", "servers.ppo.settings.lr=0.0003"]
    runs = [new_run(tmp_path, seed) for seed in (1, 2)]
    for run, overrides in zip(runs, ([], changes), strict=True):
        write_whole_run(run)
        run.write_config(to_yaml(load_config("cartpole_ppo", [*same, *overrides])))
    with pytest.raises(DifferentRuns) as refused:
        combine_runs([run.path for run in runs], tmp_path / "study")
    assert conflict in str(refused.value)


@pytest.mark.usefixtures("undrawn")
def test_seeds_may_differ_in_settings_that_shape_no_result(tmp_path: Path) -> None:
    runs = [new_run(tmp_path, seed) for seed in (1, 2)]
    around = ["seed=2", "name=other", "servers.ppo.port=7777", "checkpoint.keep_last=1",
              "servers.ppo.initialize_from=runs/two", "simulation.metrics={a: sum}",
              "stop.env_steps=77", "evaluation.num_episodes=3", "timeouts.start_s=9"]  # fmt: skip
    for run, overrides in zip(
        runs, (["servers.ppo.initialize_from=runs/one"], around), strict=True
    ):
        write_whole_run(run)
        run.write_config(to_yaml(load_config("cartpole_ppo", overrides)))
    assert combine_runs([run.path for run in runs], tmp_path / "study").seeds == (1, 2)


@pytest.mark.usefixtures("undrawn")
def test_settings_that_a_resume_changed_are_noted_with_their_values(tmp_path: Path) -> None:
    runs = [new_run(tmp_path, seed) for seed in (1, 2)]
    for run in runs:
        write_whole_run(run)
        run.write_config(to_yaml(load_config("cartpole_ppo", ["servers.ppo.settings.lr=0.0003"])))
    before = load_config("cartpole_ppo", ["servers.ppo.settings.lr=0.001", "stop.time_s=7"])
    runs[0].former_config(500).write_text(to_yaml(before))
    told = "servers.ppo.settings.lr was 0.001 until 500 env steps, then 0.0003"
    assert f"run {runs[0].name}: {told}" in write_report(runs[0]).notes
    assert f"# {told}\n" in (runs[0].path / "report.html").read_text()
    notes = combine_runs([run.path for run in runs], tmp_path / "study").notes
    pooled = (
        "runs that count as seeds of one experiment did not all have the same "
        "servers.ppo.settings.lr throughout"
    )
    assert {f"run {runs[0].name}: {told}", pooled} <= {*notes}
    runs[1].former_config(500).write_text(to_yaml(before))
    notes = combine_runs([run.path for run in runs], tmp_path / "study").notes
    assert f"2 of 2 runs ({runs[0].name}, {runs[1].name}): {told}" in notes
    assert pooled not in notes


@pytest.mark.usefixtures("undrawn")
@pytest.mark.parametrize(("played", "is_told"), [(2_100, False), (2_101, True)])
def test_steps_beyond_the_budget_are_noted(tmp_path: Path, played: int, is_told: bool) -> None:
    run = whole_run(tmp_path)
    with MetricsWriter(run) as metrics:
        row = evaluation(2_000, None, [9.0], [9.0], [1.0])
        metrics.evaluation({**row, "env_steps_played": played})
    notes = [note for note in write_report(run).notes if "had been trained on 2,101" in note]
    told = f"run {run.name}: the policies that were evaluated after 2,000 env steps had been"
    assert [note.startswith(told) for note in notes] == [True] * is_told


@pytest.mark.usefixtures("undrawn")
def test_the_same_seed_twice_and_different_software_are_noted(tmp_path: Path) -> None:
    runs = [new_run(tmp_path / str(number)) for number in (0, 1)]
    for number, run in enumerate(runs):
        write_whole_run(run)
        versions = dict.fromkeys(("muxrl", "torch", "git_commit"), f"1.{number}")
        (run.path / "versions.json").write_text(json.dumps(versions))
    notes = combine_runs([run.path for run in runs], tmp_path / "study").notes
    assert any("same seed" in note for note in notes)
    (note,) = [note for note in notes if "different versions" in note]
    for key in versions:
        assert f"of {SHOWN[key]}: 1.0, 1.1" in note


LONG = {
    "predators_that_communicate_in_pairs": "MAPPO_WITH_A_CENTRAL_CRITIC",
    "prey-with-a-recurrent-network": "APPO",
}


@pytest.mark.usefixtures("undrawn")
@pytest.mark.parametrize("width", [80, 120])
def test_the_table_breaks_no_word_of_long_names_and_verdicts(tmp_path: Path, width: int) -> None:
    run = new_run(tmp_path)
    agents = [["predator_that_leads_0", "predator_that_follows_1"], ["prey_that_hides_in_water_0"]]
    run.write_plan(
        {
            "servers": {
                server_id: {"algorithm": algorithm, "agents": theirs, "groups": {}}
                for (server_id, algorithm), theirs in zip(LONG.items(), agents, strict=True)
            },
            "assignment": "|".join(
                f"{algorithm.lower()}:{','.join(theirs)}"
                for algorithm, theirs in zip(LONG.values(), agents, strict=True)
            ),
            "seed": 1,
        }
    )
    with MetricsWriter(run) as metrics:
        for replaced in (None, *LONG):
            returns = {a: [-1234.5, 1.0, -777.25] for theirs in agents for a in theirs}
            record = evaluation(20_000_000, replaced, [], [], [])
            metrics.evaluation({**record, "num_episodes": 3, "returns": returns})
    lines = printed(write_report(run), width).splitlines()
    assert max(map(len, lines)) <= width
    words = {word.strip("|,:.") for line in lines for word in re.split(r"[\s_,|:-]+", line)}
    for name in [*LONG, *LONG.values(), *agents[0], *agents[1]]:
        assert set(re.split("[_-]", name)) <= words
    assert {"distinguishable", "evaluated", "advantage", "verdict"} <= words


def test_long_names_break_after_their_punctuation() -> None:
    assert broken("one_two_three", 8) == ["one_two_", "three"]
    assert broken("one_two", 8) == ["one_two"]
    assert broken("unbroken", 4) == ["unbroken"]
