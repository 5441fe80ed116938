"""A policy of a team of three, for one of six: what acts with it may, what learns on may not."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from muxrl.orchestrator.config import ExperimentConfig, SimulationConfig, SimulationFacts
from muxrl.orchestrator.config.resolve import resolve
from muxrl.orchestrator.errors import ConfigError
from muxrl.protocol.spaces import Box, Discrete
from muxrl.servers.checkpoints.checkpoint import ABOUT_FILE, note_of
from muxrl.servers.config import ServerConfig, ServerPlan

ALL = {"all": ["car_*"]}


def plan(num: int, algorithm: str, **server: Any) -> ServerPlan:
    facts = SimulationFacts({f"car_{i}": (Box((3,)), Discrete(3)) for i in range(num)})
    servers = {"team": ServerConfig(algorithm, ["car_*"], **server)}
    config = ExperimentConfig("x", simulation=SimulationConfig("some:env"), servers=servers)
    return resolve(config, facts, needs_stop=False).servers["team"]


def saved(folder: Path, algorithm: str, **server: Any) -> str:
    note = {"format": 1, **note_of(plan(3, algorithm, **server)), "env_steps": 400}
    (folder / "learner_group/learner/rl_module/default").mkdir(parents=True, exist_ok=True)
    (folder / ABOUT_FILE).write_text(json.dumps(note))
    return str(folder)


@pytest.mark.parametrize("algorithm", ["MAPPO", "QMIX"])
def test_learning_on_with_another_team_is_refused_by_name(algorithm: str, tmp_path: Path) -> None:
    path = saved(tmp_path, algorithm, groups=ALL)
    assert plan(3, algorithm, initialize_from=path, groups=ALL).initialize_from == path
    with pytest.raises(ConfigError) as caught:
        plan(6, algorithm, initialize_from=path, groups=ALL)
    (problem,) = caught.value.problems
    told = f"policy 'default' of '{path}' was trained with 3 agents, and the server has 6; in its"
    assert problem.startswith(f"server 'team': initialize_from: {told}")
    does_actor_fit = algorithm == "MAPPO"  # QMIX's members read who of the team they are
    assert problem.endswith("here; its actor fits, so set initialize_only: actor") == does_actor_fit
    if does_actor_fit:
        plan(6, algorithm, initialize_from=path, groups=ALL, initialize_only="actor")


@pytest.mark.parametrize("changed", [{"settings": {"agent": "mlp"}}, {"groups": {}}])
def test_another_network_of_as_many_agents_is_no_other_team(
    changed: dict[str, Any], tmp_path: Path
) -> None:
    path = saved(tmp_path, "QMIX", groups=ALL)
    with pytest.raises(ConfigError, match=r"has another network, since its run had other settin"):
        plan(3, "QMIX", initialize_from=path, **{"groups": ALL, **changed})


@pytest.mark.parametrize("settings", [{}, {"agent_specific_state": False}])
def test_frozen_acts_for_more_agents_where_the_actor_reads_no_more(
    settings: dict[str, Any], tmp_path: Path
) -> None:
    for groups in ({}, ALL):
        path = saved(tmp_path, "MAPPO", settings=settings, groups=groups)
        assert len(plan(6, "FROZEN", settings={"checkpoint": path}).agents) == 6


@pytest.mark.parametrize(
    ("algorithm", "settings"), [("MAPPO", {"obs_agent_id": True}), ("QMIX", {})]
)
def test_frozen_does_not_where_it_reads_the_team(
    algorithm: str, settings: dict[str, Any], tmp_path: Path
) -> None:
    path = saved(tmp_path, algorithm, settings=settings, groups=ALL)
    with pytest.raises(ConfigError, match="policy 'default' of checkpoint"):
        plan(6, "FROZEN", settings={"checkpoint": path}, groups=ALL)
