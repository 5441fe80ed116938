"""One process of a run dies or stops, and the others go on."""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import signal
import threading
import time
from collections.abc import Callable
from typing import Any

import pytest
import requests
from benchmarks.soak.agreement import Moment, agreement
from tests.client.scripted_servers import CountingSimulation
from tests.faults.started import PATIENCE_S, PAUSE_S
from tests.faults.test_launch_faults import Run, assert_readable, config, launch, small_server

from muxrl.client import ClientError, MultiplexingClient
from muxrl.client.env_loop import EnvLoop
from muxrl.orchestrator.launch.resuming import find_checkpoint
from muxrl.orchestrator.records.run_directory import RunDirectory
from muxrl.orchestrator.storage.checkpoints import CheckpointFolder

__all__ = ["launch"]

pytestmark = [pytest.mark.faults, pytest.mark.timeout(600)]

REPORT_S = 10
"""After so long a process counts as silent: one that is only slow to start on a busy machine must
not."""


def lasting(fault: str | None = None, at_step: int = 150, **changes: Any) -> dict[str, Any]:
    """Returns an experiment whose processes may be started again, with a checkpoint a second."""
    return config(fault, at_step, max_restarts=3) | {"checkpoint": {"interval_s": 1}} | changes


def rows(run: Run, name: str) -> list[dict[str, Any]]:
    path = run.folder / "metrics" / f"{name}.jsonl"
    return [json.loads(row) for row in path.read_text().splitlines()]


def num_restarts(address: str) -> float | None:
    """Returns what a server or gateway says in ``GET /metrics``; None: it does not listen."""
    try:
        text = requests.get(f"http://{address}/metrics", timeout=PATIENCE_S).text
    except requests.ConnectionError:
        return None
    (line,) = (one for one in text.splitlines() if one.startswith("muxrl_restarts_total{"))
    return float(line.split()[-1])


def wait_for_checkpoint(run: Run) -> None:
    run.wait_for_learning()
    checkpoints = CheckpointFolder(run.folder / "checkpoints")
    run.wait_for("a checkpoint", lambda: bool(checkpoints.env_steps and checkpoints.env_steps[0]))


def stop_in_mid_episode(run: Run, name: str) -> int:
    """Stops a simulation (SIGSTOP) while every server has an episode of it open; returns its pid.

    After a checkpoint it may stand between two.
    """
    addresses = json.loads((run.folder / "servers.json").read_text()).values()
    pid = run.pid_of(name)

    def is_in_mid_episode() -> bool:
        os.kill(pid, signal.SIGSTOP)
        time.sleep(0.1)  # the servers take in what it has sent
        statuses = [requests.get(f"http://{a}/v1/status", timeout=PATIENCE_S) for a in addresses]
        # A number that is 0 is left out.
        if all(status.json().get("num_open_episodes", 0) == 1 for status in statuses):
            return True
        os.kill(pid, signal.SIGCONT)
        return False

    run.wait_for("the middle of an episode", is_in_mid_episode)
    return pid


def num_closed(run: Run, server_id: str) -> int:
    """Returns how often a server's log says that a lost simulation's one episode was closed."""
    log = (run.folder / "logs" / f"{server_id}.log").read_text()
    return log.count("1 episodes closed as truncated: their simulation was lost")


def wait_until_it_goes_on(run: Run, name: str) -> None:
    """Waits until env steps grow again after a process was started again."""

    def goes_on() -> bool:
        joint = rows(run, "joint")
        marks = [i for i, row in enumerate(joint) if name in row.get("restarted", ())]
        return bool(marks) and joint[-1]["env_steps"] > joint[marks[-1]]["env_steps"] + 500

    run.wait_for(f"steps after {name} was started again", goes_on)


def end_well(run: Run) -> dict[str, Any]:
    """Ends a run as its user may, checks what it leaves, and returns its summary."""
    run.interrupt()
    assert run.wait(PATIENCE_S) == 130, run.output
    assert "Traceback" not in run.output
    assert_readable(run)
    run.assert_nothing_is_left()
    place, _, damage = find_checkpoint(RunDirectory.open(run.folder))
    assert (damage, {p.name for p in place.iterdir()}) == ([], {"ppo", "a2c", "manifest.json"})
    summary: dict[str, Any] = json.loads((run.folder / "summary.json").read_text())
    return summary


def assert_goes_forward(run: Run) -> None:
    """Asserts that no file has two rows for one step, and that no iteration is missing."""
    joint = rows(run, "joint")
    assert [row["env_steps"] for row in joint] == sorted(row["env_steps"] for row in joint)
    assert [row["time_s"] for row in joint] == sorted({row["time_s"] for row in joint})
    for server_id in ("ppo", "a2c"):
        records = rows(run, server_id)
        assert [r["iteration"] for r in records] == list(range(1, len(records) + 1))
        assert [r["env_steps"] for r in records] == sorted({r["env_steps"] for r in records})


