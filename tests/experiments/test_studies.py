"""Every study: its results are readable, and its page has a command that makes them again."""

from __future__ import annotations

import fnmatch
import importlib
import json
import re
import shlex
from pathlib import Path
from typing import Any

import matplotlib.image
import pytest

from muxrl.experiments import studies
from muxrl.experiments.simulations import cue_game
from muxrl.experiments.studies.beside_benchmarl.run import report
from muxrl.experiments.studies.beside_benchmarl.settings import CASES
from muxrl.experiments.studies.case_table import (
    Case,
    CaseTable,
    Figures,
    evaluated,
    main,
    read_outcomes,
)
from muxrl.experiments.studies.compared_curves import draw_compared
from muxrl.experiments.studies.former_engine import write_report
from muxrl.orchestrator.config import ConfigError, load_config, prepare
from muxrl.orchestrator.sweeps import load_sweep, make_plan

FOLDER = Path(next(iter(studies.__path__)))
ROOT = FOLDER.parents[1]
STUDIES = sorted(path.parent.name for path in FOLDER.glob("*/README.md"))
CASE_TABLES = sorted(path.parent.name for path in FOLDER.glob("*/cases.py"))
OF_FORMER_ENGINE = sorted(
    str(path.parent.relative_to(FOLDER)) for path in FOLDER.glob("*/*/report.md")
)
COMMAND = re.compile(r"^    ((?:muxrl|python -m|for seed) .*)$", re.MULTILINE)
LINK = re.compile(r"\]\(([^)#\s]+)(?:#[^)]*)?\)")


def table_of(study: str) -> CaseTable:
    return importlib.import_module(f"muxrl.experiments.studies.{study}.cases").TABLE


def commands_of(study: str) -> list[list[str]]:
    found = COMMAND.findall((FOLDER / study / "README.md").read_text())
    return [shlex.split(command) for command in found]


def test_every_folder_is_a_study_with_a_page_and_results() -> None:
    folders = [path for path in FOLDER.iterdir() if path.is_dir() and path.name != "__pycache__"]
    assert sorted(path.name for path in folders) == STUDIES
    for path in folders:
        assert any((path / "results").iterdir())
        assert "**What cannot be concluded.**" in (path / "README.md").read_text()


@pytest.mark.parametrize("study", STUDIES)
def test_a_command_on_its_page_makes_its_results_again(study: str) -> None:
    if study == "multiwalker":
        pytest.importorskip("Box2D", reason="its page says to install it")
    makers = 0
    for command in commands_of(study):
        match command:
            case ["muxrl", "sweep", config, *rest]:
                options = [word for word in rest if "=" in word]
                path = ROOT / config
                plan = make_plan(load_sweep(path if path.is_file() else config, options))
                budget, every = (
                    plan.config.experiment.stop.env_steps,
                    plan.config.experiment.evaluation.interval_env_steps,
                )
                assert plan.trials
                assert budget is not None
                assert every is None or budget % every == 0
            case ["for", "seed", "in", *_, "muxrl", "launch", config, _, time_s, env_steps, "done"]:
                prepare(load_config(config, ["seed=0", time_s, env_steps.rstrip(";")]))
            case ["python", "-m", module, *words] if module.endswith(".cases"):
                table = importlib.import_module(module).TABLE
                if "--cases" in words:
                    assert fnmatch.filter(table.cases, words[words.index("--cases") + 1])
            case ["python", "-m", module, "turns", *_]:
                assert importlib.import_module(module).turns
            case _:
                continue
        makers += 1
    assert makers


@pytest.mark.parametrize("page", ["../README.md", *(f"{study}/README.md" for study in STUDIES)])
def test_links_lead_to_files(page: str) -> None:
    path = FOLDER / page
    targets = [t for t in LINK.findall(path.read_text()) if "://" not in t]
    assert not [t for t in targets if not (path.parent / t).exists()]


