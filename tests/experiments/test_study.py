"""Studies: what they refuse, what they leave alone, and what their report says."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from muxrl.experiments import study as study_module
from muxrl.experiments.simulations import cue_game
from muxrl.experiments.study import (
    ContestantConfig,
    StudyConfig,
    find_study,
    play_at_random,
    run,
    train,
)
from muxrl.experiments.study_report import write_report
from muxrl.orchestrator.config import ConfigError, prepare

STUDIES = sorted(path.stem for path in Path(study_module.__file__).parent.glob("studies/*.yaml"))


@pytest.mark.parametrize("name", STUDIES)
def test_each_study_resolves(name: str) -> None:
    study = find_study(name)
    assert study.env_steps % study.interval_env_steps == 0
    assert study.interval_env_steps % study.num_envs == 0
    for contestant in study.contestants:
        prepare(study_module.experiment_of(study, contestant, 0), needs_stop=False)


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("config: cues\nenv_step: 5\n", "env_step"),
        ("config: cues\ncontestants: {A: {evaluation: best}}\n", "best"),
    ],
)
def test_what_a_study_does_not_know_is_refused(tmp_path: Path, text: str, told: str) -> None:
    (tmp_path / "mine.yaml").write_text(text)
    with pytest.raises(ConfigError, match=told):
        find_study(str(tmp_path / "mine.yaml"))


def test_a_study_that_is_not_there_is_told_with_those_that_are() -> None:
    with pytest.raises(ConfigError, match="no such study; there are"):
        find_study("spred")


def study_file(folder: Path) -> str:
    path = folder / "small.yaml"
    path.write_text(
        "config: cues\nseeds: [0, 1]\ncontestants: {PPO: {server: {algorithm: PPO}}, "
        "A2C: {server: {algorithm: A2C}}}\n"
    )
    return str(path)


def test_runs_that_are_there_are_not_made_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[tuple[str, int]] = []

    def make(name: str, contestant: str, seed: int, out: Path, running: set[Any]) -> str:
        made.append((contestant, seed))
        return "it broke" if contestant == "A2C" else ""

    monkeypatch.setattr(study_module, "_run_process", make)
    for there in ("random_0", "ppo_0", "a2c_1"):
        (tmp_path / f"{there}.json").write_text("{}")
    assert run(study_file(tmp_path), [], [], tmp_path, jobs=1) == ["it broke"]
    assert made == [("A2C", 0), ("PPO", 1)]


def test_a_contestant_that_is_not_in_the_study_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no contestant 'QMIX'; there are PPO, A2C"):
        run(study_file(tmp_path), ["QMIX"], [], tmp_path, jobs=1)


def test_random_agents_reach_what_they_must() -> None:
    study = StudyConfig(name="cues", config="cues", final_num_episodes=400)
    record = play_at_random(study)
    returns = record["final"]["sampled"]
    assert len(returns) == 400
    assert record["evaluation_seeds"] == [10_000, 10_399]
    assert sum(returns) / 400 == pytest.approx(cue_game.random_return(), abs=0.3)
    again = play_at_random(study)["final"]["sampled"]
    assert again == returns  # seeded, the agents' choices too
    study.agents = "sum"
    assert play_at_random(study)["final"]["sampled"] == pytest.approx([3 * r for r in returns])


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
    text = write_report(tmp_path)
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
        write_report(tmp_path)


def test_a_folder_without_runs_has_no_report(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="holds no run"):
        write_report(tmp_path)


@pytest.mark.learning
@pytest.mark.usefixtures("running_ray")
def test_a_run_is_evaluated_on_the_way_and_its_training_is_not_disturbed() -> None:
    settings = {"agent": "mlp", "gamma": 0.9, "optimizer_name": "adam", "lr": 0.002,
                "epsilon": [[0, 1.0], [2000, 0.05]]}  # fmt: skip
    server = {"algorithm": "QMIX", "groups": {"all": ["*"]}, "team_reward": "mean",
              "settings": settings}  # fmt: skip
    study = StudyConfig(
        name="small",
        config="cues",
        env_steps=4000,
        interval_env_steps=1000,
        num_episodes=20,
        final_num_episodes=40,
        contestants={"QMIX": ContestantConfig(server=server)},
    )
    record = train(study, "QMIX", 0)
    assert record["env_steps"] == 4000
    assert [point["env_steps"] for point in record["curve"]] == [0, 1000, 2000, 3000, 4000]
    assert [len(point["returns"]) for point in record["curve"]] == [20] * 5
    assert all(point["time_s"] > 0 for point in record["curve"][1:])
    assert list(record["final"]) == ["greedy"]
    learnt = sum(record["final"]["greedy"]) / 40
    assert learnt > 2 * cue_game.random_return()
    json.dumps(record)