def test_a_server_and_then_a_simulation_that_are_killed_go_on(launch: Callable[..., Run]) -> None:
    """The server from its checkpoint."""
    run = launch(lasting())
    wait_for_checkpoint(run)
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
    # What a lost learner has missed is not much: it was begun again from a checkpoint of a second.
    # Iterations, since a row may count a step of the next batch.
    ppo, a2c = (rows(run, name)[-1]["iteration"] for name in ("ppo", "a2c"))
    assert 0.5 * ppo < a2c <= ppo


def test_counts_agree_where_simulations_act_locally(launch: Callable[..., Run]) -> None:
    """Also of checkpoints in mid-episode, and when a server was killed between two of them."""
    experiment = lasting(checkpoint={"interval_s": 1, "keep_last": 1_000, "hold_s": 0.001})
    experiment["simulation"]["inference_mode"] = {"ppo": "local", "a2c": "local"}
    run = launch(experiment)
    wait_for_checkpoint(run)
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


@pytest.mark.night  # by day: the next test
def test_a_server_that_is_stopped_is_killed_and_others_are_watched(
    launch: Callable[..., Run],
) -> None:
    run = launch(lasting(timeouts={"report_s": REPORT_S}))
    wait_for_checkpoint(run)
    os.kill(run.pid_of("a2c"), signal.SIGSTOP)
    wait_until_it_goes_on(run, "a2c")
    summary = end_well(run)
    assert summary["restarted_at"].keys() == {"a2c"}
    assert f"did not answer for {REPORT_S} s (timeouts.report_s" in run.output
    assert_goes_forward(run)
    times = [row["time_s"] for row in rows(run, "joint")]
    # On a busy machine, too; it was stopped for 10 s, and took some more to start.
    assert max(b - a for a, b in itertools.pairwise(times)) < 4.0


def test_others_learn_beside_random_agents_while_a_server_is_lost(
    launch: Callable[..., Run],
) -> None:
    experiment = lasting(timeouts={"report_s": REPORT_S})
    experiment["servers"]["a2c"]["on_server_loss"] = "random"
    run = launch(experiment)
    wait_for_checkpoint(run)
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
    # It was stopped until it counted as lost, and then it had to start: the other one learned.
    assert num_random >= 5
    assert rows(run, "ppo")[-1]["env_steps"] > rows(run, "a2c")[-1]["env_steps"] + 400
    assert last["num_mismatches"] == 0
    assert f"agents of a2c acted at random in {num_random} training episodes" in "".join(
        summary["notes"]
    )
    # What it learned from are its own actions: random ones are in no episode of its. The files'
    # last rows are not of one moment.
    own, all_of_them = (rows(run, name)[-1]["episodes"] for name in ("a2c", "ppo"))
    assert own <= all_of_them - num_random + 1


@pytest.mark.night  # by day: one that has a checkpoint
def test_a_server_begins_from_scratch_where_it_has_no_checkpoint(
    launch: Callable[..., Run],
) -> None:
    run = launch(lasting(checkpoint={"interval_s": None}, stop={"env_steps": 4_000}))
    run.wait_for_learning()
    os.kill(run.pid_of("ppo"), signal.SIGKILL)
    assert run.wait(PATIENCE_S) == 0, run.output
    assert "it is started again from scratch: there is no checkpoint of it" in run.output
    assert_readable(run)
    assert_goes_forward(run)
    run.assert_nothing_is_left()


def test_a_server_that_is_lost_too_often_ends_the_run_and_keeps_the_checkpoint(
    launch: Callable[..., Run],
) -> None:
    experiment = lasting()
    experiment["servers"]["a2c"]["restarts"] = {"max": 1}
    run = launch(experiment)
    wait_for_checkpoint(run)
    os.kill(run.pid_of("a2c"), signal.SIGKILL)
    wait_until_it_goes_on(run, "a2c")
    pid = run.pid_of("a2c")
    newest = CheckpointFolder(run.folder / "checkpoints").env_steps[0]
    os.kill(pid, signal.SIGKILL)
    assert run.wait() == 1, run.output
    problem = next(line for line in run.output.splitlines() if line.startswith("muxrl: "))
    assert f"server 'a2c' (pid {pid}, A2C) died" in problem
    assert str(run.folder / "logs" / "a2c.log") in problem
    assert "started again once within 600 s, as often as servers.a2c.restarts.max" in problem
    assert_readable(run)
    run.assert_nothing_is_left()
    place, manifest, damage = find_checkpoint(RunDirectory.open(run.folder))
    assert (damage, {*manifest.servers}) == ([], {"ppo", "a2c"})
    assert int(place.name) >= newest


@pytest.mark.night  # by day: one that is killed
def test_a_simulation_that_raises_now_and_then_does_not_end_a_run(
    launch: Callable[..., Run],
) -> None:
    # In its fourth episode, and again in the fourth of the process that comes after. The next one
    # would do so at 1,050: the run has until then to notice that it is over.
    experiment = lasting("raise", at_step=350, stop={"env_steps": 720})
    experiment["simulation"]["restarts"]["within_s"] = 0.1  # else the same line twice ends it
    run = launch(experiment)
    assert run.wait(2 * PATIENCE_S) == 0, run.output
    assert_readable(run)
    assert_goes_forward(run)
    run.assert_nothing_is_left()
    summary = json.loads((run.folder / "summary.json").read_text())
    assert len(summary["restarted_at"]["simulation-0"]) == 2
    assert "InjectedFault" in run.output
    assert rows(run, "joint")[-1]["num_mismatches"] == 0