@pytest.mark.parametrize("study", CASE_TABLES)
def test_every_case_resolves(study: str) -> None:
    table = table_of(study)
    for case in table.cases.values():
        prepare(case.experiment(table.seeds[0]), needs_stop=False)
        assert not case.every or case.env_steps % case.every == 0


@pytest.mark.parametrize("study", CASE_TABLES)
def test_committed_outcomes_are_read_and_drawn_again(study: str, tmp_path: Path) -> None:
    table, results = table_of(study), FOLDER / study / "results"
    outcomes = read_outcomes(results)
    assert {outcome.case for outcome in outcomes} == set(table.cases)
    table.draw(outcomes, tmp_path)
    drawn = [path.name for path in tmp_path.iterdir()]
    assert drawn == [path.name for path in results.glob("*.png")]
    for name in drawn:
        assert matplotlib.image.imread(tmp_path / name)[..., :3].std() > 0.05


@pytest.mark.parametrize("results", OF_FORMER_ENGINE)
def test_what_the_former_engine_measured_is_reported_to_the_letter(
    results: str, tmp_path: Path
) -> None:
    text = write_report(FOLDER / results, tmp_path)
    assert text == (FOLDER / results / "report.md").read_text()
    assert matplotlib.image.imread(tmp_path / "curves.png")[..., :3].std() > 0.05


def test_the_files_of_a_comparison_are_drawn(tmp_path: Path) -> None:
    points = [f"ppo all,{s},role:all,{n},{n + s}" for s in range(3) for n in (0, 100)]
    head = "contestant,seed,subject,env_steps,return"
    (tmp_path / "curves.csv").write_text("\n".join([head, *points]))
    (tmp_path / "runs.csv").write_text("subject,random_in_place\nrole:all,2.5\n")
    picture = matplotlib.image.imread(draw_compared(tmp_path, "Cues"))
    assert picture[..., :3].std() > 0.05
    with pytest.raises(ValueError, match="no curve of total"):
        draw_compared(tmp_path, "Cues", "total")


@pytest.mark.parametrize("algorithm", CASES)
def test_the_runs_beside_benchmarl_are_reported_as_on_their_page(
    tmp_path: Path, algorithm: str
) -> None:
    results = FOLDER / "beside_benchmarl" / "results" / algorithm
    text = report(results, tmp_path)
    page = (FOLDER / "beside_benchmarl" / "README.md").read_text()
    rows = [row for row in text.splitlines() if row.startswith(("| default", "| matched"))]
    differences = [row for row in rows if " minus " in row]
    sides = {p.stem.rpartition("_")[0] for p in results.glob("*_[0-9].json")}
    assert len(rows) - len(differences) == len(sides)
    assert differences
    assert not [row for row in rows if row not in page]
    assert matplotlib.image.imread(tmp_path / "learning.png")[..., :3].std() > 0.05


def test_outcomes_that_are_there_are_not_made_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    table = CaseTable({name: untrained_case() for name in ("A", "B")}, seeds=(0, 1))
    made: list[int] = []

    def train(case: Case, seed: int, env_steps: int) -> dict[int, Figures]:
        made.append(seed)
        return {env_steps: {"return": 1.0}}

    monkeypatch.setattr(Case, "train", train)
    arguments = ["cases", "--out", str(tmp_path), "--env-steps", "7"]
    monkeypatch.setattr("sys.argv", [*arguments, "--cases", "A"])
    main(table, "A table.")
    monkeypatch.setattr("sys.argv", arguments)
    main(table, "A table.")
    assert made == [0, 1, 0, 1]
    assert "A, seed 0: is there already" in capsys.readouterr().out
    outcomes = read_outcomes(tmp_path)
    assert [(o.case, o.seed) for o in outcomes] == [("A", 0), ("A", 1), ("B", 0), ("B", 1)]
    assert outcomes[0].measured == {7: {"return": 1.0}}
    (record, *_) = json.loads((tmp_path / "outcomes.json").read_text())
    assert set(record["versions"]) >= {"ray", "torch", "git_commit"}


