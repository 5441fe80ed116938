"""Whether a server's memory stays flat, but for its replay.

    python -m benchmarks.memory --env-steps 1000000

One server at a time, in a process of its own as `muxrl launch` starts it, learns from sixteen
simulations of six agents that cost nothing: PPO, which keeps nothing, and QMIX, whose replay of
1,000 episodes is full after 100,000 env steps. Prints the server's resident memory (MiB) at each
tenth of the env steps, then by how much it grew after the first, and what the arrays of a full
replay take as `muxrl check` computes it.
"""

from __future__ import annotations

import argparse
import time

from benchmarks.scale import resident_mib
from benchmarks.step_path import serving

from muxrl.client import MultiplexingClient
from muxrl.client.adapters import make_simulation
from muxrl.client.env_loop import EnvLoop
from muxrl.orchestrator.config import ExperimentConfig, SimulationConfig, prepare
from muxrl.orchestrator.config.memory import describe_replays
from muxrl.servers.config import ServerConfig

_ENV = "muxrl.experiments.simulations.zero_cost:ZeroCost"
_TENTHS = 10
SERVERS = {
    "PPO": ServerConfig(
        algorithm="PPO",
        agents=["*"],
        settings={"train_batch_size_per_learner": 1000, "minibatch_size": 500, "num_epochs": 4},
    ),
    "QMIX": ServerConfig(
        algorithm="QMIX",
        agents=["*"],
        groups={"team": ["*"]},
        settings={"batch_size_episodes": 4, "buffer_capacity_episodes": 1000},
    ),
}


def watch(name: str, env_steps: int) -> None:
    """Lets a server learn for so many env steps, and prints what it takes."""
    config = ExperimentConfig(
        name="memory", simulation=SimulationConfig(env=_ENV), servers={"one": SERVERS[name]}
    )
    started, sizes = time.monotonic(), []
    with serving(config) as (server,), MultiplexingClient([server.address]) as client:
        loop = EnvLoop([make_simulation(_ENV, {}) for _ in range(16)], client, mode="train")

        def is_due() -> bool:
            return loop.num_env_steps >= env_steps * (len(sizes) + 1) // _TENTHS

        for _ in range(_TENTHS):
            loop.run(should_stop=is_due)
            sizes.append(resident_mib(server.pid))
            print(f"{name:6}{loop.num_env_steps:12,}{sizes[-1]:8.0f} MiB", flush=True)
    grew, pace = sizes[-1] - sizes[0], env_steps / (time.monotonic() - started)
    print(f"{name:6}grew by {grew:.0f} MiB after the first tenth; {pace:,.0f} env steps/s")
    for line in describe_replays(prepare(config, needs_stop=False)):
        print(f"{name:6}{line}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--env-steps", type=int, default=1_000_000)
    parser.add_argument("--servers", nargs="+", choices=SERVERS, default=list(SERVERS))
    args = parser.parse_args()
    for name in args.servers:
        watch(name, args.env_steps)


if __name__ == "__main__":
    main()
