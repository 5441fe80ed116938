"""Every study has readable results, and a page with a command that makes them again."""

from __future__ import annotations

import fnmatch
import importlib
import json
import re
import shlex
from pathlib import Path
from typing import Any, ClassVar

import matplotlib.image
import pytest
from tests.nights import at_night

from muxrl.experiments import studies
from muxrl.experiments.simulations.zero_cost import ZeroCost
from muxrl.experiments.studies.beside_benchmarl.run import report, table
from muxrl.experiments.studies.beside_benchmarl.settings import CASES
from muxrl.experiments.studies.case_table import Case, CaseTable, evaluated, main
from muxrl.experiments.studies.compared_outcomes import compared_outcomes
from muxrl.experiments.studies.outcomes import (
    PICTURE_FILE,
    Figures,
    Outcome,
    draw_outcomes,
    made_with,
    read_outcomes,
    write_outcomes,
)
from muxrl.orchestrator.config import load_config, prepare
from muxrl.orchestrator.sweeps.load import load_sweep
from muxrl.orchestrator.sweeps.plan import make_plan

FOLDER = Path(next(iter(studies.__path__)))
ROOT = FOLDER.parents[1]
STUDIES = sorted(path.parent.name for path in FOLDER.glob("*/README.md"))
CASE_TABLES = sorted(path.parent.name for path in FOLDER.glob("*/cases.py"))
SWEEPS = sorted(set(STUDIES) - set(CASE_TABLES) - {"chase", "beside_benchmarl"})
"""Of the other two, one has a report of runs, and one a program of its own."""
MOST_WORDS = 250
COMMAND = re.compile(r"^    ((?:muxrl|python -m|for seed) .*)$", re.MULTILINE)


def table_of(study: str) -> CaseTable:
    return importlib.import_module(f"muxrl.experiments.studies.{study}.cases").TABLE


def commands_of(study: str) -> list[list[str]]:
    found = COMMAND.findall((FOLDER / study / "README.md").read_text())
    return [shlex.split(command) for command in found]


def test_every_folder_is_a_study_with_a_page_and_results() -> None:
    folders = [path for path in FOLDER.iterdir() if path.is_dir() and path.name != "__pycache__"]
    assert sorted(path.name for path in folders) == STUDIES
    for path in folders:
        kinds = sorted(file.suffix for file in (path / "results").iterdir())
        assert kinds in ([".json"], [".json", ".png"])
        page = (path / "README.md").read_text()
        assert "**What cannot be concluded.**" in page
        assert len(page.split()) <= MOST_WORDS


@pytest.mark.parametrize("study", sorted(set(STUDIES) - {"chase"}))
def test_a_page_names_the_software_that_made_its_numbers(study: str) -> None:
    """`outcomes.json` has the software of each number."""
    outcomes = read_outcomes(FOLDER / study / "results")
    assert not [one.case for one in outcomes if "unknown" in one.commit]
    assert made_with(outcomes) in (FOLDER / study / "README.md").read_text()


def test_software_is_named_in_one_line() -> None:
    def made_by(**versions: str) -> Outcome:
        return Outcome("a", 0, {}, {}, versions)

    one, other = made_by(git_commit="1" * 40, ray="2.60.0"), made_by(git_commit="2" * 40 + "-dirty")
    assert made_with([one, one]) == "muxrl 1111111111, ray==2.60.0."
    assert made_with([other, one]) == "muxrl 2222222222-dirty, 1111111111, ray==2.60.0."
    assert made_with([made_by(recorded_in="3" * 40)]) == "muxrl before 3333333333."
    assert made_with([made_by()]) == "muxrl of an unknown commit."
    many = [made_by(git_commit=digit * 40) for digit in "12345"]
    assert made_with(many) == "muxrl of [5 commits](results/outcomes.json)."


@pytest.mark.parametrize("study", STUDIES)
def test_a_command_on_its_page_makes_its_results_again(study: str) -> None:
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


@pytest.mark.parametrize("step", at_night([6, 1], [1]))  # by day only every sixth case
@pytest.mark.parametrize("study", CASE_TABLES)
def test_every_case_resolves(study: str, step: int) -> None:
    table = table_of(study)
    for case in [*table.cases.values()][::step]:
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


@pytest.mark.parametrize("study", SWEEPS)
def test_committed_outcomes_of_a_sweep_are_drawn_again(study: str, tmp_path: Path) -> None:
    outcomes = read_outcomes(FOLDER / study / "results")
    assert outcomes
    draw_outcomes(outcomes, study, tmp_path)
    assert matplotlib.image.imread(tmp_path / PICTURE_FILE)[..., :3].std() > 0.05


