"""The simulation of docs/events.md: which taxis are asked when, and what the server counts."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.compliance.real_servers import make_plan, running

from muxrl.client import PolicyClient
from muxrl.experiments.examples.taxis.taxis import DAY_MIN, TAXIS, play
from muxrl.orchestrator.cli import main
from muxrl.protocol.spaces import Box
from muxrl.servers.server import PolicyServer

CONFIG = Path(__file__).parents[2] / "experiments" / "examples" / "taxis" / "taxis.yaml"
STATION_MIN = 6.0


def make_driver(agent_id: str, observation_space: Any, action_space: Any, seed: int) -> Any:
    """Returns a scripted policy: taxi_0 goes to the airport, the others to the station."""
    return lambda observation: int(agent_id == "taxi_0")


@pytest.fixture
def server() -> Iterator[PolicyServer]:
    settings = {"policy": f"{__name__}:make_driver"}
    plan = make_plan("SCRIPTED", dict.fromkeys(TAXIS, Box((2,))), settings=settings)
    with running(plan) as server:
        yield server


def test_only_free_taxis_are_asked_and_all_are_paid(server: PolicyServer) -> None:
    with PolicyClient(server.address) as client:
        num_asked, earned = play(client, first_plane_min=0.0)
        assert client.num_mismatches == 0, "the server's counts are the client's"
    # Taxis at the station are free every 6 minutes, those at the airport every 20: all at once only
    # at 0 and at 60 minutes.
    station, airport = DAY_MIN / STATION_MIN, DAY_MIN / 20.0
    assert earned == {"taxi_0": 20.0 * airport, "taxi_1": 4.0 * station, "taxi_2": 4.0 * station}
    status = server.status()
    assert num_asked == status.num_env_steps == station + airport - 2
    assert status.num_agent_steps == 2 * station + airport


def test_the_config_is_one(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check", str(CONFIG)]) == 0
    assert "taxi_2" in capsys.readouterr().out
