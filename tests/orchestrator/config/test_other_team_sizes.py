"""A policy of a team of three acts for one of six, if it reads nothing of the team."""

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
    (folder / ABOUT_FILE).write_text(json.dumps(note))
    return str(folder)


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
