"""The step path: env steps per second of zero-cost simulations against real policy servers.

Six agents, ``Box(8)``/``Discrete(5)``, 100-step episodes, three servers (QMIX for a team of
three, PPO for two, A2C for one) in separate processes on loopback, as `muxrl launch` starts them.
Contestants take turns (A B A B ...), so that drifts of the machine's speed are fair to all.

    python benchmarks/step_path.py --rounds 3 --seconds 10

With `--processes` several clients play at a time, each in its own process with its own simulations,
and their rates are summed.

Prints for each contestant the median over the rounds and the range, the latency of one exchange
with all servers, and the processor time of client and servers.
"""

from __future__ import annotations

import argparse
import contextlib
import multiprocessing
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import Executor, ProcessPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

import numpy as np

from muxrl.client import MultiplexingClient
from muxrl.client.adapters import make_simulation, make_vector_simulation
from muxrl.client.env_loop import EnvLoop
from muxrl.client.outbox import Outbox
from muxrl.orchestrator.config import ExperimentConfig, load_config, prepare
from muxrl.orchestrator.supervise import fork_server
from muxrl.orchestrator.supervise.server_process import ServerProcess
from muxrl.orchestrator.supervise.worker import Worker
from muxrl.protocol.messages import Mode

CONFIG = Path(__file__).with_name("step_path.yaml")
_TICKS_PER_S = os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True)
class Contestant:
    """Number of simulations that share a message, whether servers learn, and who answers."""

    num_simulations: int
    is_learning: bool
    asks_gateway: bool = False
    is_local: bool = False
    is_vector: bool = False
    num_processes: int = 1

    def __str__(self) -> str:
        if self.num_processes > 1:
            return f"{self.num_processes} x {replace(self, num_processes=1)}"
        learning = "learning" if self.is_learning else "acting only"
        through = ", gateway" if self.asks_gateway else ", local" if self.is_local else ""
        plural = "s" * (self.num_simulations > 1)
        if self.is_vector:
            return f"a vector of {self.num_simulations}, {learning}"
        return f"{self.num_simulations:>2} simulation{plural}, {learning}{through}"


@dataclass(frozen=True)
class Outcome:
    """One round of one contestant, or of one of its processes."""

    num_steps: int
    steps_per_s: float
    exchange_ms: np.ndarray
    cpu_s: float

    @property
    def cpu_ms_per_step(self) -> float:
        return 1e3 * self.cpu_s / self.num_steps


class Timed(MultiplexingClient):
    """Records how long each exchange with all servers took."""

    def __init__(self, addresses: list[str], inference_mode: Literal["remote", "local"]) -> None:
        super().__init__(addresses, inference_mode=inference_mode)
        self.durations_s: list[float] = []

    def exchange(self, outbox: Outbox):  # type: ignore[no-untyped-def]
        started = time.perf_counter()
        result = super().exchange(outbox)
        self.durations_s.append(time.perf_counter() - started)
        return result


def cpu_s(pids: list[int]) -> float:
    """Returns the processor seconds that these processes have used so far."""
    total = 0
    for pid in pids:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        total += int(fields[11]) + int(fields[12])
    return total / _TICKS_PER_S


def wait_idle(pids: list[int]) -> None:
    """Waits until servers have learned from an earlier contestant's data, or for a minute."""
    for _ in range(240):
        before = cpu_s(pids)
        time.sleep(0.25)
        if cpu_s(pids) - before < 0.05:
            return


def play_all(
    contestant: Contestant, addresses: list[str], pids: list[int], seconds: float, pool: Executor
) -> Outcome:
    """Plays one round of `seconds` in all processes of a contestant, and measures it."""
    if contestant.num_processes == 1:
        return play(contestant, addresses, pids, seconds)
    before = cpu_s(pids)
    asked = [
        pool.submit(play, contestant, addresses, [], seconds)
        for _ in range(contestant.num_processes)
    ]
    outcomes = [one.result() for one in asked]
    return Outcome(
        sum(one.num_steps for one in outcomes),
        sum(one.steps_per_s for one in outcomes),
        np.concatenate([one.exchange_ms for one in outcomes]),
        sum(one.cpu_s for one in outcomes) + cpu_s(pids) - before,
    )


