"""One process of a run dies or stops, and the others go on."""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Callable

import pytest
import requests
from benchmarks.soak.agreement import Moment, agreement
from tests.faults.runs import (
    REPORT_S,
    Run,
    assert_goes_forward,
    assert_readable,
    end_well,
    fail,
    lasting,
    rows,
    slow_to_save,
    wait_for_checkpoint,
    wait_until_it_goes_on,
)
from tests.faults.started import PATIENCE_S

from muxrl.orchestrator.launch.resuming import find_checkpoint
from muxrl.orchestrator.records.run_directory import RunDirectory
from muxrl.orchestrator.storage.checkpoints import CheckpointFolder

pytestmark = [pytest.mark.faults, pytest.mark.timeout(600)]


def stop_in_mid_episode(run: Run, name: str) -> int:
    """Stops a simulation (SIGSTOP) while each server has one episode of it open; returns its pid.

    Right after a checkpoint the simulation may be between two episodes.
    """
    addresses = json.loads((run.folder / "servers.json").read_text()).values()
    pid = run.pid_of(name)

    def is_in_mid_episode() -> bool:
        os.kill(pid, signal.SIGSTOP)
        time.sleep(0.1)  # lets the servers take in what it has sent
        statuses = [requests.get(f"http://{a}/v1/status", timeout=PATIENCE_S) for a in addresses]
        # The status leaves out numbers that are 0.
        if all(status.json().get("num_open_episodes", 0) == 1 for status in statuses):
            return True
        os.kill(pid, signal.SIGCONT)
        return False

    run.wait_for("the middle of an episode", is_in_mid_episode)
    return pid


def num_closed(run: Run, server_id: str) -> int:
    """Returns how often a server's log reports the closed episode of a lost simulation."""
    log = (run.folder / "logs" / f"{server_id}.log").read_text()
    return log.count("1 episodes closed as truncated: their simulation was lost")


def test_a_server_and_then_a_simulation_that_are_killed_go_on(launch: Callable[..., Run]) -> None:
    """The server goes on from its checkpoint."""
    run = wait_for_checkpoint(launch(lasting()))
    address = json.loads((run.folder / "servers.json").read_text())
    simulation = stop_in_mid_episode(run, "simulation-0")
    os.kill(run.pid_of("a2c"), signal.SIGKILL)
    os.kill(simulation, signal.SIGCONT)
    wait_until_it_goes_on(run, "a2c")
    at_a_lost_server = {name: num_closed(run, name) for name in ("ppo", "a2c")}
    os.kill(stop_in_mid_episode(run, "simulation-0"), signal.SIGKILL)
    wait_until_it_goes_on(run, "simulation-0")
    summary = end_well(run)
    for name, num in at_a_lost_server.items():
        assert num_closed(run, name) == num + 1
    assert summary["restarted_at"].keys() == {"a2c", "simulation-0"}
    assert summary["num_lost_episodes"] == 2
    assert "a2c was lost and started again 1×" in (run.folder / "summary.md").read_text()
    status = json.loads((run.folder / "status.json").read_text())
    assert status["num_restarts"] == {"a2c": 1, "simulation-0": 1}
    assert_goes_forward(run)
    assert json.loads((run.folder / "servers.json").read_text()) == address
    assert "it is started again from its checkpoint at " in run.output
    # A lost learner misses little, as its checkpoint is at most a second old. Iterations are
    # compared: a row may count a step of the next batch.
    ppo, a2c = (rows(run, name)[-1]["iteration"] for name in ("ppo", "a2c"))
    assert 0.5 * ppo < a2c <= ppo


def test_counts_of_servers_agree_if_the_simulation_infers_locally(
    launch: Callable[..., Run],
) -> None:
    """Counts agree in checkpoints in mid-episode, too, and if a server is killed between two."""
    experiment = lasting(checkpoint={"interval_s": 1, "keep_last": 1_000, "hold_s": 0.001})
    experiment["simulation"]["inference_mode"] = {"ppo": "local", "a2c": "local"}
    run = wait_for_checkpoint(launch(experiment))
    os.kill(run.pid_of("a2c"), signal.SIGKILL)
    wait_until_it_goes_on(run, "a2c")
    checkpoints = CheckpointFolder(run.folder / "checkpoints")
    num_before = len(checkpoints.env_steps)
    run.wait_for("checkpoints", lambda: len(checkpoints.env_steps) > num_before + 2)
    summary = end_well(run)
    assert summary["num_lost_episodes"] == 1
    places = sorted((run.folder / "checkpoints").glob("[0-9]*"), key=lambda place: int(place.name))
    moments = [Moment.read(place) for place in places]
    found = agreement(moments, num_envs=1)
    assert found.problems == [], (moments, run.output)
    assert found.num_exact > 0
    assert found.num_bounded == 1
    joint = rows(run, "joint")[-1]
    assert (joint["num_mismatches"], joint.get("num_lost_steps", 0) <= 256) == (0, True)
    assert rows(run, "ppo")[-1]["policy_lag_max"] <= 1


