"""A pool's members from other servers of its run: judged before any process starts."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from muxrl.orchestrator.config import ExperimentConfig, SimulationConfig, resolve
from muxrl.orchestrator.config.facts import SimulationFacts
from muxrl.orchestrator.config.schema import CheckpointConfig
from muxrl.orchestrator.errors import ConfigError
from muxrl.orchestrator.evaluations.frozen import FrozenRun
from muxrl.orchestrator.records.run_directory import RunDirectory
from muxrl.protocol.spaces import Box, Discrete
from muxrl.servers.checkpoints.integrity import MANIFEST_FILE
from muxrl.servers.config import ServerConfig

FACTS = SimulationFacts(
    {
        "a": (Box((3,)), Discrete(3)),
        "b": (Box((3,)), Discrete(3)),
        "wide": (Box((5,)), Discrete(3)),
    }
)


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


BOTH = {"now": {"live": "main"}, "past": {"snapshots": "main", "last": 2, "weight": 3}}


def test_what_fits_is_brought_by_the_run() -> None:
    experiment = resolve(config(BOTH), FACTS, needs_stop=False)
    assert experiment.pool_sources == {"rivals": {"main": True}}
    assert experiment.fixed_servers == {"rivals", "rest"}
    only = resolve(config({"past": BOTH["past"]}), FACTS, needs_stop=False)
    assert only.pool_sources == {"rivals": {"main": False}}


def test_weights_of_a_trainer_of_one_s_own_are_brought_if_it_gives_them() -> None:
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
            "POOL's member 'now': live: there is no server 'mian'; did you mean 'main'?",
        ),
        ({"members": {"now": {"live": "rest"}}}, "live: server 'rest' does not learn"),
        ({"members": {"now": {"live": "rivals"}}}, "live: server 'rivals' does not learn"),
        ({"members": BOTH, "every": None}, "none are kept; set checkpoint.keep_every_env_steps"),
        (
            {"members": {"now": {"live": "main"}}, "agent": "wide"},
            "policy 'default' of checkpoint 'servers.main' observes shape (3,), but 'wide' "
            "observes shape (5,); is it the same task?",
        ),
        (
            {"members": {"now": {"live": "main", "policies": {"default": "other"}}}},
            "has no policy 'other', it has default",
        ),
    ],
)
def test_what_does_not_fit_is_refused(changes: dict[str, Any], story: str) -> None:
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
