"""Cross-play: which players meet, and merits that depend on neither position nor opponents."""

from __future__ import annotations

import itertools
import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.orchestrator.comparisons.compared_runs import made_up_run

from muxrl.orchestrator.comparisons import matches
from muxrl.orchestrator.comparisons.arena import Arena, rotations
from muxrl.orchestrator.comparisons.compare import Comparison
from muxrl.orchestrator.comparisons.findings.compared_runs import read_compared_runs
from muxrl.orchestrator.comparisons.findings.contestants import (
    Contestant,
    find_contestants,
    find_roles,
)
from muxrl.orchestrator.comparisons.findings.head_to_head import HeadToHead, frames_of
from muxrl.orchestrator.comparisons.matches import kept, key_of, play, play_head_to_head
from muxrl.orchestrator.config import ExperimentConfig, SimulationConfig
from muxrl.orchestrator.errors import CannotCompare
from muxrl.orchestrator.evaluations.frozen import Player
from muxrl.orchestrator.records.recorded_run import RecordedRun
from muxrl.orchestrator.records.rows import AgentReturns
from muxrl.servers.config import ServerConfig

STRENGTH = {"qmix": 4.0, "ppo": 1.0, "a2c": 2.0, "random": 0.0, "flee": 3.0}
SEAT = {"hunters": 10.0, "prey": -20.0}
EVALUATED = {1: 1_010_000, 2: 2_010_000}
"""By a run's seed: the seed of its first evaluation episode."""
ROLES = {"hunters": ("agent_0", "agent_1"), "prey": ("agent_2",)}


def seed_of(run: Path) -> int:
    """Returns the seed of a made-up run, from its name."""
    return int(run.name.split("-")[2])


class Ledger:
    """An arena in which a return is a player's strength less the others', plus what its seat gives.

    Runs with higher seeds are a little stronger, so that pairs of seeds differ.
    """

    def __init__(self) -> None:
        self.seatings: list[Mapping[str, Player]] = []
        self.episodes: list[Sequence[int]] = []

    def check_interchangeable(self, roles: Sequence[str]) -> None:
        assert set(roles) <= set(ROLES)

    def play(self, seating: Mapping[str, Player], seeds: Sequence[int]) -> AgentReturns:
        self.seatings.append(dict(seating))
        self.episodes.append(seeds)
        found = self.returns(seating)
        return {a: (found[role],) * len(seeds) for role, agents in ROLES.items() for a in agents}

    def returns(self, seating: Mapping[str, Player]) -> dict[str, float]:
        """Returns the return of each role."""
        strengths = {
            role: STRENGTH[p.label] + (0.1 * seed_of(p.run) if p.run else 0.0)
            for role, p in seating.items()
        }
        total = sum(strengths.values())
        return {role: 2 * own - total + SEAT[role] for role, own in strengths.items()}


def player(run: RecordedRun, role: str, agents: Sequence[str], label: str, **_: Any) -> Player:
    return Player(ServerConfig(agents=list(agents)), label, role, run.path)


@pytest.fixture
def ledger(monkeypatch: pytest.MonkeyPatch) -> Ledger:
    monkeypatch.setattr(matches, "player_of", player)
    return Ledger()


def contestants(
    root: Path, seeds: Mapping[tuple[str, str], Sequence[int]]
) -> tuple[Contestant, ...]:
    paths = [made_up_run(root, *who, seed, 5.0) for who, each in seeds.items() for seed in each]
    runs = read_compared_runs(paths).runs
    return find_contestants(runs, find_roles(runs, {}))


@pytest.fixture(scope="module")
def four(tmp_path_factory: pytest.TempPathFactory) -> tuple[Contestant, ...]:
    """Gives contestants for both hunters with both prey, with two seeds each."""
    every = itertools.product(("QMIX", "PPO"), ("PPO", "A2C"))
    return contestants(tmp_path_factory.mktemp("runs"), dict.fromkeys(every, (1, 2)))


def meet(
    ledger: Ledger, who: Sequence[Contestant], **settings: Any
) -> tuple[HeadToHead, list[str]]:
    arena: Any = ledger
    return play_head_to_head(
        arena,
        who,
        settings.pop("roles", ROLES),
        settings.pop("scripts", {}),
        3,
        should_explore=False,
        **settings,
    )


