"""Mistakes in a league are named before anything starts."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from tests.orchestrator.commanded import Muxrl
from tests.orchestrator.league.conftest import EXPLOITED, tree

from muxrl.orchestrator.config import to_yaml
from muxrl.orchestrator.errors import ConfigError
from muxrl.orchestrator.league.load import load_league, load_resumed_league
from muxrl.orchestrator.league.population import make_league
from muxrl.orchestrator.league.runner import check_league
from muxrl.servers.fixed_policies import meta_game

pytestmark = pytest.mark.usefixtures("rllib")


@pytest.mark.parametrize(
    ("changed", "sentence"),
    [
        ({"members": {}}, "members: there are none"),
        ({"members": {"a": {"role": "lefft"}}}, "members.a.role: there is no role 'lefft'; did"),
        ({"members": {"a": {"role": "left", "meets": ["aa"]}}}, "members.a.meets: 'aa' is no"),
        ({"members": {"random": {"role": "left"}}}, "members.random: expected a name of up"),
        ({"members": {"a": {"role": "left", "first_round": 2}}}, "no member trains in round 1"),
        ({"members": {"a": {"role": "left", "server": {"algorithm": "RANDOM"}}}},
         "members.a.server: RANDOM does not learn"),
        ({"members": {"a": {"role": "left", "server": {"setings": {}}}}},
         "members.a.server.setings: unknown key"),
        ({"members": {"a": {"role": "left", "server": {"settings": {"lrr": 1.0}}}}},
         "PPO has no setting 'lrr'"),
        ({"members": {"a": {"role": "left", "every_rounds": 0}}}, "every_rounds: is 0"),
        ({"roles": {"left": ["left"]}, "members": {"a": {"role": "left"}}},
         "experiment.servers.right: learns, and would begin with new weights in each round"),
        ({"roles": {"all": ["*"]}, "members": {"a": {"role": "all"}}}, "there is only all"),
        ({"roles": {"left": ["lft"]}}, "roles.left: 'lft' matches no agent"),
        ({"interchangeable": ["left", "rigt"]}, "interchangeable: there is no role 'rigt'"),
        ({"rounds": 0}, "rounds: is 0"),
        ({"name": "a/b"}, "name: 'a/b' cannot name"),
        ({"experiment.checkpoint.at_end": False}, "experiment.checkpoint.at_end: is false"),
        ({"experiment.stop.env_steps": None}, "stop: "),
        ({"experiment.simulation.env": "external"}, "experiment.simulation.env: is external"),
        ({"opponents": {"draw": "best"}}, "opponents.draw"),
        ({"experiment.simulation.env": "muxrl.experiments.simulations.torus_chase:TorusChase",
          "roles": {"all": ["predator_*"], "one": ["prey_0"], "two": ["prey_1"]},
          "opponents": {"draw": "nash"}},
         "opponents.draw: nash needs a league of two roles, got"),
        ({"opponents": {"also": {"x": {"live": "nobody"}}}}, "nobody"),
        ({"exploit": {"role": "left"}}, "role 'left' has 1 members"),
        ({"exploit": {"parameters": EXPLOITED}}, "exploit.role: is missing"),
        ({"exploit": {"role": "left", "parameters": {"settings.lr": {"grid": [1.0]}}}},
         "exploit.parameters.settings.lr.grid: expected one of choice"),
        ({"exploit": {"role": "left", "parameters": {"settngs.lr": {"choice": [1.0]}}}},
         "exploit.parameters.settngs: unknown key"),
        ({"members": {"a": {"role": "left"},
                      "z": {"role": "left", "server": {"model": {"fcnet_hiddens": [8]}}}},
          "exploit": {"role": "left", "parameters": EXPLOITED}},
         "members 'a' and 'z' of role 'left' differ in model.fcnet_hiddens"),
    ],
)  # fmt: skip
def test_a_mistake_is_named(changed: dict[str, Any], sentence: str) -> None:
    below = {key: value for key, value in changed.items() if "." in key}
    above = {key: value for key, value in changed.items() if "." not in key}
    with pytest.raises(ConfigError) as caught:
        check_league(load_league(tree(**above), below))
    assert sentence in "\n".join(caught.value.problems)


def test_alpha_rank_without_open_spiel_is_refused_at_the_check(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(meta_game, "find_spec", lambda name: None)
    with pytest.raises(ConfigError, match=r"draw: alpha_rank: OpenSpiel is not .*muxrl\[open_sp"):
        check_league(load_league(tree(opponents={"draw": "alpha_rank"})))
    check_league(load_league(tree(opponents={"draw": "nash"})))


class Bandit:
    """A trainer without weights, with which no next round can begin."""

    batch_env_steps = 8

    def __init__(self, policy: Any) -> None:
        pass

    def act(self, rows: Any) -> Any:
        return [0] * len(rows)

    def learn(self, trajectories: Any) -> dict[str, float]:
        return {}


def test_a_member_that_cannot_begin_a_second_round_is_refused_before_the_first() -> None:
    own = {"algorithm": f"{Bandit.__module__}:Bandit", "settings": {}, "model": {}}
    members: dict[str, Any] = {"a": {"role": "left", "server": own}, "b": {"role": "right"}}
    with pytest.raises(ConfigError, match=r"members\.a: .*:Bandit needs weights\(\) and set_"):
        make_league(load_league(tree(members=members)))
    members["a"]["server"] = {
        "algorithm": "EXTERNAL",
        "command": ["mine"],
        "settings": {},
        "model": {},
    }
    assert make_league(load_league(tree(members=members))).training(2) == ["a", "b"]
    members["a"] |= {"server": own, "is_fresh": True}
    assert make_league(load_league(tree(members=members))).training(1) == ["a", "b"]


def test_settings_of_played_rounds_cannot_change(tmp_path: Path) -> None:
    file = tmp_path / "league.yaml"
    file.write_text(to_yaml(load_league(tree())))
    later = ["rounds=9", "max_concurrent=1", "opponents.draw=nash", "opponents.last=3"]
    assert load_resumed_league(file, later).rounds == 9
    with pytest.raises(
        ConfigError, match="rounds: is 1, but the league had 5; it can only be resumed with"
    ):
        load_resumed_league(file, ["rounds=1"])
    with pytest.raises(ConfigError, match=r"members\.a\.is_fresh, num_episodes: cannot change"):
        load_resumed_league(file, ["num_episodes=4", "members.a.is_fresh=true"])


def test_the_packaged_league_is_checked(muxrl: Muxrl) -> None:
    out = muxrl("check", "rivals", "rounds=2", "opponents={draw: nash}").out
    assert "learner" in out
    assert out.endswith(": muxrl league rivals rounds=2 'opponents={draw: nash}'\n")
    told = muxrl("launch", "rivals", code=2).err
    assert "this is a league; run it with 'muxrl league rivals'" in told
