"""The traffic signals of `experiments/examples/signals`: all tests but one run without SUMO.

That one is skipped unless the example's README was followed: SUMO is a download of 290 MB.
"""

from __future__ import annotations

import ast
import importlib
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType, SimpleNamespace

import numpy as np
import pytest
from gymnasium.spaces import Box, Discrete
from omegaconf import OmegaConf
from pettingzoo import ParallelEnv
from tests.compliance.gateways import gateway_to
from tests.compliance.real_servers import make_plan, running

from muxrl.client.adapters import adapt
from muxrl.orchestrator.cli import main
from muxrl.protocol.spaces import Box as PlainBox
from muxrl.protocol.spaces import Discrete as PlainDiscrete

ROOT = Path(__file__).parents[2]
SIGNALS = ROOT / "experiments" / "examples" / "signals"
SUMO_PYTHON = ROOT / "build" / "sumo" / "bin" / "python"
CROSSING = [
    [["west_0", "east_0", ":0"]],
    [["west_0", "east_1", ":1"]],
    [["south_0", "north_0", ":2"]],
    [["west_1", "north_0", ":3"]],
]
"""Four movements of three incoming lanes: west ahead into either lane, south ahead, west's turn."""


@pytest.fixture
def baselines(monkeypatch: pytest.MonkeyPatch) -> Iterator[ModuleType]:
    """Gives the program's module, which finds `signals` beside itself, as when it is started."""
    monkeypatch.syspath_prepend(str(SIGNALS))
    yield importlib.import_module("baselines")
    for name in ("baselines", "signals"):
        sys.modules.pop(name, None)


class Crossing(ParallelEnv):
    """Stands in for sumo-rl's environment: two decisions of one signal."""

    metadata = {"name": "crossing"}
    possible_agents = ["A0"]

    def __init__(self) -> None:
        self.num_vehicles = {"west_0": 5, "west_1": 0, "south_0": 4, "east_0": 0, "east_1": 2,
                             "north_0": 1}  # fmt: skip
        trips = {"device.tripinfo.count": "158", "device.tripinfo.timeLoss": "89.95"}
        sumo = SimpleNamespace(
            simulation=SimpleNamespace(getParameter=lambda of, key: trips[key]),
            trafficlight=SimpleNamespace(getControlledLinks=lambda agent: CROSSING),
            lane=SimpleNamespace(getLastStepVehicleNumber=self.num_vehicles.__getitem__),
        )
        self.signal = SimpleNamespace(
            sumo=sumo,
            lanes=["west_0", "west_1", "south_0"],
            out_lanes=["east_0", "east_1", "north_0"],
            green_phases=[SimpleNamespace(state=state) for state in ("rrGr", "GGrr", "rrrG")],
            green_phase=0,
        )
        self.env = SimpleNamespace(sumo=sumo, traffic_signals={"A0": self.signal})

    def observation_space(self, agent: str) -> Box:
        return Box(0.0, 1.0, (33,))

    def action_space(self, agent: str) -> Discrete:
        return Discrete(3)

    def reset(self, seed: int | None = None, options: dict | None = None) -> tuple[dict, dict]:
        self.agents, self.played = ["A0"], []
        return {"A0": np.zeros(33, np.float32)}, {"A0": {}}

    def step(self, actions: dict[str, int]) -> tuple[dict, dict, dict, dict, dict]:
        self.played.append(actions["A0"])
        is_over = len(self.played) == 2
        self.agents = [] if is_over else ["A0"]
        told = {"system_mean_waiting_time": 2.0 * len(self.played)}
        seen = {"A0": np.zeros(33, np.float32)}
        return seen, {"A0": -3.0}, {"A0": False}, {"A0": is_over}, {"A0": told}


def test_a_pressure_is_the_vehicles_before_the_green_lights_less_those_behind_them(
    baselines: ModuleType,
) -> None:
    num_vehicles = Crossing().num_vehicles
    # West's lane counts once; the vehicles behind it are averaged over the two lanes it leads to.
    assert baselines.pressures(["GGrr", "rrgr", "rrrG", "ssyr"], CROSSING, num_vehicles) == [
        5 - (0 + 2) / 2, 4 - 1, 0 - 1, 0
    ]  # fmt: skip


def test_max_pressure_chooses_the_highest_and_stays_among_equals(baselines: ModuleType) -> None:
    env = Crossing()
    grid = baselines.signals.Measured(env)
    assert baselines.max_pressure(grid) == {"A0": 1}
    env.num_vehicles["west_0"] = 4  # a pressure of 3, equal to that of the green movement
    assert baselines.max_pressure(grid) == {"A0": 0}


def test_metrics_are_of_the_whole_grid_and_of_an_episode(baselines: ModuleType) -> None:
    env = baselines.signals.Measured(Crossing())
    assert baselines.play(env, lambda env: {"A0": 2}, seed=0) == {
        "wait_s": 3.0,
        "arrived": 158.0,
        "time_loss_s": 89.95,
    }
    assert env.unwrapped.played == [2, 2]


def test_the_grid_plays_as_a_simulation_of_muxrl(baselines: ModuleType) -> None:
    simulation = adapt(baselines.signals.Measured(Crossing()))
    simulation.reset(seed=1)
    assert simulation.step({"A0": 0}).infos["__common__"] == {"wait_s": 2.0}
    last = simulation.step({"A0": 0})
    assert last.truncations == {"A0": True}
    assert not last.terminations


def test_the_config_is_one(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check", str(SIGNALS / "signals.yaml")]) == 0
    assert "D{0..3}" in capsys.readouterr().out


def test_learned_policies_are_played_by_the_same_agents(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RUN", "runs/signals")
    trained, played = (OmegaConf.load(SIGNALS / f"{name}.yaml") for name in ("signals", "play"))
    assert played.simulation.agents == trained.simulation.agents
    assert played.servers.keys() == trained.servers.keys()
    for server_id, server in played.servers.items():
        assert server.algorithm == "FROZEN"
        assert server.settings.checkpoint == f"runs/signals/checkpoints/last/{server_id}"
        for key in ("agents", "groups"):
            assert server.get(key) == trained.servers[server_id].get(key)


@pytest.mark.skipif(not SUMO_PYTHON.exists(), reason="there is no SUMO in build/sumo")
def test_an_episode_in_sumo() -> None:
    spaces = PlainBox((33,)), PlainDiscrete(8)
    agents = {f"{column}{row}": spaces for column in "ABCD" for row in range(4)}
    command = [SUMO_PYTHON, SIGNALS / "signals.py", "--first-seed", "7", "--num-seconds", "300"]
    own = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    with (
        running(make_plan("RANDOM", agents)) as server,
        gateway_to(server, num_episodes=1) as gateway,
    ):
        done = subprocess.run(
            [*command, gateway.address], env=own, capture_output=True, text=True, timeout=60
        )
        counts = server.policies.store.counts
    assert (done.returncode, counts.num_episodes) == (0, 1), done.stderr
    assert counts.num_env_steps >= 60, "a decision every 5 s, and those of an episode cut short"
    lines = [line for line in done.stdout.splitlines() if line.startswith("seed ")]
    seed, _, metrics = lines[0].partition(": ")
    assert seed == "seed 7"
    seen = ast.literal_eval(metrics)
    assert seen["wait_s"] > 0
    assert seen["time_loss_s"] > 0
    assert seen["arrived"] > 0