def test_others_learn_beside_random_agents_while_a_server_is_lost(
    launch: Callable[..., Run],
) -> None:
    experiment = lasting(timeouts={"report_s": REPORT_S})
    experiment["servers"]["a2c"]["on_server_loss"] = "random"
    run = wait_for_checkpoint(launch(experiment))
    os.kill(run.pid_of("a2c"), signal.SIGSTOP)
    wait_until_it_goes_on(run, "a2c")
    restarted = rows(run, "a2c")[-1]["env_steps"]
    run.wait_for("learning of a2c", lambda: rows(run, "a2c")[-1]["env_steps"] > restarted + 500)
    summary = end_well(run)
    assert f"did not answer for {REPORT_S} s (timeouts.report_s" in run.output
    assert_goes_forward(run)
    last = rows(run, "joint")[-1]
    num_random = last["num_random_episodes"]["a2c"]
    assert last["num_random_episodes"].keys() == {"a2c"}
    assert num_random < last["episodes"]
    # It was stopped until it counted as lost, and then had to start; the other one learned on.
    assert num_random >= 5
    assert rows(run, "ppo")[-1]["env_steps"] > rows(run, "a2c")[-1]["env_steps"] + 400
    assert last["num_mismatches"] == 0
    assert f"agents of a2c acted at random in {num_random} training episodes" in "".join(
        summary["notes"]
    )
    # It learns only from its own actions: none of its episodes has random ones. The last rows of
    # the two files are not of the same moment.
    own, all_of_them = (rows(run, name)[-1]["episodes"] for name in ("a2c", "ppo"))
    assert own <= all_of_them - num_random + 1


@pytest.mark.night  # by day: a server that has a checkpoint
def test_a_server_begins_from_scratch_where_it_has_no_checkpoint(
    launch: Callable[..., Run],
) -> None:
    run = launch(lasting(checkpoint={"interval_s": None}, stop={"env_steps": 4_000}))
    run.wait_for_learning()
    os.kill(run.pid_of("ppo"), signal.SIGKILL)
    assert run.wait(PATIENCE_S) == 0, run.output
    assert "it is started again from scratch: it has no checkpoint" in run.output
    assert_readable(run)
    assert_goes_forward(run)
    run.assert_nothing_is_left()


def test_a_server_that_is_lost_too_often_ends_the_run_and_keeps_the_checkpoint(
    launch: Callable[..., Run],
) -> None:
    experiment = lasting()
    experiment["servers"]["a2c"]["restarts"] = {"max": 1}
    run = wait_for_checkpoint(launch(experiment))
    os.kill(run.pid_of("a2c"), signal.SIGKILL)
    wait_until_it_goes_on(run, "a2c")
    pid = run.pid_of("a2c")
    newest = CheckpointFolder(run.folder / "checkpoints").env_steps[0]
    os.kill(pid, signal.SIGKILL)
    problem = fail(run)
    assert f"server 'a2c' (pid {pid}, A2C) died" in problem
    assert str(run.folder / "logs" / "a2c.log") in problem
    assert "started again once within 600 s, as often as servers.a2c.restarts.max" in problem
    place, manifest, damage = find_checkpoint(RunDirectory.open(run.folder))
    assert (damage, {*manifest.servers}) == ([], {"ppo", "a2c"})
    assert int(place.name) >= newest


def test_servers_killed_in_a_save_and_in_the_final_evaluation_go_on_and_so_does_the_evaluation(
    launch: Callable[..., Run],
) -> None:
    experiment = lasting(stop={"env_steps": 4_000}, evaluation={"final_num_episodes": 4})
    run = wait_for_checkpoint(launch(slow_to_save(experiment)))
    folder = run.folder / "checkpoints"
    pids = {name: run.pid_of(name) for name in ("ppo", "a2c")}

    def is_saving() -> bool:
        return any(not p.is_symlink() and not p.name.isdigit() for p in folder.iterdir())

    run.wait_for("a checkpoint that is being written", is_saving)
    os.kill(pids["a2c"], signal.SIGKILL)
    wait_until_it_goes_on(run, "a2c")
    status = run.folder / "status.json"
    run.wait_for(
        "the final evaluation", lambda: json.loads(status.read_text())["state"] == "evaluating"
    )
    os.kill(pids["ppo"], signal.SIGKILL)
    log = run.folder / "logs" / "evaluation.log"
    run.wait_for("the evaluation's process", lambda: run.writer_of(log) is not None)
    os.kill(run.pid_of("evaluation"), signal.SIGKILL)
    assert run.wait(2 * PATIENCE_S) == 0, run.output
    assert "the evaluation died" in run.output
    assert_readable(run)
    assert_goes_forward(run)
    run.assert_nothing_is_left()
    restarts = json.loads(status.read_text())["num_restarts"]
    assert restarts == {"a2c": 1, "ppo": 1, "evaluation": 1}
    last = [row for row in rows(run, "evaluation") if row["is_final"]]
    conditions = [None, "a2c", "ppo", "a2c:untrained", "ppo:untrained"]
    assert [row["replaced"] for row in last] == conditions
    assert all(len(row["returns"]["agent_0"]) == 4 for row in last)
    place, _, damage = find_checkpoint(RunDirectory.open(run.folder))
    assert (damage, {p.name for p in place.iterdir()}) == ([], {"ppo", "a2c", "manifest.json"})
