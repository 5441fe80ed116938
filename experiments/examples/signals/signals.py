"""Sixteen traffic signals of a 4x4 grid (RESCO's grid4x4) in SUMO, through sumo-rl.

`muxrl launch experiments/examples/signals/signals.yaml` starts it in a separate Python environment;
README.md says how to make it.
"""

from __future__ import annotations

import argparse
import itertools
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from pettingzoo.utils import BaseParallelWrapper

from muxrl.client import PolicyClient
from muxrl.client.adapters import adapt
from muxrl.client.env_loop import EnvLoop, EpisodeResult

METRICS = {"wait_s": "mean", "time_loss_s": "last", "arrived": "last"}
"""Metrics in the infos, and how an episode's numbers become one."""


class Measured(BaseParallelWrapper):
    """Adds metrics on the traffic of the whole grid to the infos.

    `wait_s`: how long a vehicle under way has been standing still now, as a mean over the vehicles
    (sumo-rl's `system_mean_waiting_time`). The last step also has `arrived`, the number of trips
    that are over, and `time_loss_s`, the time that each of them lost compared with a free road.
    """

    def step(self, actions: dict[str, int]) -> tuple[dict[str, Any], ...]:
        """Steps as any ParallelEnv."""
        observations, rewards, terminations, truncations, infos = self.env.step(actions)
        common = {"wait_s": infos[self.possible_agents[0]]["system_mean_waiting_time"]}
        if not self.agents:
            ask = self.unwrapped.env.sumo.simulation.getParameter
            common["arrived"] = int(ask("", "device.tripinfo.count"))
            common["time_loss_s"] = float(ask("", "device.tripinfo.timeLoss"))
        infos = {**infos, "__common__": common}
        return observations, rewards, terminations, truncations, infos


def make_env(num_seconds: int, **kwargs: Any) -> Measured:
    """Returns the grid; a signal decides every 5 s which of its eight green phases is next.

    An agent observes its phase and the density and the queue of its twelve incoming lanes, each in
    0..1; its reward is minus the number of vehicles that stand before it.

    Args:
        num_seconds: simulated seconds of an episode; vehicles enter during 3,600.
        kwargs: further arguments of sumo-rl's SumoEnvironment.
    """
    import sumo

    os.environ["SUMO_HOME"] = sumo.SUMO_HOME
    os.environ["LIBSUMO_AS_TRACI"] = "1"  # SUMO in this process, not behind a socket
    import sumo_rl  # reads both as it is imported

    grid = Path(sumo_rl.__file__).parent / "nets" / "RESCO" / "grid4x4"
    return Measured(
        sumo_rl.parallel_env(
            net_file=str(grid / "grid4x4.net.xml"),
            route_file=str(grid / "grid4x4_1.rou.xml"),
            num_seconds=num_seconds,
            reward_fn="queue",
            add_per_agent_info=False,  # not needed, and as slow as the simulation
            sumo_warnings=False,
            additional_sumo_cmd=f"--tripinfo-output {os.devnull}",  # has SUMO count the trips
            **kwargs,
        )
    )


def note(result: EpisodeResult) -> None:
    """Prints a line for each episode, into the run's log of this program."""
    metrics = {name: round(result.metrics[name]["__common__"], 3) for name in METRICS}
    print(f"seed {result.seed}: {metrics}", flush=True)


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("gateway")
    parser.add_argument("--first-seed", type=int, default=0)
    parser.add_argument("--num-seeds", type=int, help="then begin again; default: no end")
    parser.add_argument("--num-seconds", type=int, default=900)
    args = parser.parse_args()
    seeds: Iterator[int] = itertools.count(args.first_seed)
    if args.num_seeds is not None:
        seeds = itertools.cycle(range(args.first_seed, args.first_seed + args.num_seeds))
    with PolicyClient(args.gateway) as client:
        envs = [adapt(make_env(args.num_seconds))]  # libsumo holds one simulation a process
        EnvLoop(envs, client, seeds=seeds, on_lost="restart", metrics=METRICS).run(note)
