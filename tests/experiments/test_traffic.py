"""The Java traffic of `experiments/examples/traffic`, on servers whose drivers keep their roads.

Travel times are known exactly: Pigou's and Braess's networks are textbook games.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.compliance.gateways import gateway_to
from tests.compliance.real_servers import make_plan, running

from muxrl.orchestrator.cli import main
from muxrl.protocol.spaces import Box, Discrete
from muxrl.servers.server import PolicyServer

ROOT = Path(__file__).parents[2]
TRAFFIC = ROOT / "experiments" / "examples" / "traffic"


def make_habit(
    agent_id: str, observation_space: Any, action_space: Any, seed: int, *, habits: dict[str, int]
) -> Callable[[Any], int]:
    """Returns a scripted policy that always takes the same route, or toll."""
    return lambda observation: habits[agent_id]


@pytest.fixture(scope="module")
def classes(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Gives the folder of the compiled program."""
    if shutil.which("javac") is None:
        pytest.skip("there is no javac here")
    folder = tmp_path_factory.mktemp("traffic")
    sources = [*(ROOT / "client" / "standalone").glob("*.java"), TRAFFIC / "Traffic.java"]
    command = ["javac", "--release", "11", "-Xlint:all", "-Werror", "-d", folder, *sources]
    subprocess.run(command, check=True, timeout=60)
    return folder


@pytest.fixture
def serve() -> Iterator[Callable[..., PolicyServer]]:
    """Gives a function that starts servers whose agents keep habits; stops them afterwards."""
    names = (f"s{i}" for i in itertools.count())

    def start(num_routes: int, habits: dict[str, int]) -> PolicyServer:
        agents = {
            agent: (Box((1 + num_routes,)), Discrete(5 if agent == "operator" else num_routes))
            for agent in habits
        }
        settings = {"policy": f"{__name__}:make_habit", "kwargs": {"habits": habits}}
        plan = make_plan("SCRIPTED", agents, server_id=next(names), settings=settings)
        return stack.enter_context(running(plan))

    with contextlib.ExitStack() as stack:
        yield start


def play(classes: Path, network: str, address: str) -> dict[str, Any]:
    """Returns the program's report of two episodes of ten mornings."""
    command = ["java", "-XX:TieredStopAtLevel=1", "-cp", classes, "Traffic", network, address, "2"]
    done = subprocess.run(command, check=True, capture_output=True, text=True, timeout=60)
    report = json.loads(done.stdout)
    assert isinstance(report, dict)
    assert report["episodes"] == 2
    return report


def drivers(*routes: int, name: str = "driver") -> dict[str, int]:
    return {f"{name}_{i}": route for i, route in enumerate(routes)}


@pytest.mark.parametrize(
    ("network", "routes", "mean_time"),
    [
        ("pigou", [0, 1] * 5, 0.75),  # the optimum
        ("braess", [0, 1, *[2] * 8], 18.2),  # the best equilibrium of ten drivers
    ],
)
def test_travel_times_are_those_of_the_textbook(
    classes: Path,
    serve: Callable[..., PolicyServer],
    network: str,
    routes: list[int],
    mean_time: float,
) -> None:
    num_routes = 2 if network == "pigou" else 3
    server = serve(num_routes, drivers(*routes))
    seen = play(classes, network, server.address)
    assert seen["mean_time"] == pytest.approx(mean_time)
    assert seen["routes"] == [20 * routes.count(route) for route in range(num_routes)]
    longest = {"pigou": 1.0, "braess": 20.0}[network]
    returns = server.policies.store.counts.recent_returns
    assert returns == pytest.approx([-10 * mean_time / longest] * 2)


def test_an_operator_and_drivers_of_two_servers_behind_a_gateway(
    classes: Path, serve: Callable[..., PolicyServer]
) -> None:
    north = serve(3, drivers(0, 0, 0, 0, 0, name="north"))
    south = serve(3, drivers(2, 2, 2, 2, 2, name="south"))
    operator = serve(3, {"operator": 2})  # a toll of 5
    with gateway_to(north, south, operator) as gateway:
        seen = play(classes, "braess", gateway.address)
    # All ten take the first narrow road, five each the wide road and the second narrow one.
    assert seen["mean_time"] == pytest.approx((5 * 20 + 5 * 15) / 10)
    assert seen["mean_toll"] == 5.0
    for server, of_a_morning in ((north, -20), (south, -(15 + 5)), (operator, -17.5)):
        counts = server.policies.store.counts
        assert counts.recent_returns == pytest.approx([10 * of_a_morning / 20] * 2)
        assert (counts.num_episodes, counts.num_env_steps) == (2, 20)


@pytest.mark.parametrize("config", sorted(TRAFFIC.glob("*.yaml")), ids=lambda path: path.stem)
def test_the_configs_are_checked(config: Path) -> None:
    assert main(["check", str(config)]) == 0
