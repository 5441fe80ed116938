"""A league goes on from any point at which it was ended, and reports each round."""

from __future__ import annotations

import contextlib
import io
import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from rich.console import Console
from tests.orchestrator.commanded import Muxrl
from tests.orchestrator.league.conftest import (
    EXPLOIT,
    HANDS,
    SIDES,
    TWO,
    Folder,
    Make,
    hands,
    play,
    train,
    tree,
)

from muxrl.orchestrator.errors import ConfigError, NotALeagueDirectory, SweepIsRunning
from muxrl.orchestrator.league import runner
from muxrl.orchestrator.league.directory import LeagueDirectory
from muxrl.orchestrator.league.games import _seats, seatings
from muxrl.orchestrator.league.load import load_league
from muxrl.orchestrator.league.population import League
from muxrl.orchestrator.league.report import write_league_report
from muxrl.orchestrator.league.runner import resume_league, start_league
from muxrl.orchestrator.sweeps import load as sweeps_load


@pytest.fixture
def done(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Gives a list of the runner's actions, which write rounds and games without training."""
    told: list[str] = []

    def of(path: Path) -> tuple[League, LeagueDirectory, int]:
        folder = LeagueDirectory.open(path.parents[1])
        assert folder.is_running
        return (
            runner.make_league(runner.load_resumed_league(folder.config_file)),
            folder,
            int(path.name),
        )

    def start(config: Any, path: Path, console: Any) -> Any:
        told.append(f"train {path.name}")
        train(*of(path))
        return SimpleNamespace(exit_code=0)

    def resume(path: Path, overrides: Any, console: Any) -> Any:
        assert overrides == {"max_concurrent": 3, "address": "auto"}
        told.append(f"go on {path.name}")
        _, folder, number = of(path)
        sweep = folder.sweep(number)
        trials = sweep.trials()
        for trial in trials:
            trial.status = "done"
        sweep.write_trials(trials)
        return SimpleNamespace(exit_code=0)

    def games(league: League, folder: LeagueDirectory, number: int) -> None:
        told.append(f"play {number:02d}")
        play(league, folder, number)

    def report(league: League, folder: LeagueDirectory, last: int) -> None:
        told.append(f"report {last:02d}")

    @contextlib.contextmanager
    def ray(plan: Any) -> Iterator[None]:
        told.append("ray")
        yield

    monkeypatch.setattr(runner, "sweep_ray", ray)
    monkeypatch.setattr(runner, "start_sweep", start)
    monkeypatch.setattr(runner, "resume_sweep", resume)
    monkeypatch.setattr(runner, "play_games", games)
    monkeypatch.setattr(runner, "write_league_report", report)
    return told


WHOLE = ["train 01", "play 01", "report 01", "train 02", "play 02", "report 02"]
SECOND = ["ray", *WHOLE[3:]]


@pytest.mark.parametrize(
    ("num_done", "is_half"),
    # After the first games, the report of the second round is written, too.
    [(0, False), (0, True), (1, False), (3, False), (3, True), (4, False), (5, False)],
)
def test_a_league_goes_on_from_each_point(
    make: Make, folder: Folder, done: list[str], num_done: int, is_half: bool
) -> None:
    league = make(rounds=2)
    place = folder(league)
    (place.round(1) / "runs").mkdir(parents=True)  # a killed process has left this folder
    steps = [*WHOLE[:num_done], *(["half" + WHOLE[num_done]] if is_half else [])]
    for what, number in (step.split() for step in steps):
        if "train" in what:
            shutil.rmtree(place.round(int(number)), ignore_errors=True)
            train(league, place, int(number), "done", "running" if "half" in what else "done")
        elif what == "play":
            play(league, place, int(number))
    result = resume_league(place.path, ["max_concurrent=3", "address=auto"])
    rest = WHOLE[num_done:]
    rest = [rest[0].replace("train", "go on"), *rest[1:]] if is_half else rest
    assert done == (["ray", *rest] if WHOLE[3] in WHOLE[num_done:] else rest)
    assert (result.num_rounds, result.exit_code) == (2, 0)
    assert "max_concurrent: 3" in place.config_file.read_text()
    assert all(place.is_trained(number) and place.games(number) for number in (1, 2))


@pytest.mark.usefixtures("done")
def test_each_round_is_printed_with_its_ratings(rllib: None, tmp_path: Path) -> None:
    console = Console(file=io.StringIO(), width=160)
    league = load_league(tree(rounds=2, leagues_dir=str(tmp_path / "leagues")))
    result = start_league(league, console=console)
    assert result.league_dir.parent == tmp_path / "leagues"
    told = [line.strip() for line in console.file.getvalue().splitlines()]  # type: ignore[attr-defined]
    ratings = ["Ratings of left", "Ratings of right"]
    assert [
        line for line in told if line.startswith(("league ", "Ratings")) or " of 2" in line
    ] == [
        f"league directory: {result.league_dir}",
        *("round 1 of 2", *ratings),
        *("round 2 of 2", *ratings),
    ]


def test_a_finished_league_can_go_on_with_more_rounds(
    make: Make, folder: Folder, done: list[str]
) -> None:
    place = folder(make(rounds=1))
    resume_league(place.path)
    done.clear()
    assert resume_league(place.path, ["rounds=2"]).num_rounds == 2
    assert done == SECOND


def test_a_draw_that_the_games_do_not_allow_can_be_changed_by_a_resume(
    make: Make, folder: Folder, done: list[str]
) -> None:
    """Nash weights need a constant sum, which the first round's games do not have."""
    league = make(rounds=2, opponents={"draw": "nash"}, interchangeable=["left", "right"])
    place = folder(league, 1, lambda left, right: (1.0, float(left != right)))
    with pytest.raises(ConfigError, match="no constant sum, which nash needs; try alpha_rank"):
        resume_league(place.path)
    assert resume_league(place.path, ["opponents.draw=alpha_rank"]).num_rounds == 2
    assert done == ["ray", *SECOND]


def test_tokens_that_are_given_again_reach_each_round(
    make: Make, folder: Folder, monkeypatch: pytest.MonkeyPatch
) -> None:
    token = "secret-of-sixteen"
    members: dict[str, Any] = {"a": {"role": "left", "server": {"token": token}}}
    league = make(members=members | {"b": {"role": "right"}}, rounds=2)
    place = folder(league, 1)
    train(league, place, 2, "done", "running")
    assert not any(token in file.read_text() for file in place.path.rglob("*.yaml"))
    resumed = []

    def resume(path: Path, overrides: Any, console: Any) -> Any:
        resumed.append(sweeps_load.load_resumed(path / "sweep.yaml", overrides))
        return SimpleNamespace(exit_code=1)

    monkeypatch.setattr(runner, "sweep_ray", lambda plan: contextlib.nullcontext())
    monkeypatch.setattr(runner, "resume_sweep", resume)
    with pytest.raises(ConfigError, match=r"members\.a\.server\.token: is left open .* give it"):
        resume_league(place.path)
    resume_league(place.path, [f"members.a.server.token={token}"])
    assert [sweep.algorithms["a"].token for sweep in resumed] == [token]
    write_league_report(league, place, 1)
    assert "token" not in (place.path / "summary.md").read_text()


def test_a_round_that_fails_ends_the_league(
    make: Make,
    folder: Folder,
    done: list[str],
    monkeypatch: pytest.MonkeyPatch,
    muxrl: Muxrl,
) -> None:
    place = folder(make(rounds=2))

    def fail(config: Any, path: Path, console: Any) -> Any:
        trials = {"failed": (), "counts": lambda: "1 failed", "sweep_dir": path}
        return SimpleNamespace(exit_code=1, **trials)

    monkeypatch.setattr(runner, "start_sweep", fail)
    monkeypatch.setattr(
        runner, "print_result", lambda result, console: console.print(result.counts())
    )
    told = muxrl("league", place.path, "--resume", code=1)
    assert done == ["ray"]
    assert "1 failed" in told.out
    assert f"continue with: muxrl league {place.path} --resume" in told.out


def test_one_process_at_a_time_runs_a_league(make: Make, folder: Folder, tmp_path: Path) -> None:
    place = folder(make())
    with place.locked(), pytest.raises(SweepIsRunning, match="another process is running"):
        resume_league(place.path)
    with pytest.raises(NotALeagueDirectory, match=r"it has no league\.yaml"):
        resume_league(tmp_path)


def test_the_report_has_the_weights_of_solutions(make: Make, folder: Folder) -> None:
    """Left's better member, its second one, has weight 1; it is equally bad for all of right."""
    league = make(rounds=2)
    place = folder(league, 2, a=1.0)
    write_league_report(league, place, 2)
    roles = json.loads((place.path / "league.json").read_text())["roles"]
    assert roles["left"]["weights"]["nash"] == {"a @ 1": 0.0, "a @ 2": 1.0}
    assert roles["right"]["weights"]["nash"] == pytest.approx({"b @ 1": 0.5, "b @ 2": 0.5})
    assert roles["left"]["weights"]["alpha_rank"]["a @ 2"] == pytest.approx(1, abs=0.002)
    summary = (place.path / "summary.md").read_text()
    assert "| player | Nash | alpha-rank |" in summary
    assert "| b @ 1 | 0.50 | " in summary
    assert "How often a solution of these games plays" in (place.path / "report.html").read_text()
    for number in (1, 2):
        play(league, place, number, lambda left, right: (1.0, float(left == "a @ 1")))
    write_league_report(league, place, 2)
    assert "no nash weights: the roles' returns" in (place.path / "summary.md").read_text()


def test_the_report_shows_ratings_over_rounds_and_which_player_beats_which(
    make: Make, folder: Folder
) -> None:
    league = make(rounds=2)
    place = folder(league, 2, a=1.0, b=0.5)
    write_league_report(league, place, 2)
    told = json.loads((place.path / "league.json").read_text())
    ratings = told["roles"]["left"]["ratings"]
    assert list(ratings) == ["a @ 1", "a @ 2", "random"]
    assert ratings["random"]["mean"] == 0 < ratings["a @ 1"]["mean"]
    payoffs = {(p["player"], p["others"]): p["return"] for p in told["roles"]["left"]["payoffs"]}
    assert payoffs["a @ 1", "b @ 1"] == 0.5
    assert payoffs["a @ 2", "b @ 1"] == 1.5
    assert payoffs["random", "random"] == 0
    array = np.load(place.path / "payoffs.npy")
    players = list(told["roles"]["left"]["ratings"])
    others = list(told["roles"]["right"]["ratings"])
    at = players.index("a @ 2"), others.index("b @ 1")
    assert array.shape == (2, len(players), len(others))
    assert (array[0][at], array[1][at]) == (1.5, -1.5)
    begun = [row["begins_with"] for row in told["rounds"]]
    assert begun == ["new weights", "new weights", "a @ 1", "b @ 1"]
    assert told["rounds"][2]["run"] == "rounds/02/runs/a"
    summary = (place.path / "summary.md").read_text()
    assert "3 episodes a game, sampled actions. Rating: " in summary
    assert "| member | round 1 [95 %, episodes] | round 2 [95 %, episodes] |" in summary
    assert (place.path / "plots" / "payoffs-left.svg").is_file()
    page = (place.path / "report.html").read_text()
    assert "League duel: 2 of 2 rounds" in page
    assert "Ratings of right by round" in page


def test_the_report_names_changes_since_the_round_before(make: Make, folder: Folder) -> None:
    league = make(members=TWO, exploit=EXPLOIT, rounds=4)
    place = folder(league, 3, a=1.0, z=-1.0)
    train(league, place, 4, "done", "interrupted", "waiting")
    write_league_report(league, place, 3)
    rows = json.loads((place.path / "league.json").read_text())["rounds"]
    changed = [(row["round"], row["member"], row["settings"][:12]) for row in rows]
    assert [row for row in changed if row[2]] == [(3, "z", "settings.lr=")]
    assert [row["status"] for row in rows] == ["done"] * 10 + ["interrupted", "waiting"]
    assert "# League duel: 3 of 4 rounds" in (place.path / "summary.md").read_text()


def test_the_report_warns_of_cycles(make: Make, folder: Folder) -> None:
    league = make(members=HANDS, interchangeable=SIDES)
    place = folder(league, 1, hands)
    write_league_report(league, place, 1)
    written = (place.path / "summary.md").read_text()
    assert "as left, 1 of 4 triples of players form a cycle" in written
    (cycle,) = json.loads((place.path / "league.json").read_text())["roles"]["left"]["cycles"]
    assert {*cycle} == {f"{hand} @ 1" for hand in HANDS}


def test_a_league_of_three_roles_has_ratings_but_no_solutions(make: Make, folder: Folder) -> None:
    experiment = tree()["experiment"]
    experiment["simulation"] = {"env": "muxrl.experiments.simulations.spread:Spread"}
    roles = {f"role_{i}": [f"agent_{i}"] for i in range(3)}
    experiment["servers"] = {role: {"agents": agents} for role, agents in roles.items()}
    members = {"a": {"role": "role_0"}, "b": {"role": "role_1"}}
    league = make(experiment=experiment, members=members)
    place = folder(league)
    train(league, place, 1)
    seats = [_seats(seating) for _, seating in seatings(league, league.entries(place, 1))]
    returns = dict.fromkeys(league.facts.agents, [1.0] * 3)
    played = {str(each): {"seats": each, "returns": returns} for each in seats}
    place.write_games(1, {"format": 1, "num_episodes": 3, "games": [*played.values()]})
    write_league_report(league, place, 1)
    told = json.loads((place.path / "league.json").read_text())["roles"]
    assert {role: one["weights"] for role, one in told.items()} == {"role_0": {}, "role_1": {}}
    assert list(told["role_0"]["ratings"]) == ["a @ 1", "random"]
    assert "| player |" not in (place.path / "summary.md").read_text()
    assert (
        "How often a solution of these games plays" not in (place.path / "report.html").read_text()
    )
