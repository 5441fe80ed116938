"""Runs on a Ray cluster of two machines: processes find each other, and stay where they were.

Where nothing is sent, the machines are two nodes on this one; otherwise they are two network
namespaces.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Self

import pytest
import yaml
from tests.faults.runs import small_server
from tests.faults.started import PATIENCE_S, PAUSE_S, ROOT, environment_of
from tests.processes import MARK, assert_all_end, marked

from muxrl.orchestrator.config import ExperimentConfig, SimulationConfig
from muxrl.orchestrator.storage.checkpoints import Manifest, find_damage
from muxrl.orchestrator.supervise.placement import own_place
from muxrl.servers.config import ResourcesConfig, ServerConfig

pytestmark = [pytest.mark.faults, pytest.mark.ray, pytest.mark.timeout(300)]


def on_two_machines() -> None:
    """Starts two processes again and again; each must be on the machine where it was.

    It runs in a process of its own, since the test's process may be connected to another Ray.
    """
    import ray
    from ray.cluster_utils import Cluster

    from muxrl.orchestrator.supervise.placement import reserved

    class Where:
        def node(self) -> str:
            return str(ray.get_runtime_context().get_node_id())

    def start(name: str) -> object:
        actor = ray.remote(Where).options(**own_place(scheduling, two, name))
        return actor.remote()

    host = "10.0.0.1"  # not loopback, so that the two may be on different machines
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
                for name in "ba":  # both are lost, and the second one is started first
                    ray.kill(actors[name])
                actors = {name: start(name) for name in "ba"}
                again = {name: ray.get(actor.node.remote()) for name, actor in actors.items()}
                assert again == places
    finally:
        ray.shutdown()
        cluster.shutdown()


@pytest.mark.night  # by day: supervise/test_placement.py
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
    """Gives two network namespaces that reach each other, as a dict from name to address."""
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


def config(head: str, agents: int, **more: Any) -> dict[str, Any]:
    open_server = {"host": "0.0.0.0", "token": "of-sixteen-chars", "resources": {"num_cpus": 2}}
    return {
        "simulation": {
            "env": "muxrl.experiments.simulations.zero_cost:ZeroCost",
            "kwargs": {"num_agents": agents, "pause_s": PAUSE_S},
            "num_cpus": 1,
        },
        "servers": {
            name: small_server(name.upper(), f"agent_{i}") | open_server
            for i, name in enumerate(["ppo", "a2c"][:agents])
        },
        "evaluation": {"final_num_episodes": 0},
        "address": f"{head}:6379",
        "trackers": [],
    } | more


class Machines:
    """Runs commands on two machines, and kills all that they started when the ``with`` block ends.

    Args:
        networks: the fixture's; the first machine is Ray's head.
        folder: for temporary files.
    """

    def __init__(self, networks: dict[str, str], folder: Path) -> None:
        self.networks, self.folder = networks, folder
        self.one, self.other = networks
        self.head = networks[self.one]

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        # A process may start another one just before it is killed.
        while found := marked(self.folder.name):
            for process in found:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(process.pid, signal.SIGKILL)
            time.sleep(0.1)

    def start(self, network: str, *command: str, unseen: Path | None = None) -> Any:
        """Starts Python with these arguments in a network.

        Args:
            network: name of the machine's network.
            command: arguments of Python.
            unseen: this folder is another one on that machine, on a disk of its own.
        """
        surroundings = {"RAY_AUTH_MODE": "token", "RAY_TMPDIR": str(self.folder)}
        hide = ["unshare", "-m", "sh", "-c", f'mount -t tmpfs none {unseen}; exec "$@"', "sh"]
        return subprocess.Popen(
            ["ip", "netns", "exec", network, *(hide if unseen else []), sys.executable, *command],
            cwd=ROOT,
            env={**environment_of(ROOT), "RAY_USAGE_STATS_ENABLED": "0", **surroundings}
            | {"RAY_AUTH_TOKEN": self.folder.name * 4, "RAY_worker_niceness": "0"}
            | {MARK: self.folder.name},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )

    def run(self, network: str, *command: str, unseen: Path | None = None) -> None:
        """Runs Python in a network to its end; fails if its exit code is not 0."""
        started = self.start(network, *command, unseen=unseen)
        output, _ = started.communicate(timeout=PATIENCE_S)
        assert started.returncode == 0, output

    def join(self, network: str, num_cpus: int, unseen: Path | None = None) -> None:
        """Starts Ray on the machine of this network."""
        place = ["--head", "--port=6379", "--include-dashboard=false"]
        if network == self.other:
            place = [f"--address={self.head}:6379"]
        own = f"--node-ip-address={self.networks[network]}", f"--num-cpus={num_cpus}"
        folder = f"--temp-dir={self.folder / network}"
        command = "-m", "ray.scripts.scripts", "start", *own, folder, *place
        self.run(network, *command, unseen=unseen)

    def on_ray(self, code: str) -> None:
        """Runs code on the head, connected to Ray."""
        self.run(
            self.one,
            "-c",
            f"import ray; ray.init({self.head!r} + ':6379', namespace='all'); {code}",
        )


@pytest.mark.night  # by day: the address that is published, in supervise/test_placement.py
def test_a_server_that_listens_on_all_addresses_is_found_from_another_machine(
    tmp_path: Path, temporary: Path, two_networks: dict[str, str]
) -> None:
    with Machines(two_networks, temporary) as machines:
        one = config(machines.head, 1, stop={"env_steps": 200})
        (tmp_path / "one.yaml").write_text(yaml.safe_dump(one))
        machines.join(machines.one, 2)
        machines.join(machines.other, 1)
        run = tmp_path / "run"
        launch = "-m", "muxrl", "launch", str(tmp_path / "one.yaml"), "--run-dir", str(run)
        machines.run(machines.one, *launch)
    assert json.loads((run / "status.json").read_text())["env_steps"] >= 200
    assert json.loads((run / "servers.json").read_text())["ppo"].startswith(f"{machines.head}:")


@pytest.mark.night
@pytest.mark.timeout(600)
def test_a_machine_that_shares_no_disk_dies_and_its_server_goes_on_elsewhere(
    tmp_path: Path, temporary: Path, two_networks: dict[str, str]
) -> None:
    runs = tmp_path / "runs"
    runs.mkdir()
    checkpoints = runs / "two" / "checkpoints"
    with Machines(two_networks, temporary) as machines:
        two = config(
            machines.head, 2, stop={"env_steps": 8000}, checkpoint={"interval_env_steps": 2000}
        )
        (tmp_path / "two.yaml").write_text(yaml.safe_dump(two))
        machines.join(machines.one, 5)
        # The first machine is full at the beginning, so that the run needs both.
        group = "[{'CPU': 3}], name='full', lifetime='detached'"
        machines.on_ray(f"ray.get(ray.util.placement_group({group}).ready())")
        machines.join(machines.other, 3, unseen=runs)
        launch = "-m", "muxrl", "launch", str(tmp_path / "two.yaml"), "--run-dir", str(runs / "two")
        run = machines.start(machines.one, *launch, "--no-progress")
        while not (checkpoints / "last").exists() and run.poll() is None:
            time.sleep(0.5)
        assert run.poll() is None, run.communicate()
        before = json.loads((runs / "two" / "servers.json").read_text())
        assert {a.partition(":")[0] for a in before.values()} == set(two_networks.values())
        moved = next(s for s in before if not before[s].startswith(f"{machines.head}:"))
        full = "ray.util.get_placement_group('full')"
        machines.on_ray(f"ray.util.remove_placement_group({full})")
        there = ["ip", "netns", "pids", machines.other]
        for pid in subprocess.run(there, capture_output=True, check=True).stdout.split():
            os.kill(int(pid), signal.SIGKILL)
        output, _ = run.communicate(timeout=2 * PATIENCE_S)
        assert run.returncode == 0, output
    after = json.loads((runs / "two" / "servers.json").read_text())
    assert {a.partition(":")[0] for a in after.values()} == {machines.head}
    assert f"server {moved!r} resumes from" in (runs / "two" / "logs" / f"{moved}.log").read_text()
    place = checkpoints / "last"
    assert not list(find_damage(place, Manifest.read(place)))
