"""An installed muxrl, run from an empty folder without the checkout."""

from __future__ import annotations

import contextlib
import re
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.packaging.installed import Installed

pytestmark = pytest.mark.packaging

ROOT = Path(__file__).parents[2]
PATIENCE_S = 90.0
"""For a server to be ready: it starts a Ray of its own, on a machine that may be busy."""

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
    assert done.stdout.startswith("name: chase\n")
    assert "who serves whom" in done.stdout


@contextlib.contextmanager
def serving(full: Installed, server_id: str, port: int, log: Path) -> Iterator[Callable[[], None]]:
    """Serves one server of the packaged experiment `twenty_lines`, and ends it with Ctrl-C.

    Yields:
        What waits until it is ready.
    """
    command = ("serve", "twenty_lines", "--server", server_id, f"servers.{server_id}.port={port}")
    process = full.start("muxrl", *command, log=log)
    try:
        yield lambda: wait_until_ready(process, log)
        assert process.poll() is None, log.read_text()
        process.send_signal(signal.SIGINT)
        assert process.wait(60.0) == 0, log.read_text()
    finally:
        if process.poll() is None:
            process.kill()
            process.wait()


def wait_until_ready(process: subprocess.Popen[Any], log: Path) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while "ready on http://" not in log.read_text():
        assert process.poll() is None, log.read_text()
        assert time.monotonic() < deadline, log.read_text()
        time.sleep(0.1)


@pytest.mark.ray
@pytest.mark.timeout(300)
def test_the_twenty_line_loop_plays_against_two_served_servers(
    full: Installed, tmp_path: Path
) -> None:
    """As in the README, with free ports and 4 episodes instead of 100."""
    ports = {"ppo": _free_port(), "a2c": _free_port()}
    script = (ROOT / "experiments/examples/twenty_lines.py").read_text()
    for port, server_id in ((9900, "ppo"), (9910, "a2c")):
        assert f"127.0.0.1:{port}" in script
        script = script.replace(f"127.0.0.1:{port}", f"127.0.0.1:{ports[server_id]}")
    assert "range(100)" in script
    (tmp_path / "loop.py").write_text(script.replace("range(100)", "range(4)"))
    logs = {server_id: tmp_path / f"{server_id}.log" for server_id in ports}
    with (
        serving(full, "ppo", ports["ppo"], logs["ppo"]) as wait_for_ppo,
        serving(full, "a2c", ports["a2c"], logs["a2c"]) as wait_for_a2c,
    ):
        wait_for_ppo()
        wait_for_a2c()
        done = full.run("python", str(tmp_path / "loop.py"))
    assert done.returncode == 0, done.stderr
    lines = [line for line in done.stdout.splitlines() if re.match(r"\d+ \{", line)]
    assert [line.split()[0] for line in lines] == ["0", "1", "2", "3"]
    for agent in ("adversary_0", "adversary_1", "adversary_2", "agent_0"):
        assert all(f"'{agent}': " in line for line in lines)


def test_without_extras_the_client_is_there_and_nothing_heavy(light: Installed) -> None:
    done = light.run("python", "-c", LIGHT)
    assert done.returncode == 0, done.stderr


def test_without_extras_the_help_is_there(light: Installed) -> None:
    for arguments in (["--help"], ["check", "--help"], ["--version"]):
        done = light.run("muxrl", *arguments)
        assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize("arguments", [["check", "chase"], ["evaluate", "run"]])
def test_without_extras_a_command_says_what_to_install(
    light: Installed, arguments: list[str]
) -> None:
    done = light.run("muxrl", *arguments)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith(f"muxrl: '{arguments[0]}' needs ray, torch, gymnasium, ")
    assert done.stderr.endswith("pip install 'muxrl[servers]'\n")
    assert "Traceback" not in done.stderr


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
