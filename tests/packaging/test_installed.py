"""An installed muxrl runs from an empty folder without the checkout."""

from __future__ import annotations

import socket
import subprocess
import time
from pathlib import Path
from typing import Any

import pytest
from tests.compliance.real_servers import PPO_SETTINGS, SMALL_MODEL, make_plan, running
from tests.orchestrator.commands.test_probe import PLAIN_ENV, PLAIN_SECTION
from tests.packaging.installed import Installed

from muxrl.protocol.spaces import Box, Discrete

pytestmark = pytest.mark.packaging

ROOT = Path(__file__).parents[2]
OVER = (
    "training is over; the episode is closed on every server, "
    "and start_episode() may be called again"
)
BEGINS = OVER.replace("training is over", "an evaluation begins")
PATIENCE_S = 150.0
"""Time for the servers to be ready on a busy machine."""

SEEN = """
import importlib.util, sys, muxrl
print(muxrl.__file__)
for name in ("client", "servers", "protocol", "orchestrator", "experiments", "tests"):
    assert importlib.util.find_spec(name) is None, name
print(*sys.path, sep="\\n")
"""
LIGHT = """
import importlib.util
from muxrl import MultiplexingClient, PolicyClient
import muxrl.client.env_loop, muxrl.client.adapters
for name in ("ray", "torch", "gymnasium", "yaml", "omegaconf"):
    assert importlib.util.find_spec(name) is None, name
"""


@pytest.mark.parametrize("which", ["full", "light"])
def test_muxrl_is_the_installed_one_and_the_checkout_is_not_there(
    which: str, request: pytest.FixtureRequest
) -> None:
    installed: Installed = request.getfixturevalue(which)
    done = installed.run("python", "-c", SEEN)
    assert done.returncode == 0, done.stderr
    file, *path = done.stdout.splitlines()
    assert Path(file).is_relative_to(installed.root)
    assert not {str(ROOT), str(ROOT / "src")} & set(path)
    assert not list(installed.folder.iterdir())


def test_a_packaged_experiment_is_checked(full: Installed) -> None:
    done = full.run("muxrl", "check", "chase")
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("chase: can be launched; ")
    assert "who serves whom" in done.stdout


NO_RAY = """
import importlib.util
for name in ("ray", "tree", "stable_baselines3", "onnx", "optuna"):
    assert importlib.util.find_spec(name) is None, name
"""


@pytest.mark.timeout(300)
def test_with_servers_alone_a_run_with_a_replay_needs_no_ray(
    servers: Installed, full: Installed, tmp_path: Path
) -> None:
    """The run's simulation is the loop of the README, with a free port."""
    done = servers.run("python", "-c", NO_RAY)
    assert done.returncode == 0, done.stderr
    port = _free_port()
    script = (ROOT / "experiments/examples/twenty_lines.py").read_text()
    assert "127.0.0.1:9900" in script
    (tmp_path / "loop.py").write_text(script.replace("127.0.0.1:9900", f"127.0.0.1:{port}"))
    log, folder = tmp_path / "run.log", tmp_path / "run"
    shorter = ["stop.env_steps=500", "evaluation.interval_env_steps=null",
               "evaluation.final_num_episodes=3", f"simulation.gateway.port={port}"]  # fmt: skip
    replay = ["servers.ppo.algorithm=DQN", "servers.ppo.settings={}",
              "servers.ppo.settings.num_steps_sampled_before_learning_starts=100"]  # fmt: skip
    options = [*shorter, *replay, "--run-dir", str(folder), "--no-progress"]
    run = servers.start("muxrl", "launch", "twenty_lines", *options, log=log)
    try:
        wait_for_gateway(run, log)
        done = full.run("python", str(tmp_path / "loop.py"))
        assert done.returncode == 0, done.stderr
        # At most one episode is open as training ends, and one as the evaluation begins.
        lost = [line.partition(" is over: ")[2] for line in done.stdout.splitlines()]
        assert [one for one in (OVER, BEGINS) if one in lost] == lost
        assert run.wait(60.0) == 0, log.read_text()
    finally:
        if run.poll() is None:
            run.kill()
            run.wait()
    assert "Evaluated after" in log.read_text()
    assert (folder / "checkpoints" / "last" / "manifest.json").exists()


@pytest.mark.parametrize(
    ("arguments", "extra"),
    [
        (["sweep", "first_look"], "tune"),
        (["launch", "cartpole_ppo", "address=auto"], "tune"),
        (["check", "cartpole_ppo", "servers.ppo.algorithm=RLLIB_PPO"], "rllib"),
        (["check", "cartpole_ppo", "servers.ppo.algorithm=SB3_PPO"], "sb3"),
    ],
)
def test_an_extra_that_is_missing_names_itself(
    servers: Installed, arguments: list[str], extra: str
) -> None:
    done = servers.run("muxrl", *arguments)
    assert done.returncode in (1, 2), done.stdout
    assert f"pip install 'muxrl[{extra}]'" in done.stderr
    assert "Traceback" not in done.stderr


