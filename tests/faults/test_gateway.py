"""An external simulation plays through the gateway of a run."""

from __future__ import annotations

import json
import os
import signal
import socket
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.client.scripted_servers import CountingSimulation
from tests.faults.runs import (
    Run,
    assert_goes_forward,
    assert_readable,
    lasting,
    num_restarts,
    rows,
    small_server,
    wait_for_checkpoint,
)
from tests.faults.started import PATIENCE_S, PAUSE_S, ROOT

from muxrl.client import PolicyClient
from muxrl.client.env_loop import EnvLoop

pytestmark = [pytest.mark.faults, pytest.mark.timeout(600)]


def external(**changes: Any) -> dict[str, Any]:
    """Returns an experiment whose simulation is started by somebody else."""
    spaces = {
        "observation_space": {"type": "box", "shape": [1]},
        "action_space": {"type": "discrete", "n": 9},
    }
    experiment = lasting(**changes)
    experiment["simulation"] = {
        "env": "external",
        "agents": {"a": spaces, "b": spaces},
        "restarts": {"max": 3},
    }
    experiment["servers"] = {"ppo": small_server("PPO", "a"), "a2c": small_server("A2C", "b")}
    return experiment


def test_an_external_run_is_evaluated_survives_its_gateway_and_a_server_and_says_when_it_is_over(
    launch: Callable[..., Run],
) -> None:
    evaluation = {"interval_env_steps": 1_000, "num_episodes": 3, "final_num_episodes": 5,
                  "should_compare_untrained": True}  # fmt: skip
    run = launch(external(stop={"env_steps": 5_000}, evaluation=evaluation))
    run.wait_for("the gateway", (run.folder / "gateway.json").exists)
    address = json.loads((run.folder / "gateway.json").read_text())["address"]
    has_ended_well = threading.Event()

    def simulate() -> None:
        with PolicyClient(address, patience_s=PATIENCE_S) as client:
            simulations = [CountingSimulation(num_steps=10, pause_s=PAUSE_S) for _ in range(2)]
            EnvLoop(simulations, client, on_lost="restart").run()
            has_ended_well.set()

    thread = threading.Thread(target=simulate, daemon=True)
    thread.start()
    run.wait_for_learning()
    run.wait_for("steps", lambda: rows(run, "joint")[-1]["env_steps"] > 1_500)
    assert num_restarts(address) == 0.0
    # The gateway waits for the server, so they must be restarted at the same time.
    for name in ("a2c", "gateway"):
        os.kill(run.pid_of(name), signal.SIGKILL)
    run.wait_for("its restart in what Prometheus reads", lambda: num_restarts(address) == 1.0)
    assert run.wait(2 * PATIENCE_S) == 0, run.output
    thread.join(20.0)
    assert has_ended_well.is_set(), "the loop ended by itself: it was told that the run is over"

    assert_readable(run)
    assert_goes_forward(run)
    run.assert_nothing_is_left()
    summary = json.loads((run.folder / "summary.json").read_text())
    assert summary["restarted_at"].keys() == {"a2c", "gateway"}
    assert f"gateway to all of them: http://{address}" in run.output
    assert f"it is started again at {address}" in run.output
    joint = rows(run, "joint")[-1]
    assert joint["num_mismatches"] == 0
    assert joint["env_steps"] >= 5_000
    assert joint["episode_return_mean"] == {"a": 5.0, "b": 15.0}

    final = [row for row in rows(run, "evaluation") if row["is_final"]]
    assert [row["replaced"] for row in final] == [
        None, "a2c", "ppo", "a2c:untrained", "ppo:untrained"
    ]  # fmt: skip
    assert all(row["returns"] == {"a": [5.0] * 5, "b": [15.0] * 5} for row in final)
    earlier = [row for row in rows(run, "evaluation") if not row["is_final"]]
    assert earlier
    assert all(len(row["returns"]["a"]) == 3 for row in earlier)


LOOP = f"""
import sys
from pathlib import Path
sys.path.insert(0, {str(ROOT)!r})
from tests.client.scripted_servers import CountingSimulation
from muxrl.client import PolicyClient
from muxrl.client.env_loop import EnvLoop
token = Path(sys.argv[2]).read_text() if sys.argv[2:] else ""
with PolicyClient(sys.argv[1], token=token, patience_s=100.0) as client:
    EnvLoop([CountingSimulation(num_steps=10, pause_s=0.002)], client, on_lost="restart").run()
print(*sys.argv[3:], "has ended well")
"""
"""A simulation's program; its arguments: the gateway, the token's file, the simulation's number."""


@pytest.mark.night  # by day: test_resume_faults.py
def test_all_of_an_external_run_is_killed_and_it_is_resumed(
    launch_alone: Callable[..., Run], start: Callable[..., Run], tmp_path: Path
) -> None:
    """The run starts one simulation, and later again; another one, outside, plays throughout."""
    (tmp_path / "simulation.py").write_text(LOOP)
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    address = f"127.0.0.1:{port}"
    token = "nobody-guesses-this"
    (tmp_path / "token").write_text(token)
    experiment = external(checkpoint={"interval_env_steps": 500, "interval_s": None})
    experiment["evaluation"] = {"final_num_episodes": 2}
    experiment["simulation"] |= {
        "gateway": {"port": port, "token": token},
        "command": [sys.executable, str(tmp_path / "simulation.py"), "{gateway}",
                    str(tmp_path / "token"), "{index}"],
    }  # fmt: skip
    run = launch_alone(experiment)
    run.wait_for("the gateway", (run.folder / "gateway.json").exists)
    outside: list[EnvLoop] = []

    def simulate() -> None:
        with PolicyClient(address, token=token, patience_s=PATIENCE_S) as client:
            simulation = CountingSimulation(num_steps=10, pause_s=PAUSE_S)
            loop = EnvLoop([simulation], client, on_lost="restart")
            outside.append(loop)
            loop.run()
            # The loop has ended by itself: the gateway told it that the run is over.
            outside.remove(loop)

    thread = threading.Thread(target=simulate, daemon=True)
    thread.start()
    wait_for_checkpoint(run)
    os.kill(run.popen.pid, signal.SIGKILL)
    run.kill()
    num_played = outside[0].num_episodes
    before = rows(run, "joint")[-1]["env_steps"]
    assert token not in (run.folder / "config.yaml").read_text()

    arguments = ["launch", "--resume", str(run.folder), f"stop.env_steps={before + 3_000}",
                 f"simulation.gateway.token={token}", "--no-progress"]  # fmt: skip
    resumed = start(*arguments)
    (loop,) = outside
    assert resumed.wait(2 * PATIENCE_S) == 0, resumed.output
    thread.join(20.0)
    assert not outside
    assert loop.num_episodes > num_played + 20
    assert_readable(resumed)
    assert_goes_forward(resumed)
    resumed.assert_nothing_is_left()
    assert "0 has ended well" in (run.folder / "logs/simulation-0.log").read_text()
    joint = rows(run, "joint")
    assert joint[-1]["env_steps"] >= before + 3_000
    assert [row["resumed_from"] for row in joint if "resumed_from" in row]
    assert joint[-1]["num_mismatches"] == 0
    assert joint[-1]["episode_return_mean"] == {"a": 5.0, "b": 15.0}
    final = [row for row in rows(run, "evaluation") if row["is_final"]]
    assert [row["replaced"] for row in final] == [None, "a2c", "ppo"]