def test_merit_is_strength_whatever_the_seat_gives(
    ledger: Ledger, four: tuple[Contestant, ...]
) -> None:
    """The hunters' mean strengths over seeds are 4.15, 1.15 and 0; all meet the same prey."""
    played, notes = meet(ledger, four)
    assert notes == []
    hunters, prey = played.by_label
    assert hunters.role == "hunters"
    found = {label: merit.mean for label, merit in hunters.merits.items()}
    mean = (4.15 + 1.15 + 0) / 3
    assert found == pytest.approx({"qmix": 4.15 - mean, "ppo": 1.15 - mean, "random": -mean})
    assert sum(merit.mean for merit in prey.merits.values()) == pytest.approx(0.0)
    assert {row["player"]: row["merit"] for row in hunters.cells.values()} == hunters.merits


class RockPaperScissors(Ledger):
    """An arena of rock (qmix), paper (ppo) and scissors (a2c); random actions draw with all."""

    def returns(self, seating: Mapping[str, Player]) -> dict[str, float]:
        order = ["qmix", "ppo", "a2c"]
        who = [seating[role].label for role in ROLES]
        ahead = 0 if "random" in who else (order.index(who[0]) - order.index(who[1]) + 1) % 3 - 1
        return dict(zip(ROLES, (float(ahead), -float(ahead)), strict=True))


def test_a_cycle_of_three_is_reported_and_payoffs_are_written_as_a_matrix_game(
    ledger: Ledger, comparison: Comparison, tmp_path: Path
) -> None:
    who = contestants(tmp_path, {(name, name): (1,) for name in ("QMIX", "PPO", "A2C")})
    played, notes = meet(RockPaperScissors(), who)
    assert notes == [
        f"as {role}, 1 of 4 triples of players form a cycle (qmix over a2c over ppo over qmix); "
        "ratings mislead about them, so read the table of payoffs"
        for role in ROLES
    ]
    frames = {**comparison.frames, **frames_of(played)}
    found = replace(comparison, head_to_head=played, frames=frames)
    folder = found.write(tmp_path / "out").parent
    hunters, prey = np.load(folder / "payoffs.npy")
    assert hunters.tolist() == [[0, -1, 1, 0], [1, 0, -1, 0], [-1, 1, 0, 0], [0, 0, 0, 0]]
    assert (prey == -hunters).all()
    rows = (folder / "payoffs.csv").read_text().splitlines()
    assert rows[1] == "hunters,qmix,qmix,0.0,,,1"
    assert len(rows) == 1 + 2 * 16
    assert "Payoffs of prey" in (folder / "report.html").read_text()
    frame = found.frame("ratings")
    assert list(frame["player"][:4]) == ["qmix", "ppo", "a2c", "random"]
    assert abs(frame["rating"]).max() < 1e-3


def test_a_cell_is_the_mean_over_pairs_of_seeds(
    ledger: Ledger, four: tuple[Contestant, ...]
) -> None:
    played, _ = meet(ledger, four)
    cell = played.by_label[0].cells["qmix", "a2c"]
    # Both are 0.1 stronger with each seed, which cancels out: 4 - 2 + 10.
    found = cell["return"]
    assert found.mean == pytest.approx(12)
    assert np.isnan([found.low, found.high]).all()  # two pairs with equal returns give no interval
    assert (cell["num_pairs"], cell["num_matches"]) == (2, 2 * 2 * 2)
    assert cell["num_partners"] == 2  # the contestant with both labels, once for each seed
    against_random = played.by_label[0].cells["qmix", "random"]["return"]
    reach = 0.05 * np.sqrt(2) * 12.7062 / 1.95996  # the interval of 14.1 and 14.2, widened
    ends = (14.15 - reach, 14.15 + reach)
    assert (against_random.low, against_random.high) == pytest.approx(ends)


def test_runs_of_equal_seeds_meet_and_no_others(
    ledger: Ledger, four: tuple[Contestant, ...]
) -> None:
    meet(ledger, four)
    played: dict[int, set[range]] = {}
    for seating, episodes in zip(ledger.seatings, ledger.episodes, strict=True):
        seeds = {seed_of(p.run) for p in seating.values() if p.run is not None}
        assert len(seeds) <= 1
        for seed in seeds:
            played.setdefault(seed, set()).add(episodes)
    # For each seed 4 hunters and 4 prey meet, random meets each of them, and random meets itself.
    assert len(ledger.seatings) == 2 * (4 * 4 + 4 + 4 + 1)
    assert played == {seed: {range(first, first + 3)} for seed, first in EVALUATED.items()}