def test_the_files_of_a_comparison_become_outcomes(tmp_path: Path) -> None:
    write_comparison(tmp_path, "ppo all", "role:all")
    outcomes = compared_outcomes(tmp_path, task="Cues")
    assert [(o.case, o.seed) for o in outcomes] == [("Cues: ppo", s) for s in range(3)]
    assert outcomes[2].returns == {0: 2.0, 100: 102.0}
    assert outcomes[0].levels == {"random": 2.5}
    assert [outcome.versions for outcome in outcomes] == [{"git_commit": f"c{s}"} for s in range(3)]
    write_outcomes(tmp_path, outcomes)
    assert read_outcomes(tmp_path) == outcomes
    with pytest.raises(ValueError, match="no curve of total"):
        compared_outcomes(tmp_path, "total")


def test_outcomes_of_a_role_are_named_by_the_others(tmp_path: Path) -> None:
    write_comparison(tmp_path, "qmix predators | ppo prey", "role:prey")
    cases = {outcome.case for outcome in compared_outcomes(tmp_path, "role:prey")}
    assert cases == {"qmix predators: ppo"}


def write_comparison(folder: Path, contestant: str, subject: str) -> None:
    points = [f"{contestant},{s},{subject},{n},{n + s}" for s in range(3) for n in (0, 100)]
    head = "contestant,seed,subject,env_steps,return"
    (folder / "curves.csv").write_text("\n".join([head, *points]))
    rows = [f"{contestant},{s},{subject},2.5,runs/{s}" for s in range(3)]
    head = "contestant,seed,subject,random_in_place,run"
    (folder / "runs.csv").write_text("\n".join([head, *rows]))
    for seed in range(3):
        (folder / "runs" / str(seed)).mkdir(parents=True)
        versions = {"git_commit": f"c{seed}", "earlier": [{"git_commit": "b"}]}
        (folder / "runs" / str(seed) / "versions.json").write_text(json.dumps(versions))


def test_the_runs_beside_benchmarl_are_on_their_page() -> None:
    page = (FOLDER / "beside_benchmarl" / "README.md").read_text()
    rows = table(read_outcomes(FOLDER / "beside_benchmarl" / "results")).splitlines()[2:]
    matched = [row.split(" | ")[2] for row in rows if ", matched: " in row]
    assert len(matched) == 2 * len(CASES) + 1
    assert not [returns for returns in matched if returns not in page]


def test_the_runs_in_a_folder_are_reported(tmp_path: Path) -> None:
    for seed in (0, 1):
        points = [
            {"env_steps": n, "processor_s": n / 100, "return_mean": n / 50 + seed} for n in (0, 500)
        ]
        run = {"side": "muxrl", "setting": "default", "seed": seed, "num_updates": 7,
               "points": points, "versions": {}}  # fmt: skip
        (tmp_path / f"qmix_muxrl_default_{seed}.json").write_text(json.dumps(run))
    (tmp_path / "qmix_random.json").write_text(json.dumps({"return_mean": -3.0}))
    text = report(tmp_path, tmp_path / "out")
    assert "| QMIX, default: muxrl | 500 | 10.00, 11.00 | 7 | 5 |" in text
    (first, _) = read_outcomes(tmp_path / "out")
    assert first.levels == {"random": -3.0}
    assert (tmp_path / "out" / PICTURE_FILE).exists()
    with pytest.raises(ValueError, match="holds no run"):
        report(tmp_path / "out", tmp_path)


def test_existing_outcomes_are_not_made_again(
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
    outcomes = read_outcomes(tmp_path)
    printed = capsys.readouterr().out
    assert "A, seed 0: has an outcome already" in printed
    assert printed.rstrip().endswith(made_with(outcomes))
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


class Told(ZeroCost):
    """A simulation that notes the parameters of its episodes."""

    options: ClassVar[list[Any]] = []

    def reset(self, seed: int | None = None, options: Any = None) -> Any:
        self.options.append(options)
        return super().reset(seed)


@pytest.mark.usefixtures("rllib")
def test_a_case_s_episodes_get_the_simulation_s_parameters() -> None:
    overrides = (f"simulation.env={__name__}:Told", "simulation.kwargs={num_steps: 5}",
                 "simulation.parameters={wind: {choice: [1, 2]}, cold: [[0, 0], [100, 10]]}",
                 "servers.all={algorithm: RANDOM, agents: ['*']}")  # fmt: skip
    case = Case("cues", overrides, env_steps=100, measure=evaluated(4), every=50)
    Told.options.clear()
    assert list(CaseTable({"told": case}).run("told").returns) == [50, 100]
    played = [told for told in Told.options if told]  # without the trial before the first episode
    assert len(played) >= 100 // 5 + 2 * 4
    assert {told["wind"] for told in played} == {1, 2}
    assert {told["cold"] for told in played} == {0, 5, 10}  # evaluations have the last value
