"""Pool members of other servers of the same run are checked before any process starts."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from muxrl.orchestrator.config import ExperimentConfig, SimulationConfig, from_yaml, to_yaml
from muxrl.orchestrator.config.facts import SimulationFacts
from muxrl.orchestrator.config.resolve import resolve
from muxrl.orchestrator.config.schema import CheckpointConfig
from muxrl.orchestrator.errors import ConfigError
from muxrl.orchestrator.evaluations.frozen import FrozenRun
from muxrl.orchestrator.records.run_directory import RunDirectory
from muxrl.protocol.spaces import Box, Discrete
from muxrl.servers.checkpoints.integrity import MANIFEST_FILE
from muxrl.servers.config import ServerConfig

SEES = {"a": Box((3,)), "b": Box((3,)), "wide": Box((5,))}
FACTS = SimulationFacts({agent: (sees, Discrete(3)) for agent, sees in SEES.items()})


def config(
    members: dict[str, Any], agent: str = "b", main: str = "PPO", every: int | None = 100
) -> ExperimentConfig:
    rest = [one for one in FACTS.agents if one not in ("a", agent)]
    return ExperimentConfig(
        "pools",
        simulation=SimulationConfig("gymnasium:CartPole-v1"),
        servers={
            "main": ServerConfig(main, ["a"]),
            "rivals": ServerConfig("POOL", [agent], settings={"members": members}),
            "rest": ServerConfig("RANDOM", rest),
        },
        checkpoint=CheckpointConfig(keep_every_env_steps=every),
    )


OTHERS_POLICY = {"live": "main", "policies": {"default": "other"}}
BOTH = {"now": {"live": "main"}, "past": {"snapshots": "main", "last": 2, "weight": 3}}


def test_members_of_the_same_run_that_fit_are_taken() -> None:
    experiment = resolve(config(BOTH), FACTS, needs_stop=False)
    assert experiment.pool_sources == {"rivals": {"main": True}}
    assert experiment.fixed_servers == {"rivals", "rest"}
    only = resolve(config({"past": BOTH["past"]}), FACTS, needs_stop=False)
    assert only.pool_sources == {"rivals": {"main": False}}


def test_live_members_of_a_user_s_trainer_need_its_weights() -> None:
    brought = "tests.servers.trainers.brought"
    experiment = resolve(config(BOTH, main=f"{brought}:Counting"), FACTS, needs_stop=False)
    assert experiment.pool_sources == {"rivals": {"main": True}}
    with pytest.raises(ConfigError) as refusal:
        resolve(config(BOTH, main=f"{brought}:WithoutWeights"), FACTS, needs_stop=False)
    for member in ("'now': live", "'past': snapshots"):
        assert (
            f"POOL's member {member}: server 'main' is {brought}:WithoutWeights, which has no "
            "weights() and set_weights()"
        ) in str(refusal.value)
    with pytest.raises(ConfigError, match=r"observes shape \(3,\), but 'wide' observes shape"):
        resolve(config(BOTH, "wide", f"{brought}:Counting"), FACTS, needs_stop=False)


@pytest.mark.parametrize(
    ("changes", "story"),
    [
        (
            {"members": {"now": {"live": "mian"}}},
            "live: there is no server 'mian'; did you mean 'main'?",
        ),
        ({"members": {"now": {"live": "rest"}}}, "live: server 'rest' does not learn"),
        ({"members": {"now": {"live": "rivals"}}}, "live: server 'rivals' does not learn"),
        (
            {"members": BOTH, "every": None},
            "the run keeps none; set checkpoint.keep_every_env_steps",
        ),
        (
            {"members": {"now": {"live": "main"}}, "agent": "wide"},
            "policy 'default' of checkpoint 'servers.main' observes shape (3,), but 'wide' "
            "observes shape (5,); is it the same task?",
        ),
        ({"members": {"now": OTHERS_POLICY}}, "has no policy 'other', only default"),
    ],
)
def test_members_that_do_not_fit_are_refused(changes: dict[str, Any], story: str) -> None:
    with pytest.raises(ConfigError) as refusal:
        resolve(config(**changes), FACTS, needs_stop=False)
    assert story in str(refusal.value)


def test_without_a_run_members_are_its_checkpoints(tmp_path: Path) -> None:
    for env_steps in (90, 100, 210, 305):
        place = tmp_path / "checkpoints" / str(env_steps)
        (place / "main").mkdir(parents=True)
        (place / MANIFEST_FILE).write_text("{}")
    (tmp_path / "checkpoints" / "last").symlink_to("305")
    given = config({**BOTH, "chance": {"algorithm": "RANDOM"}})
    folder = RunDirectory(tmp_path)
    rivals = given.servers["rivals"]
    found = FrozenRun(folder, given, True).settings_of(rivals)["members"]
    assert found.pop("chance") == {"algorithm": "RANDOM"}
    assert {name: (one["checkpoint"], one["weight"]) for name, one in found.items()} == {
        "now": (str(tmp_path / "checkpoints/last/main"), 1.0),
        "past@210": (str(tmp_path / "checkpoints/210/main"), 1.5),
        "past@305": (str(tmp_path / "checkpoints/305/main"), 1.5),
    }
    earlier = FrozenRun(folder, given, True, "210").settings_of(rivals)["members"]
    assert earlier.pop("chance")
    assert [one["checkpoint"] for one in earlier.values()] == [
        str(tmp_path / f"checkpoints/{env_steps}/main") for env_steps in (210, 100, 210)
    ]


# --- drawn as a game is solved ----------------------------------------------------------------

HAND = "tests.servers.fixed_policies.test_fixed_policies:make_constant"
HANDS = ("rock", "paper", "scissors")
ROCK_PAPER_SCISSORS = [[0, -1, 1], [1, 0, -1], [-1, 1, 0]]
DOMINATED = [[1, -1], [-2, -2], [-1, 1]]
"""The second hand loses to all others."""
ROLES = {"main": ["a"], "rivals": ["b"]}
Written = Callable[..., Path]


def hand(action: int, **more: Any) -> dict[str, Any]:
    return {"algorithm": "SCRIPTED", "policy": HAND, "kwargs": {"action": action}, **more}


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Written:
    """Gives a function that writes games as `muxrl compare` does.

    They are zero-sum unless the second player's payoffs are given.
    """

    def write(payoffs: Any, second: Any = None, names: Sequence[str] = HANDS, **more: Any) -> Path:
        first = np.asarray(payoffs, float)  # by the choices of "b", then of "a"
        second = -first if second is None else np.asarray(second, float)
        others = [f"other {j}" for j in range(first.shape[1])]
        rows = []
        for (i, j), value in np.ndenumerate(first):
            own = {"player": names[i], "others": others[j], "return": value}
            met = {"player": others[j], "others": names[i], "return": second[i, j]}
            rows += [{"role": "rivals", **own}, {"role": "main", **met}]
        served = [{"policy": HAND, "kwargs": {"action": i}} for i in range(len(names))]
        table = {
            "simulation": {"env": "gymnasium:CartPole-v1", "kwargs": {}},
            "roles": ROLES,
            "players": {
                "main": [],
                "rivals": [
                    {"player": name, "algorithm": "SCRIPTED", "settings": settings}
                    for name, settings in zip(names, served, strict=True)
                ],
            },
            "tables": {"payoffs": rows},
            **more,
        }
        folder = tmp_path_factory.mktemp("games")
        (folder / "comparison.json").write_text(json.dumps(table))
        return folder

    return write


def drawn(games: Path, members: dict[str, Any] | None = None, draw: str = "nash") -> Any:
    """Returns the experiment with a pool that is drawn by the solution of these games."""
    asked = config(members or {name: hand(i) for i, name in enumerate(HANDS)})
    asked.servers["rivals"].settings |= {"draw": draw, "games": str(games)}
    return resolve(asked, FACTS, needs_stop=False)


def weights(experiment: Any) -> dict[str, float]:
    members = experiment.servers["rivals"].settings["members"]
    return {name: member["weight"] for name, member in members.items()}


@pytest.mark.parametrize("draw", ["nash", "alpha_rank"])
def test_a_pool_is_drawn_as_its_games_are_solved(written: Written, draw: str) -> None:
    if draw == "alpha_rank":
        pytest.importorskip("open_spiel")
    found = weights(drawn(written(ROCK_PAPER_SCISSORS), draw=draw))
    assert found == pytest.approx(dict.fromkeys(HANDS, 1.0), abs=1e-5)
    found = weights(drawn(written(DOMINATED), draw=draw))
    assert ("paper" in found) == (draw == "alpha_rank")  # alpha-rank has noise
    expected = {"rock": 1.5, "paper": 0.0, "scissors": 1.5}
    assert {"paper": 0.0, **found} == pytest.approx(expected, abs=0.01)


@given(st.lists(st.lists(st.integers(-5, 5), min_size=3, max_size=3), min_size=3, max_size=3))
def test_a_solution_s_weights_sum_to_its_members_and_secure_the_game_s_value(
    written: Written, payoffs: list[list[int]]
) -> None:
    found = weights(drawn(written(payoffs)))
    assert sum(found.values()) == pytest.approx(3)
    assert min(found.values()) > 0
    mixed = np.array([found.get(name, 0.0) / 3 for name in HANDS])
    table = np.array(payoffs, float)
    # As much as the best single member secures.
    assert (mixed @ table).min() >= table.min(axis=1).max() - 1e-4


def test_members_of_one_player_share_its_weight_others_keep_their_own(written: Written) -> None:
    games = written(ROCK_PAPER_SCISSORS)
    members = {
        **{name: hand(i) for i, name in enumerate(HANDS)},
        "rock-again": hand(0),
        "now": {"live": "main", "weight": 2},
        "chance": {"algorithm": "RANDOM", "weight": 0.5},
    }
    found = weights(drawn(games, members))
    assert (found.pop("now"), found.pop("chance")) == (2, 0.5)
    thirds = {"rock": 2 / 3, "rock-again": 2 / 3, "paper": 4 / 3, "scissors": 4 / 3}
    assert found == pytest.approx(thirds, abs=1e-4)


def test_a_resumed_run_keeps_its_weights_without_the_games(written: Written) -> None:
    games = written(DOMINATED)
    first = drawn(games)
    (games / "comparison.json").unlink()
    again = resolve(from_yaml(to_yaml(first.config), "config.yaml"), FACTS, needs_stop=False)
    assert again.servers == first.servers
    assert "paper" not in weights(again)
    assert again.config.servers["rivals"].settings["games"] == str(games)


@pytest.mark.parametrize(
    ("changes", "members", "story"),
    [
        ({}, {"rock": hand(0), "well": hand(3)}, "has no games of well as rivals, with the same"),
        ({}, {"now": {"live": "main"}}, "no games of now as rivals"),
        ({}, {"chance": {"algorithm": "RANDOM"}}, "it has rock, paper, scissors"),
        ({"players": {}}, None, "has no comparison.json with games between players; 'muxrl"),
        (
            {"simulation": {"env": "gymnasium:CartPole-v1", "kwargs": {"sutton": True}}},
            None,
            "played in {'env': 'gymnasium:CartPole-v1', 'kwargs': {'sutton': True}}, not in {'env'",
        ),
        ({"roles": {**ROLES, "rivals": ["wide"]}}, None, "of two roles, one of them b; those in"),
        ({"roles": {**ROLES, "rest": ["wide"]}}, None, "have main: a; rivals: b; rest: wide"),
        (
            {"second": ROCK_PAPER_SCISSORS},
            None,
            "no constant sum, which nash needs; try alpha_rank",
        ),
    ],
)
def test_games_that_give_no_weights_are_refused(
    written: Written, changes: dict[str, Any], members: Any, story: str
) -> None:
    with pytest.raises(ConfigError, match=r"server 'rivals': POOL's draw nash: ") as refusal:
        drawn(written(ROCK_PAPER_SCISSORS, **changes), members)
    assert story in str(refusal.value)