def play(contestant: Contestant, addresses: list[str], pids: list[int], seconds: float) -> Outcome:
    """Plays one round of `seconds` in this process; measures it and the processes in `pids`."""
    num, name = contestant.num_simulations, "muxrl.experiments.simulations.zero_cost:ZeroCost"
    with Timed(addresses, "local" if contestant.is_local else "remote") as client:
        # An evaluation episode takes the same path, but records nothing to learn from.
        mode: Mode = "train" if contestant.is_learning else "eval"
        loop: EnvLoop
        if contestant.is_vector:
            vector = make_vector_simulation(f"{name}Vector", {}, num)
            loop = EnvLoop(vector, client, mode=mode, should_explore=True)
        else:
            simulations = [make_simulation(name, {}) for _ in range(num)]
            loop = EnvLoop(simulations, client, mode=mode, should_explore=True)
        cpu_before = cpu_s([*pids, os.getpid()])
        started = time.perf_counter()
        loop.run(should_stop=lambda: time.perf_counter() - started > seconds)
        elapsed = time.perf_counter() - started
        cpu = cpu_s([*pids, os.getpid()]) - cpu_before
        assert client.num_mismatches == 0
        exchange_ms = np.array(client.durations_s) * 1e3
        return Outcome(loop.num_env_steps, loop.num_env_steps / elapsed, exchange_ms, cpu)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=10.0)
    parser.add_argument("--simulations", type=int, nargs="+", default=[1, 16])
    parser.add_argument("--vectors", type=int, nargs="*", default=[256], help="of so many copies")
    parser.add_argument("--processes", type=int, nargs="+", default=[1], help="that play at a time")
    parser.add_argument("--gateway", action="store_true", help="ask through a gateway, too")
    parser.add_argument("--local", action="store_true", help="act in the client, too")
    parser.add_argument("--config", type=Path, default=CONFIG, help="step_path.yaml by default")
    parser.add_argument("overrides", nargs="*", metavar="KEY=VALUE", help="of the config")
    args = parser.parse_args()
    config = load_config(args.config, args.overrides)
    with serving(config) as servers:
        addresses, pids = [s.address for s in servers], [s.pid for s in servers]
        with gateway_to(addresses) if args.gateway else contextlib.nullcontext() as gateway:
            run(args, addresses, pids, gateway)


@dataclass(frozen=True)
class Serving:
    """One policy server in its own process."""

    server_id: str
    address: str
    pid: int
    worker: Worker
    """The worker that runs the `ServerProcess`."""


@contextlib.contextmanager
def serving(
    config: ExperimentConfig, process: type[ServerProcess] = ServerProcess
) -> Iterator[list[Serving]]:
    """Starts an experiment's servers as `muxrl launch` does, and stops them."""
    plans = prepare(config, needs_stop=False).servers
    with tempfile.TemporaryDirectory() as folder, fork_server.running():
        workers = [
            Worker(process, (plan,), Path(folder) / f"{server_id}.log", is_forked=True)
            for server_id, plan in plans.items()
        ]
        starts = [worker.call("start") for worker in workers]
        yield [
            Serving(server_id, start.result().address, worker.pid, worker)
            for server_id, start, worker in zip(plans, starts, workers, strict=True)
        ]
        for worker in workers:
            worker.call("stop").result()
            worker.kill()


@contextlib.contextmanager
def gateway_to(addresses: list[str]) -> Iterator[tuple[str, int]]:
    """Starts a gateway, and yields its address and process id."""
    command = [sys.executable, "-m", "muxrl", "gateway", *addresses]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        yield process.stdout.readline().partition(": ")[2].partition(";")[0], process.pid
    finally:
        process.terminate()
        process.communicate()


def run(
    args: argparse.Namespace,
    addresses: list[str],
    pids: list[int],
    gateway: tuple[str, int] | None,
) -> None:
    """Plays all rounds and prints the table."""
    contestants = [
        Contestant(n, is_learning, asks_gateway, is_local, num_processes=num_processes)
        for n in args.simulations
        for num_processes in args.processes
        for is_learning in (False, True)
        for asks_gateway in ((False, True) if gateway else (False,))
        for is_local in ((False, True) if args.local else (False,))
        if not (asks_gateway and is_local)
    ] + [
        Contestant(n, is_learning, is_vector=True, num_processes=num_processes)
        for n in args.vectors
        for num_processes in args.processes
        for is_learning in (False, True)
    ]

    def play_one(contestant: Contestant, seconds: float) -> Outcome:
        wait_idle(pids)
        if not contestant.asks_gateway:
            return play_all(contestant, addresses, pids, seconds, pool)
        assert gateway is not None
        return play_all(contestant, [gateway[0]], [*pids, gateway[1]], seconds, pool)

    pool = ProcessPoolExecutor(max(args.processes), multiprocessing.get_context("spawn"))
    for contestant in contestants:  # warm-up: first batches, first updates, buffers
        play_one(contestant, min(args.seconds, 3.0))
    outcomes: dict[Contestant, list[Outcome]] = {c: [] for c in contestants}
    for number in range(args.rounds):
        for contestant in contestants:
            print(f"round {number + 1}: {contestant}", file=sys.stderr, flush=True)
            outcomes[contestant].append(play_one(contestant, args.seconds))
    pool.shutdown()
    print(f"{len(addresses)} servers, {args.rounds} rounds of {args.seconds:g} s, in turn")
    print(f"{'':41}{'env steps/s (range)':>26}{'exchange ms p50':>17}{'p99':>7}{'cpu ms/step':>13}")
    for contestant, rounds in outcomes.items():
        rates = [r.steps_per_s for r in rounds]
        exchanges = np.concatenate([r.exchange_ms for r in rounds])
        p50, p99 = np.percentile(exchanges, [50, 99])
        cpu = statistics.median(r.cpu_ms_per_step for r in rounds)
        span = f"{statistics.median(rates):,.0f} ({min(rates):,.0f}..{max(rates):,.0f})"
        print(f"{contestant!s:41}{span:>26}{p50:>17.2f}{p99:>7.1f}{cpu:>13.2f}")


if __name__ == "__main__":
    main()
