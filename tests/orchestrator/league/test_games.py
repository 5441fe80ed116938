"""Which players meet after a round, and a whole league, trained in this process without Ray."""

from __future__ import annotations

import contextlib
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from tests.orchestrator.league.conftest import SIDES, Make, tree
from tests.orchestrator.trained_here import train_here

from muxrl.orchestrator.config import to_yaml
from muxrl.orchestrator.league import runner
from muxrl.orchestrator.league.directory import LeagueDirectory
from muxrl.orchestrator.league.games import meet, seatings
from muxrl.orchestrator.league.load import load_league
from muxrl.orchestrator.league.population import Entry, League
from muxrl.orchestrator.records.run_directory import RunDirectory
from muxrl.orchestrator.storage.json_files import write_text
from muxrl.orchestrator.sweeps.directory import SweepDirectory
from muxrl.orchestrator.sweeps.plan import make_plan


def names(league: League, *entries: Entry) -> list[tuple[str, dict[str, str]]]:
    return [
        (head, {role: f"{e.member}{e.round}" if e else "-" for role, e in seated.items()})
        for head, seated in seatings(league, entries)
    ]


def entry(member: str, number: int, role: str) -> Entry:
    return Entry(member, number, role, Path(f"{member}{number}"))


def test_each_entry_of_a_role_meets_each_of_the_other(make: Make) -> None:
    found = names(
        make(), *(entry(m, n, r) for n in (1, 2) for m, r in zip("ab", SIDES, strict=True))
    )
    left = [(s["left"], s["right"]) for head, s in found if head == "left"]
    assert left == [(a, b) for a in ("a1", "a2", "-") for b in ("b1", "b2", "-")]
    assert len(found) == 2 * len(left)


def test_players_of_interchangeable_sides_sit_in_both_and_have_one_rating(make: Make) -> None:
    league = make(interchangeable=SIDES, members={"a": {"role": "left"}})
    found = names(league, entry("a", 1, "left"), entry("a", 2, "left"))
    assert {head for head, _ in found} == {"left"}
    left = [(s["left"], s["right"]) for _, s in found]
    assert left == [(a, b) for a in ("a1", "a2", "-") for b in ("a1", "a2", "-")]


def start(config: Any, path: Path, console: Any) -> Any:
    """Runs a round's trials one after another; stands in for Ray Tune."""
    plan, sweep = make_plan(config), SweepDirectory.create_at(path)
    write_text(sweep.config_file, to_yaml(config))
    for trial in plan.trials:
        run = RunDirectory.create_at(sweep.new_run(trial.id))
        experiment = plan.experiments[trial.id]
        train_here(experiment, run, [experiment.config.stop.env_steps or 0])
        trial.status, trial.run_dir = "done", f"runs/{run.name}"
    sweep.write_trials(plan.trials)
    return SimpleNamespace(exit_code=0)


@pytest.mark.learning
@pytest.mark.timeout(180)
@pytest.mark.usefixtures("rllib")
def test_a_league_rates_its_members_higher_round_by_round(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The game is won by the higher number, so that a trained policy plays 2."""
    monkeypatch.setattr(runner, "start_sweep", start)
    monkeypatch.setattr(runner, "sweep_ray", lambda plan: contextlib.nullcontext())
    members = {"a": {"role": "left"}, "new": {"role": "left", "is_fresh": True}}
    league = load_league(tree(members=members, interchangeable=SIDES, rounds=2, num_episodes=20))
    result = runner.start_league(league, tmp_path / "league")
    assert (result.num_rounds, result.exit_code) == (2, 0)
    place = LeagueDirectory.open(tmp_path / "league")
    known = runner.make_league(league)
    (table,) = meet(known, place, 2).by_label
    rating = {name: rating.mean for name, rating in table.ratings.items()}
    assert 0 < rating["a @ 1"] < rating["a @ 2"]
    assert rating["new @ 2"] < rating["a @ 2"]
    # The first round has three players, the second five: it adds the games of its two new ones.
    assert [len((place.games(number) or {})["games"]) for number in (1, 2)] == [9, 16]
