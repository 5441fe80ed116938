"""A process whose main thread ends without stopping its server ends nevertheless."""

from __future__ import annotations

import subprocess
import sys
import textwrap
from pathlib import Path

_SERVE = """
    from orchestrator.config import ExperimentConfig, SimulationConfig, prepare
    from servers.config import ServerConfig
    from servers.server import PolicyServer

    config = ExperimentConfig(
        name="ends",
        simulation=SimulationConfig(
            env="experiments.simulations.zero_cost:ZeroCost", kwargs={"num_agents": 1}
        ),
        servers={"mine": ServerConfig(algorithm="random", agents=["*"])},
    )
    (plan,) = prepare(config, needs_stop=False).servers.values()
    server = PolicyServer(plan)
    server.start()
    print("serving", server.address, flush=True)
"""


def test_a_process_ends_with_its_main_thread_if_nobody_stops_its_server() -> None:
    # It raises `TimeoutExpired`, and kills it, if it serves on.
    ended = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(_SERVE)],
        cwd=Path(__file__).parents[2],
        capture_output=True,
        text=True,
        timeout=80,
    )
    assert ended.returncode == 0, ended.stderr
    assert ended.stdout.startswith("serving 127.0.0.1:"), ended.stderr