def wait_for_gateway(run: subprocess.Popen[Any], log: Path) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while "gateway to all of them" not in log.read_text():
        assert run.poll() is None, log.read_text()
        assert time.monotonic() < deadline, log.read_text()
        time.sleep(0.1)


def test_without_extras_there_is_the_client_but_no_heavy_package(light: Installed) -> None:
    done = light.run("python", "-c", LIGHT)
    assert done.returncode == 0, done.stderr


def test_without_extras_the_help_can_be_printed(light: Installed) -> None:
    for arguments in (["--help"], ["check", "--help"], ["--version"]):
        done = light.run("muxrl", *arguments)
        assert (done.returncode, done.stderr) == (0, "")


def test_without_extras_a_server_can_be_tried_for_compliance(light: Installed) -> None:
    done = light.run("muxrl", "compliance", "--server", f"127.0.0.1:{_free_port()}")
    assert (done.returncode, done.stderr) == (1, "")
    assert done.stdout.startswith("broken   endpoints  GET /v1/spec")


def test_without_extras_an_environment_can_be_probed(light: Installed, tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(PLAIN_ENV)
    run = "import sys; sys.path.append(sys.argv.pop()); from muxrl.orchestrator.cli import main; "
    done = light.run("python", "-c", f"{run} sys.exit(main())", "probe", "mine:Mine", str(tmp_path))
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.endswith(f"\n{PLAIN_SECTION}")


def test_without_extras_launch_says_what_to_install(light: Installed) -> None:
    done = light.run("python", "-c", "from muxrl import launch")
    assert done.returncode == 1
    *_, last = done.stderr.strip().splitlines()
    assert last.startswith("ModuleNotFoundError: muxrl.launch needs ")
    assert last.endswith("it comes with: pip install 'muxrl[servers]'")


@pytest.mark.parametrize(
    "arguments", [["check", "chase"], ["evaluate", "run"], ["compliance", "--client", "--", "x"]]
)
def test_without_extras_a_command_says_what_to_install(
    light: Installed, arguments: list[str]
) -> None:
    done = light.run("muxrl", *arguments)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith(f"muxrl: '{arguments[0]}' needs torch, gymnasium, ")
    assert done.stderr.endswith("pip install 'muxrl[servers]'\n")
    assert "Traceback" not in done.stderr


LOOP = """
import sys
sys.path.append(sys.argv[2])
from muxrl import MultiplexingClient
from muxrl.client.adapters import make_simulation
from muxrl.client.env_loop import EnvLoop
print(*sys.version_info[:2])
for how in ({}, {"transport": "http"}, {"inference_mode": "local"}):
    with MultiplexingClient([sys.argv[1]], **how) as client:
        loop = EnvLoop([make_simulation("mine:Mine", {})], client, seeds=iter(range(20)))
        loop.run()
        print(loop.num_episodes, client.num_mismatches)
"""


@pytest.mark.usefixtures("rllib")
@pytest.mark.timeout(300)
def test_the_client_plays_on_other_pythons(client: tuple[str, Installed], tmp_path: Path) -> None:
    """It plays over WebSocket, HTTP and with local inference, on a server that learns here."""
    version, installed = client
    (tmp_path / "mine.py").write_text(PLAIN_ENV)
    agents = {"agent": (Box((2,), low=0.0, high=1.0), Discrete(4))}
    plan = make_plan("PPO", agents, settings=PPO_SETTINGS, model=SMALL_MODEL)
    with running(plan) as server:
        done = installed.run("python", "-c", LOOP, server.address, str(tmp_path))
        said = done.stderr.splitlines()
        assert (done.returncode, [x for x in said if not x.startswith("connected to ")]) == (0, [])
        assert done.stdout.splitlines() == [version.replace(".", " "), "20 0", "20 0", "20 0"]
        assert server.status().num_episodes == 60


def test_servers_are_refused_on_the_oldest_python(oldest: Installed, tmp_path: Path) -> None:
    newer = "needs Python 3.11 or newer, as servers do, and this is 3.10"
    done = oldest.run("muxrl", "check", "chase")
    assert (done.returncode, done.stdout, done.stderr) == (2, "", f"muxrl: 'check' {newer}\n")
    done = oldest.run("python", "-c", "from muxrl import launch")
    assert done.stderr.endswith(f"ImportError: muxrl.launch {newer}\n")
    test_without_extras_an_environment_can_be_probed(oldest, tmp_path)
    test_without_extras_a_server_can_be_tried_for_compliance(oldest)
    test_without_extras_the_help_can_be_printed(oldest)


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
