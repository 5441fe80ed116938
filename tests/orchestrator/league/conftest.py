"""A league of two sides, with rounds that are written as if they had been trained and played."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.orchestrator.launch.duel import Duel

from muxrl.orchestrator.config import to_yaml
from muxrl.orchestrator.league.directory import LeagueDirectory
from muxrl.orchestrator.league.games import _seats, seatings
from muxrl.orchestrator.league.load import load_league
from muxrl.orchestrator.league.population import League, make_league
from muxrl.orchestrator.league.rounds import make_round
from muxrl.orchestrator.storage.json_files import write_text
from muxrl.orchestrator.sweeps.directory import SweepDirectory, TrialRecord

Make = Callable[..., League]
Folder = Callable[..., LeagueDirectory]
SIDES = ["left", "right"]
HANDS = {"paper": {"role": "left"}, "rock": {"role": "left"}, "scissors": {"role": "right"}}
TWO = {"a": {"role": "left"}, "z": {"role": "left"}, "b": {"role": "right"}}
EXPLOITED = {"settings.lr": {"loguniform": [0.001, 0.1]}}
EXPLOIT = {"role": "left", "every_rounds": 2, "parameters": EXPLOITED}
PPO = {
    "settings": {"train_batch_size_per_learner": 160, "minibatch_size": 80, "lr": 0.01},
    "model": {"fcnet_hiddens": [16]},
}


def tree(**values: Any) -> dict[str, Any]:
    """Returns a league's YAML as a dict, with some top keys replaced."""
    return {
        "name": "duel",
        "experiment": {
            "simulation": {"env": f"{Duel.__module__}:Duel"},
            "servers": {side: {"agents": [side], **PPO} for side in SIDES},
            "stop": {"env_steps": 480},
            "evaluation": {"should_explore": True, "seed": 500},
        },
        "members": {"a": {"role": "left"}, "b": {"role": "right"}},
        "num_episodes": 3,
    } | values


@pytest.fixture
def make(rllib: None) -> Make:
    return lambda **values: make_league(load_league(tree(**values)))


@pytest.fixture
def folder(tmp_path: Path) -> Folder:
    """Gives a function that makes a league's directory with some trained and played rounds.

    `play` describes its further arguments.
    """

    def create(league: League, num_rounds: int = 0, *how: Any, **strengths: float) -> Any:
        made = LeagueDirectory.create_at(tmp_path / "x")
        made.config_file.write_text(to_yaml(league.config))
        for number in range(1, num_rounds + 1):
            train(league, made, number)
            play(league, made, number, *how, **strengths)
        return made

    return create


def train(league: League, folder: LeagueDirectory, number: int, *statuses: Any) -> None:
    """Writes a round as a sweep leaves it, with trials that have learned nothing."""
    config = make_round(league, folder, number)
    sweep = SweepDirectory.create_at(folder.round(number))
    write_text(sweep.config_file, to_yaml(config))
    members = league.training(number)
    how = statuses or ("done",) * len(members)
    listed = config.assignments.listed
    sweep.write_trials(
        TrialRecord(m, f"{m}:x", roles, {}, 0, status, run_dir=f"runs/{m}")
        for m, roles, status in zip(members, listed, how, strict=True)
    )


def play(
    league: League,
    folder: LeagueDirectory,
    number: int,
    returns: Callable[[str, str], tuple[float, float]] | None = None,
    **strengths: float,
) -> None:
    """Writes the games of a round, which are won by the difference of strengths.

    Args:
        returns: gives the returns of left and right of two players instead.
        strengths: by member: how much its strength grows with each round.
    """

    def strength(label: str) -> float:
        name, _, age = label.partition(" @ ")
        return strengths.get(name, 0.0) * int(age or 0)

    games = {}
    for _, seating in seatings(league, league.entries(folder, number)):
        seats = _seats(seating)
        won = strength(seats["left"]) - strength(seats["right"])
        both = returns(seats["left"], seats["right"]) if returns else (won, -won)
        played = {s: [r] * league.config.num_episodes for s, r in zip(seats, both, strict=True)}
        games[str(seats)] = {"seats": seats, "returns": played}
    folder.write_games(number, {"format": 1, "num_episodes": 3, "games": [*games.values()]})


def hands(left: str, right: str) -> tuple[float, float]:
    """Returns both returns: 1 for the winner, -1 for the loser; random actions lose."""
    order = ["paper @ 1", "rock @ 1", "scissors @ 1"]
    if left in order and right in order:
        won = (0, 1, -1)[(order.index(right) - order.index(left)) % 3]
    else:
        won = (left in order) - (right in order)
    return won, -won