def test_pairs_play_separate_episodes_if_all_runs_were_evaluated_on_the_same_ones(
    ledger: Ledger, tmp_path: Path
) -> None:
    paths = [
        made_up_run(tmp_path, *who, seed, 5.0, evaluation_seed=70)
        for who in (("QMIX", "A2C"), ("PPO", "PPO"))
        for seed in (1, 2)
    ]
    runs = read_compared_runs(paths).runs
    meet(ledger, find_contestants(runs, find_roles(runs, {})))
    assert set(ledger.episodes) == {range(70, 73), range(73, 76)}


def test_seeds_that_some_contestants_lack_are_left_out_with_a_note(
    ledger: Ledger, tmp_path: Path
) -> None:
    who = contestants(tmp_path, {("QMIX", "A2C"): (1, 2, 3), ("PPO", "PPO"): (2, 3)})
    played, notes = meet(ledger, who)
    assert [set(pair.values()) for pair in played.pairs] == [{2}, {3}]
    assert notes == ["head to head leaves out seeds that not every contestant has: [1]"]


def test_without_a_common_seed_runs_meet_in_their_order(ledger: Ledger, tmp_path: Path) -> None:
    who = contestants(tmp_path, {("QMIX", "A2C"): (1, 2), ("PPO", "PPO"): (8,)})
    played, notes = meet(ledger, who)
    assert [sorted(pair.values()) for pair in played.pairs] == [[1, 8]]
    assert "no seed is common" in notes[0]


def test_rotated_seats_take_the_position_out_of_a_return(ledger: Ledger, tmp_path: Path) -> None:
    who = contestants(tmp_path, {("QMIX", "A2C"): (1,), ("PPO", "PPO"): (1,)})
    played, _ = meet(ledger, who, interchangeable=("hunters", "prey"))
    hunters, prey = played.by_label
    # The difference of strengths, 4 - 2, and the mean of what both seats give.
    assert hunters.cells["qmix", "a2c"]["return"].mean == pytest.approx(2 + (10 - 20) / 2)
    assert prey.cells["a2c", "qmix"]["return"].mean == pytest.approx(-2 + (10 - 20) / 2)
    assert all(match["num_episodes"] == 6 for match in played.matches)


def test_rotations_are_every_cyclic_shift() -> None:
    assert list(rotations(["a", "b", "c"])) == [
        {"a": "a", "b": "b", "c": "c"},
        {"a": "b", "b": "c", "c": "a"},
        {"a": "c", "b": "a", "c": "b"},
    ]
    assert list(rotations(["a"])) == [{"a": "a"}]


def test_scripted_policies_meet_all_others(ledger: Ledger, tmp_path: Path) -> None:
    flee = Player(ServerConfig("SCRIPTED", ["agent_2"]), "flee", "prey")
    who = contestants(tmp_path, {("QMIX", "A2C"): (1,), ("PPO", "PPO"): (1,)})
    played, _ = meet(ledger, who, scripts={"flee": {"prey": flee}})
    hunters, prey = played.by_label
    assert set(prey.players) == {"a2c", "ppo", "random", "flee"}
    assert hunters.cells["ppo", "flee"]["return"].mean == pytest.approx(1.1 - 3 + 10)
    assert "flee" not in hunters.players


def frozen(path: str) -> ServerConfig:
    return ServerConfig("FROZEN", ["agent_2"], settings={"checkpoint": path})


def test_policies_of_one_label_with_different_checkpoints_play_separate_games(
    ledger: Ledger, tmp_path: Path
) -> None:
    one, other = Player(frozen("a"), "flee", "prey"), Player(frozen("b"), "flee", "prey")
    assert one == Player(frozen("a"), "flee", "prey")
    assert one != other
    who = contestants(tmp_path, {("QMIX", "A2C"): (1,), ("PPO", "PPO"): (1,)})
    meet(ledger, who, scripts={"flee": {"prey": one}})
    num_alone = len(ledger.seatings)
    arena: Any = ledger
    hunters = Player(ServerConfig("RANDOM", ["agent_0", "agent_1"]), "random", "hunters")
    seatings = [{"hunters": hunters, "prey": prey} for prey in (one, other, one)]
    play(arena, {key_of(who, range(7, 8)): (who, range(7, 8)) for who in seatings}, {}, "")
    assert [seating["prey"] for seating in ledger.seatings[num_alone:]] == [one, other]