@pytest.mark.night  # by day: a server that is lost too often
def test_a_simulation_that_raises_too_often_ends_the_run_by_name(
    launch: Callable[..., Run],
) -> None:
    run = launch(lasting("raise", at_step=120))
    assert run.wait(2 * PATIENCE_S) == 1, run.output
    problem = next(line for line in run.output.splitlines() if line.startswith("muxrl: "))
    for story in (
        "muxrl: InjectedFault: injected at step 20 of episode 1 (faulty.py, line ",
        "simulation-0 failed",
        "the same happened there before within 600 s, so that it is not started again",
    ):
        assert story in problem
    assert_readable(run)
    run.assert_nothing_is_left()
    _, _, damage = find_checkpoint(RunDirectory.open(run.folder))
    assert damage == []


@pytest.mark.night  # by day: test_lost_servers.py
def test_an_external_simulation_waits_for_a_server_that_is_killed(
    launch: Callable[..., Run],
) -> None:
    spaces = {
        "observation_space": {"type": "box", "shape": [1]},
        "action_space": {"type": "discrete", "n": 9},
    }
    experiment = lasting(stop={"env_steps": 6_000})
    experiment["simulation"] = {"env": "external", "agents": {"a": spaces, "b": spaces}}
    experiment["servers"] = {
        "ppo": small_server("PPO", "a"),
        "a2c": small_server("A2C", "b"),
    }
    run = launch(experiment)
    addresses = run.folder / "servers.json"
    run.wait_for("addresses", addresses.exists)
    is_killed = False

    def kill_once() -> bool:
        nonlocal is_killed
        checkpoints = CheckpointFolder(run.folder / "checkpoints").env_steps
        if checkpoints and checkpoints[0] and loop.num_env_steps % 10 == 5 and not is_killed:
            is_killed = True
            os.kill(run.pid_of("a2c"), signal.SIGKILL)
        return run.popen.poll() is not None or loop.num_env_steps >= 12_000

    with (
        MultiplexingClient(json.loads(addresses.read_text()), patience_s=PATIENCE_S) as client,
        contextlib.suppress(ClientError),  # the run ends, and its servers with it
    ):
        simulation = CountingSimulation(num_steps=10, pause_s=PAUSE_S)
        loop = EnvLoop([simulation], client, on_lost="restart")
        threading.Thread(target=lambda: (run.popen.wait(), client.give_up())).start()
        loop.run(should_stop=kill_once)
    assert run.wait(PATIENCE_S) == 0, run.output
    assert is_killed
    assert loop.num_lost_episodes >= 1
    assert_readable(run)
    run.assert_nothing_is_left()
    joint = rows(run, "joint")
    assert [row["env_steps"] for row in joint] == sorted(row["env_steps"] for row in joint)
    assert [row["restarted"] for row in joint if "restarted" in row] == [["a2c"]]


def test_servers_killed_in_a_save_and_in_the_final_evaluation_go_on_and_so_does_that(
    launch: Callable[..., Run],
) -> None:
    experiment = lasting(stop={"env_steps": 4_000}, evaluation={"final_num_episodes": 10})
    run = launch(experiment)
    wait_for_checkpoint(run)
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
    assert all(len(row["returns"]["agent_0"]) == 10 for row in last)
    place, _, damage = find_checkpoint(RunDirectory.open(run.folder))
    assert (damage, {p.name for p in place.iterdir()}) == ([], {"ppo", "a2c", "manifest.json"})


@pytest.mark.night  # by day: the final one, in the test before
def test_an_evaluation_that_is_killed_is_begun_again(launch: Callable[..., Run]) -> None:
    evaluation = {"interval_env_steps": 1_000, "num_episodes": 10, "final_num_episodes": 2}
    run = launch(lasting(evaluation=evaluation, stop={"env_steps": 3_000}))
    run.wait_for_learning()
    os.kill(run.pid_of("evaluation"), signal.SIGKILL)
    assert run.wait(2 * PATIENCE_S) == 0, run.output
    assert "the evaluation died" in run.output
    assert_readable(run)
    run.assert_nothing_is_left()
    conditions = [row["replaced"] for row in rows(run, "evaluation")]
    # The last evaluation has two more, with untrained policies.
    assert conditions[-2:] == ["a2c:untrained", "ppo:untrained"]
    assert conditions[:-2] == [None, "a2c", "ppo"] * (len(conditions[:-2]) // 3)
    assert len(conditions) >= 8
    status = json.loads((run.folder / "status.json").read_text())
    assert status["num_restarts"] == {"evaluation": 1}
