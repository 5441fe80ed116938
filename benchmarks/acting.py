"""Acting on rows: torch and numpy on one thread of the processor, and a GPU if there is one.

    OPENBLAS_NUM_THREADS=1 python -m benchmarks.acting

Prints the median milliseconds of a pass in a server, from arrays to arrays; contestants take turns.
Updates on a GPU are measured by `python -m benchmarks.learners --device cuda --simulations`.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, cast

import numpy as np
import torch

from muxrl.protocol.spaces import Box, Discrete
from muxrl.servers.agents.seating import Seating
from muxrl.servers.algorithms import torch_trainer
from muxrl.servers.config import AgentPlan, ResourcesConfig, ServerPlan
from muxrl.servers.episodes.blocks import Block, Mode, Seats
from muxrl.servers.lookup import find
from muxrl.servers.trainers.acting import Actors
from muxrl.servers.trainers.entry import TrainerEntry

ROWS = (1, 8, 64, 512, 4096)
VECTOR = Box((32,), "float32", -1.0, 1.0)
IMAGE = Box((84, 84, 4), "float32", 0.0, 1.0)
NETWORKS: dict[str, tuple[Box, dict[str, Any]]] = {
    "64x64": (VECTOR, {"fcnet_hiddens": [64, 64]}),
    "256x256": (VECTOR, {"fcnet_hiddens": [256, 256]}),
    "1024x1024": (VECTOR, {"fcnet_hiddens": [1024, 1024]}),
    "LSTM 256": (VECTOR, {"fcnet_hiddens": [256], "use_lstm": True, "lstm_cell_size": 256}),
    "84x84x4": (IMAGE, {}),
}
ACTIONS = Discrete(5)


def plan_of(network: str, *, is_on_gpu: bool = False) -> ServerPlan:
    """Returns the plan of a PPO server of one agent."""
    space, model = NETWORKS[network]
    agents = {"a": AgentPlan("p", space, ACTIONS)}
    resources = ResourcesConfig(num_gpus=float(is_on_gpu))
    return ServerPlan("one", "PPO", agents, {}, None, model=model, resources=resources)


def acting(network: str, *, is_on_gpu: bool) -> Actors:
    """Returns the actors of a PPO server."""
    plan, entry = plan_of(network, is_on_gpu=is_on_gpu), cast(TrainerEntry, find("PPO"))
    return entry.make_actors(plan, Seating().make_seats(plan))


def block_of(network: str, num_rows: int) -> Block:
    """Returns a step of `num_rows` episodes of one agent."""
    space, _ = NETWORKS[network]
    plan = plan_of(network)
    seats = Seats(plan.agents, Seating().make_seats(plan), num_rows)
    observations = np.zeros((num_rows, 1, *space.shape), np.float32)
    slots = list(range(num_rows))
    mode, where = Mode(seats, is_training=True, should_explore=True), slice(0, num_rows)
    ids = [""] * num_rows
    return Block(None, mode, seats.everybody, ids, slots, where, slots, [observations])


def timed(contestants: dict[str, Callable[[], Any]], least_s: float) -> dict[str, float]:
    """Returns the median milliseconds of each contestant, over at least 5 turns."""
    took: dict[str, list[float]] = {name: [] for name in contestants}
    begun = time.perf_counter()
    while len(next(iter(took.values()))) < 5 or time.perf_counter() - begun < least_s:
        for name, work in contestants.items():
            start = time.perf_counter()
            work()
            took[name].append((time.perf_counter() - start) * 1e3)
    return {name: statistics.median(times) for name, times in took.items()}


def compare(network: str, *, has_gpu: bool, least_s: float) -> Iterator[str]:
    """Yields a line for each number of rows."""
    contestants = {"torch": acting(network, is_on_gpu=False)}
    in_torch: Any = contestants["torch"].acting("p")
    if in_torch._in_numpy is not None:
        contestants["numpy"] = acting(network, is_on_gpu=False)
        in_torch._in_numpy = None
    if has_gpu:
        contestants["GPU"] = acting(network, is_on_gpu=True)
    for num_rows in ROWS[: -1 if network == "84x84x4" else None]:
        block = block_of(network, num_rows)
        for one in contestants.values():
            one.act([block])
        works = {name: partial(one.act, [block]) for name, one in contestants.items()}
        took = timed(works, least_s)
        yield f"{network:<10}{num_rows:>6} rows" + "".join(
            f"  {name} {milliseconds:8.3f} ms" for name, milliseconds in took.items()
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--seconds", type=float, default=0.3, help="of each timing, at least")
    args = parser.parse_args()
    torch.set_num_threads(1)
    torch_trainer._MIN_GPU_FLOPS = 0.0
    has_gpu = torch.cuda.is_available()
    print(torch.cuda.get_device_name() if has_gpu else "there is no GPU here")
    for network in NETWORKS:
        for line in compare(network, has_gpu=has_gpu, least_s=args.seconds):
            print(line, flush=True)


if __name__ == "__main__":
    main()