class Checkpoints(Ledger):
    """An arena in which a return is the code of the last letter of the hunters' checkpoint."""

    def returns(self, seating: Mapping[str, Player]) -> dict[str, float]:
        path = seating["hunters"].server.settings.get("checkpoint", chr(0))
        return dict.fromkeys(ROLES, float(ord(path[-1])))


def test_frozen_contestants_that_differ_late_in_their_checkpoint_s_path_both_play(
    tmp_path: Path,
) -> None:
    folder = "/somewhere/far/down/in/the/tree/of/runs/" * 2
    runs = read_compared_runs(
        [
            made_up_run(tmp_path, "FROZEN", "RANDOM", 1, 5.0, settings={"checkpoint": folder + end})
            for end in ("a", "b")
        ]
    ).runs
    played, _ = meet(Checkpoints(), find_contestants(runs, find_roles(runs, {})))
    scores = {m["player"]: m["return"] for m in played.matches if m["role"] == "hunters"}
    assert len(scores) == 3  # two contestants and random
    assert sorted(scores.values()) == [0.0, float(ord("a")), float(ord("b"))]


def test_games_are_played_again_only_if_something_has_changed(
    ledger: Ledger, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    who = contestants(tmp_path, {("QMIX", "A2C"): (1,), ("PPO", "PPO"): (1,)})
    config, file = ExperimentConfig(), tmp_path / "new" / "games.json"
    versions = {"python": "3.11", "git_commit": "ab"}
    monkeypatch.setattr(matches, "software_versions", lambda env: versions)
    with kept(file, config) as known:
        first, _ = meet(ledger, who, known=known)
        assert len(known) == len(ledger.seatings) == 3 * 3
    with kept(file, config) as known:
        again, _ = meet(ledger, who, known=known)
        tables = [frames_of(one)["matches"].drop(columns="returns") for one in (again, first)]
        assert tables[0].equals(tables[1])
        assert len(ledger.seatings) == len(known)
    config.simulation.kwargs["size"] = 8
    for num in (0, 1):
        with kept(file, config) as known:
            assert len(known) == num
            known["a game"] = {"agent_0": [1.0]}
    versions["git_commit"] += "-dirty"
    with kept(file, config) as known:
        assert known == {}
    checkpoint = tmp_path / "checkpoint"
    checkpoint.mkdir()
    seating = {"prey": Player(frozen(str(checkpoint)), "flee", "prey")}
    key = key_of(seating, range(2))
    assert key_of(seating, range(3)) != key == key_of(seating, range(2))
    os.utime(checkpoint, (1, 1))
    assert key_of(seating, range(2)) != key


def test_a_return_of_random_players_alone_has_no_interval_over_seeds(
    ledger: Ledger, four: tuple[Contestant, ...]
) -> None:
    played, _ = meet(ledger, four)
    found = played.by_label[0].cells["random", "random"]["return"]
    assert found.mean == pytest.approx(10)
    assert math.isnan(found.low)


def test_one_role_alone_meets_nobody(ledger: Ledger, tmp_path: Path) -> None:
    who = contestants(tmp_path, {("QMIX", "A2C"): (1,)})
    with pytest.raises(CannotCompare, match="head to head needs at least two roles"):
        meet(ledger, who, roles={"hunters": ROLES["hunters"]})


def test_roles_with_unlike_agents_are_not_interchangeable() -> None:
    zero = "muxrl.experiments.simulations.zero_cost:ZeroCost"
    config = ExperimentConfig(simulation=SimulationConfig(zero, {"num_agents": 3}))
    with Arena(config, ROLES) as arena:
        with pytest.raises(CannotCompare, match="'hunters' and 'prey' are not interchangeable"):
            arena.check_interchangeable(["hunters", "prey"])
        with pytest.raises(CannotCompare, match="interchangeable: there is no role 'wolves'"):
            arena.check_interchangeable(["wolves"])
    with Arena(config, {"a": ("agent_0",), "b": ("agent_1",)}) as arena:
        arena.check_interchangeable(["a", "b"])


def test_a_missing_checkpoint_is_named(tmp_path: Path) -> None:
    who = contestants(tmp_path, {("QMIX", "A2C"): (1,), ("PPO", "PPO"): (1,)})
    arena: Any = Ledger()
    with pytest.raises(CannotCompare) as refused:
        meet(arena, who)
    run = who[0].runs[0].name
    assert str(refused.value) == (
        f"run {run!r}, server 'hunters': run {run!r} has no checkpoint 'last' of this server; none "
        "was saved"
    )
