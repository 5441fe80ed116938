"""muxrl: servers as `muxrl launch` starts them, and all simulations in one process, in lockstep."""

from __future__ import annotations

import argparse
import threading
from pathlib import Path
from typing import Any, Literal

from benchmarks.peers.updates import UpdateLog, add_arguments
from benchmarks.peers.work import BATCH_ENV_STEPS, HIDDEN, MINIBATCH, PPO_EPOCHS, Server, Setup
from benchmarks.step_path import Serving, serving

from muxrl.client import MultiplexingClient
from muxrl.client.adapters import make_simulation
from muxrl.client.env_loop import EnvLoop
from muxrl.orchestrator.config import ExperimentConfig, SimulationConfig
from muxrl.protocol.messages import Mode
from muxrl.servers.config import ServerConfig

SIMULATION = "benchmarks.peers.simulation:TimedZeroCost"
_LOOK_S = 1.0
"""Seconds between two questions to servers about what they have trained, as in a run."""


def server_config(server: Server) -> ServerConfig:
    """Returns the config of one server."""
    settings: dict[str, Any] = {"train_batch_size_per_learner": BATCH_ENV_STEPS}
    if server.algorithm == "PPO":
        settings |= {"minibatch_size": MINIBATCH, "num_epochs": PPO_EPOCHS}
    return ServerConfig(
        algorithm=server.algorithm,
        agents=list(server.agents),
        settings=settings,
        model={"fcnet_hiddens": list(HIDDEN), "vf_share_layers": False},
    )


def watch(servers: list[Serving], folder: Path) -> None:
    """Logs the env steps that servers train on, as long as the process lives."""
    logs = {server.server_id: UpdateLog(folder / "metrics", server.server_id) for server in servers}
    taken = dict.fromkeys(logs, 0)
    while True:
        threading.Event().wait(_LOOK_S)
        reports = [server.worker.call("report", taken[server.server_id]) for server in servers]
        for server, report in zip(servers, reports, strict=True):
            if records := report.result().records:
                last = records[-1]
                taken[server.server_id] = last["iteration"]
                logs[server.server_id].add(last["env_steps"])


def play(
    folder: Path,
    setup: Setup,
    inference_mode: Literal["remote", "local"],
    mode: Mode,
    seed: int,
) -> None:
    """Plays, and learns in mode "train", until the process is ended."""
    kwargs = {"folder": str(folder)}
    config = ExperimentConfig(
        name="peers",
        seed=seed,
        # Only its agents and spaces are read, so this simulation is the one that writes no file.
        simulation=SimulationConfig(env="muxrl.experiments.simulations.zero_cost:ZeroCost"),
        servers={server.name: server_config(server) for server in setup.servers},
    )
    with serving(config) as servers:
        watcher = threading.Thread(target=watch, args=(servers, folder), daemon=True)
        watcher.start()
        addresses = [server.address for server in servers]
        simulations = [make_simulation(SIMULATION, kwargs) for _ in range(setup.num_simulations)]
        with MultiplexingClient(addresses, inference_mode=inference_mode) as client:
            loop = EnvLoop(simulations, client, mode=mode, should_explore=True)
            loop.run(should_stop=lambda: not watcher.is_alive())
    raise SystemExit("what servers train is not written down any more")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("inference_mode", choices=["remote", "local"])
    parser.add_argument("mode", choices=["train", "eval"])
    add_arguments(parser)
    args = parser.parse_args()
    setup = Setup(args.servers, args.simulations)
    play(args.folder, setup, args.inference_mode, args.mode, args.seed)


if __name__ == "__main__":
    main()
