"""Runs on a Ray of two machines: who reaches whom, and where a process is started again.

Two nodes on this machine do where nothing is sent; where it is, they are network namespaces.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml
from tests.faults.started import PATIENCE_S, ROOT, environment_of
from tests.faults.test_launch_faults import small_server
from tests.processes import MARK, assert_all_end, marked

from muxrl.orchestrator.config import ExperimentConfig, SimulationConfig
from muxrl.orchestrator.supervise.placement import own_place
from muxrl.servers.config import ResourcesConfig, ServerConfig

pytestmark = [pytest.mark.faults, pytest.mark.ray, pytest.mark.timeout(300)]


def on_two_machines() -> None:
    """Runs in a process of its own, since this one may be connected to another Ray."""
    import ray
    from ray.cluster_utils import Cluster

    from muxrl.orchestrator.supervise.placement import reserved

    class Where:
        def node(self) -> str:
            return str(ray.get_runtime_context().get_node_id())

    def start(name: str) -> object:
        actor = ray.remote(Where).options(
            num_cpus=1, scheduling_strategy=own_place(scheduling, two, name)
        )
        return actor.remote()

    host = "10.0.0.1"  # not loopback: they need not be on one machine
    two = ExperimentConfig(
        simulation=SimulationConfig(env="external"),
        servers={s: ServerConfig(host=host, resources=ResourcesConfig(num_cpus=1)) for s in "ab"},
    )
    cluster = Cluster()
    try:
        for _ in range(2):
            cluster.add_node(num_cpus=1)
        ray.init(address=cluster.address, log_to_driver=False)
        with reserved(two) as scheduling:
            actors = {name: start(name) for name in "ab"}
            places = {name: ray.get(actor.node.remote()) for name, actor in actors.items()}
            assert len(set(places.values())) == 2, places
            for _ in range(2):
                for name in "ba":  # both are gone, and the last one comes first
                    ray.kill(actors[name])
                actors = {name: start(name) for name in "ba"}
                again = {name: ray.get(actor.node.remote()) for name, actor in actors.items()}
                assert again == places
    finally:
        ray.shutdown()
        cluster.shutdown()


def test_a_process_that_is_started_again_is_on_the_machine_where_it_was(temporary: Path) -> None:
    code = "from tests.faults.test_two_machines import on_two_machines; on_two_machines()"
    surroundings = {"TMPDIR": str(temporary), "RAY_USAGE_STATS_ENABLED": "0", MARK: temporary.name}
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=ROOT,
        env={**environment_of(ROOT), **surroundings},
        capture_output=True,
        text=True,
        timeout=2 * PATIENCE_S,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert_all_end(temporary.name, PATIENCE_S)


def ip(command: str) -> None:
    subprocess.run(["ip", *command.split()], check=True)


@pytest.fixture
def two_networks() -> Iterator[dict[str, str]]:
    """Two network namespaces that reach each other: name to address."""
    if shutil.which("ip") is None or os.geteuid() != 0:
        pytest.skip("only root can make network namespaces")
    one, other = (f"mx{os.getpid()}{letter}" for letter in "ab")
    networks = {one: "10.77.0.1", other: "10.77.0.2"}
    try:
        for name in networks:
            ip(f"netns add {name}")
    except subprocess.CalledProcessError:
        pytest.skip("this container may make no network namespaces")
    try:
        ip(f"link add end netns {one} type veth peer end netns {other}")
        for name, address in networks.items():
            ip(f"-n {name} addr add {address}/24 dev end")
            ip(f"-n {name} link set lo up")
            ip(f"-n {name} link set end up")
        yield networks
    finally:
        for name in networks:
            ip(f"netns del {name}")


def test_a_server_that_listens_on_all_addresses_is_found_from_another_machine(
    tmp_path: Path, temporary: Path, two_networks: dict[str, str]
) -> None:
    (one, head), (other, _) = two_networks.items()
    config = {
        "simulation": {
            "env": "muxrl.experiments.simulations.zero_cost:ZeroCost",
            "kwargs": {"num_agents": 1},
            "num_processes": 1,
        },
        "servers": {
            "ppo": small_server("PPO", "agent_0")
            | {"host": "0.0.0.0", "token": "of-sixteen-chars", "resources": {"num_cpus": 2}}
        },
        "stop": {"env_steps": 200},
        "evaluation": {"final_num_episodes": 0},
        "address": f"{head}:6379",
        "trackers": [],
    }
    (tmp_path / "one.yaml").write_text(yaml.safe_dump(config))
    surroundings = {"RAY_AUTH_MODE": "disabled", "RAY_TMPDIR": str(temporary), MARK: temporary.name}

    def on(network: str, *command: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            ["ip", "netns", "exec", network, sys.executable, "-m", *command],
            cwd=ROOT,
            env={**environment_of(ROOT), "RAY_USAGE_STATS_ENABLED": "0", **surroundings},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=PATIENCE_S,
            check=False,
        )

    def join(network: str, num_cpus: int, *options: str) -> None:
        start = f"--node-ip-address={two_networks[network]}", f"--num-cpus={num_cpus}"
        folder = f"--temp-dir={temporary / network}"
        started = on(network, "ray.scripts.scripts", "start", *start, folder, *options)
        assert started.returncode == 0, started.stdout

    try:
        join(one, 2, "--head", "--port=6379", "--include-dashboard=false")
        join(other, 1, f"--address={head}:6379")
        run = tmp_path / "run"
        done = on(one, "muxrl", "launch", str(tmp_path / "one.yaml"), "--run-dir", str(run))
        assert done.returncode == 0, done.stdout
        assert json.loads((run / "status.json").read_text())["env_steps"] >= 200
        assert json.loads((run / "servers.json").read_text())["ppo"].startswith(f"{head}:")
    finally:
        for process in marked(temporary.name):
            os.kill(process.pid, signal.SIGKILL)
