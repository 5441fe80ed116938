"""A process that is started again is on the machine where it was; on a Ray of two such machines."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from tests.faults.started import PATIENCE_S, ROOT, environment_of
from tests.processes import MARK, assert_all_end

from muxrl.orchestrator.config import ExperimentConfig, SimulationConfig
from muxrl.orchestrator.runs.placement import own_place
from muxrl.servers.config import ResourcesConfig, ServerConfig

pytestmark = [pytest.mark.faults, pytest.mark.ray, pytest.mark.timeout(300)]


def on_two_machines() -> None:
    """Runs in a process of its own, since this one may be connected to another Ray."""
    import ray
    from ray.cluster_utils import Cluster

    from muxrl.orchestrator.runs.placement import reserved

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
