"""The step path: env steps per second of zero-cost simulations against real policy servers.

Six agents, ``Box(8)``/``Discrete(5)``, 100-step episodes, three servers (QMIX for a team of
three, PPO for two, A2C for one) in processes of their own on loopback, as `muxrl launch` starts
them. Contestants take turns (A B A B ...), so that a machine whose speed drifts is fair to all.

    python benchmarks/step_path.py --rounds 3 --seconds 10

Prints for each contestant the median over the rounds and the range, the latency of one exchange
with all servers, and the processor time of client and servers.
"""

from __future__ import annotations

import argparse
import os
import statistics
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from muxrl.client import MultiplexingClient
from muxrl.client.adapters import make_simulation
from muxrl.client.env_loop import EnvLoop
from muxrl.client.multiplexer import Outbox
from muxrl.orchestrator.config import load_config, prepare
from muxrl.orchestrator.runs.local_ray import ONE_THREAD, local_ray
from muxrl.orchestrator.runs.processes import ServerProcess

CONFIG = Path(__file__).with_name("step_path.yaml")
_TICKS_PER_S = os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True)
class Contestant:
    """How many simulations share a message, and whether servers learn."""

    num_simulations: int
    is_learning: bool

    def __str__(self) -> str:
        learning = "learning" if self.is_learning else "acting only"
        return f"{self.num_simulations:>2} simulation{'s' * (self.num_simulations > 1)}, {learning}"


@dataclass(frozen=True)
class Outcome:
    """One round of one contestant."""

    steps_per_s: float
    exchange_ms: np.ndarray
    cpu_ms_per_step: float


class Timed(MultiplexingClient):
    """Records how long each exchange with all servers took."""

    def __init__(self, addresses: list[str]) -> None:
        super().__init__(addresses)
        self.durations_s: list[float] = []

    def exchange(self, outbox: Outbox):  # type: ignore[no-untyped-def]
        started = time.perf_counter()
        result = super().exchange(outbox)
        self.durations_s.append(time.perf_counter() - started)
        return result


def cpu_s(pids: list[int]) -> float:
    """Processor seconds that these processes have used so far."""
    total = 0
    for pid in pids:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        total += int(fields[11]) + int(fields[12])
    return total / _TICKS_PER_S


def play(contestant: Contestant, addresses: list[str], pids: list[int], seconds: float) -> Outcome:
    """Plays one round of `seconds` and measures it."""
    simulations = [
        make_simulation("muxrl.experiments.simulations.zero_cost:ZeroCost", {})
        for _ in range(contestant.num_simulations)
    ]
    with Timed(addresses) as client:
        # An evaluation episode takes the same path, but records nothing to learn from.
        loop = EnvLoop(
            simulations,
            client,
            mode="train" if contestant.is_learning else "eval",
            should_explore=True,
        )
        cpu_before = cpu_s([*pids, os.getpid()])
        started = time.perf_counter()
        loop.run(should_stop=lambda: time.perf_counter() - started > seconds)
        elapsed = time.perf_counter() - started
        cpu = cpu_s([*pids, os.getpid()]) - cpu_before
        assert client.num_mismatches == 0
        return Outcome(
            loop.num_env_steps / elapsed,
            np.array(client.durations_s) * 1e3,
            1e3 * cpu / loop.num_env_steps,
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=10.0)
    parser.add_argument("--simulations", type=int, nargs="+", default=[1, 16])
    parser.add_argument("overrides", nargs="*", metavar="KEY=VALUE", help="of step_path.yaml")
    args = parser.parse_args()
    import ray

    experiment = prepare(load_config(CONFIG, args.overrides), needs_stop=False)
    with tempfile.TemporaryDirectory() as folder, local_ray(num_cpus=8):
        actors = [
            ray.remote(ServerProcess)
            .options(num_cpus=0.5, max_concurrency=4, runtime_env={"env_vars": ONE_THREAD})
            .remote(plan, Path(folder) / f"{server_id}.log")
            for server_id, plan in experiment.servers.items()
        ]
        started = ray.get([actor.start.remote() for actor in actors])
        run(args, [address for address, _ in started], [pid for _, pid in started])
        ray.get([actor.stop.remote() for actor in actors])


def run(args: argparse.Namespace, addresses: list[str], pids: list[int]) -> None:
    """Plays all rounds and prints the table."""
    contestants = [
        Contestant(n, is_learning) for n in args.simulations for is_learning in (False, True)
    ]
    for contestant in contestants:  # warm-up: first batches, first updates, buffers
        play(contestant, addresses, pids, min(args.seconds, 3.0))
    outcomes: dict[Contestant, list[Outcome]] = {c: [] for c in contestants}
    for _ in range(args.rounds):
        for contestant in contestants:
            outcomes[contestant].append(play(contestant, addresses, pids, args.seconds))
    print(f"{len(addresses)} servers, {args.rounds} rounds of {args.seconds:g} s, in turn")
    print(f"{'':28}{'env steps/s (range)':>26}{'exchange ms p50':>17}{'p99':>7}{'cpu ms/step':>13}")
    for contestant, rounds in outcomes.items():
        rates = [r.steps_per_s for r in rounds]
        exchanges = np.concatenate([r.exchange_ms for r in rounds])
        p50, p99 = np.percentile(exchanges, [50, 99])
        cpu = statistics.median(r.cpu_ms_per_step for r in rounds)
        span = f"{statistics.median(rates):,.0f} ({min(rates):,.0f}..{max(rates):,.0f})"
        print(f"{contestant!s:28}{span:>26}{p50:>17.2f}{p99:>7.1f}{cpu:>13.2f}")


if __name__ == "__main__":
    main()