def test_a_case_that_is_not_in_the_table_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.argv", ["cases", "--out", str(tmp_path), "--cases", "C"])
    with pytest.raises(SystemExit):
        main(CaseTable({"A": untrained_case()}), "A table.")
    assert "no case is called 'C'; there are A" in capsys.readouterr().err


def untrained_case() -> Case:
    return Case("cues", (), env_steps=100, measure=evaluated(1))


def write_run(folder: Path, contestant: str, seed: int, score: float, **more: Any) -> None:
    settings = {"num_envs": 8, "env_steps": 200, "num_episodes": 2, "final_num_episodes": 2,
                "agents": "mean", "optimum": 20.0}  # fmt: skip
    record: dict[str, Any] = {
        "study": "small",
        "contestant": contestant,
        "seed": seed,
        "rule": "sampled",
        "evaluation_seeds": [10_000, 10_001],
        "settings": settings,
        "env_steps": 200,
        "time_s": 4.0,
        "cpu_s": 3.0,
        "curve": [
            {"env_steps": n, "time_s": n / 50, "cpu_s": 1, "returns": [score, score + 2]}
            for n in (0, 100, 200)
        ],
        "final": {"sampled": [score - 1, score + 1], "greedy": [score, score + 6]},
    }
    (folder / f"{contestant.lower()}_{seed}.json").write_text(json.dumps({**record, **more}))


def test_the_report_is_of_runs_and_says_how_it_was_made(tmp_path: Path) -> None:
    for seed, score in enumerate((5.0, 6.0, 10.0)):
        write_run(tmp_path, "PPO", seed, score)
        write_run(tmp_path, "A2C", seed, score + 1)
    write_run(tmp_path, "random", 0, 2.0, curve=[])
    text = write_report(tmp_path, tmp_path)
    rows = [row for row in text.splitlines() if row.startswith("| ")]
    assert rows[1] == "| A2C | sampled | 8.00 [6.00, 11.00] | 6.00, 7.00, 11.00 | 11.00 | 4 | 3 |"
    assert rows[2] == "| PPO | sampled | 7.00 [5.00, 10.00] | 5.00, 6.00, 10.00 | 10.00 | 4 | 3 |"
    assert rows[3].startswith("| random | | 2.00 |")
    assert rows[4].startswith("| optimum | | 20.00 |")
    for told in ("Seeds 0, 1, 2; 200 env steps each", "seeds 10000 to 10001", "about 75 %"):
        assert told in text
    assert (tmp_path / "report.md").read_text() == text
    assert (tmp_path / "curves.png").read_bytes().startswith(b"\x89PNG")


def test_runs_of_different_budgets_are_not_put_into_one_table(tmp_path: Path) -> None:
    write_run(tmp_path, "PPO", 0, 5.0)
    write_run(tmp_path, "A2C", 0, 5.0, settings={"env_steps": 400})
    with pytest.raises(ConfigError, match="with another settings than"):
        write_report(tmp_path, tmp_path)


def test_a_folder_without_runs_has_no_report(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="holds no run"):
        write_report(tmp_path, tmp_path)


@pytest.mark.learning
@pytest.mark.usefixtures("rllib")
def test_a_case_is_measured_on_the_way_and_its_training_is_not_disturbed() -> None:
    settings = {"agent": "mlp", "gamma": 0.9, "optimizer_name": "adam", "lr": 0.002,
                "epsilon": [[0, 1.0], [2000, 0.05]]}  # fmt: skip
    server = {"algorithm": "QMIX", "agents": ["*"], "groups": {"all": ["*"]},
              "team_reward": "mean", "settings": settings}  # fmt: skip
    overrides = (f"servers.team={json.dumps(server)}", "simulation.num_envs_per_process=8")
    case = Case("cues", overrides, env_steps=4000, measure=evaluated(20), every=1000)
    outcome = CaseTable({"QMIX": case}).run("QMIX")
    assert list(outcome.returns) == [1000, 2000, 3000, 4000]
    times = [figures["time_s"] for figures in outcome.measured.values()]
    assert 0 < times[0] < times[-1]
    assert outcome.final["return"] > 2 * cue_game.random_return()
