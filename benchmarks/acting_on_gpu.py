"""Where acting on a GPU pays: passes of many rows, beside the same on one thread of the processor.

    python -m benchmarks.acting_on_gpu

Milliseconds of a pass in a server, from arrays to arrays; medians. Needs a GPU. Updates there are
`python -m benchmarks.learners --device cuda --simulations`.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from functools import partial
from types import SimpleNamespace
from typing import Any

import gymnasium
import numpy as np
import torch
from ray.rllib.core.rl_module.multi_rl_module import MultiRLModuleSpec

from muxrl.servers.algorithms.registry import get_algorithm
from muxrl.servers.rllib import on_gpu
from muxrl.servers.rllib.inference import Inference

ROWS = (1, 8, 64, 512, 4096)
VECTOR = gymnasium.spaces.Box(-1.0, 1.0, (32,), np.float32)
IMAGE = gymnasium.spaces.Box(0.0, 1.0, (84, 84, 4), np.float32)
NETWORKS: dict[str, tuple[gymnasium.Space, dict[str, Any]]] = {
    "64x64": (VECTOR, {"fcnet_hiddens": [64, 64]}),
    "256x256": (VECTOR, {"fcnet_hiddens": [256, 256]}),
    "1024x1024": (VECTOR, {"fcnet_hiddens": [1024, 1024]}),
    "LSTM 256": (VECTOR, {"fcnet_hiddens": [256], "use_lstm": True, "lstm_cell_size": 256}),
    "84x84x4": (IMAGE, {}),
}
ACTIONS = gymnasium.spaces.Discrete(5)


def acting(network: str, *, is_on_gpu: bool) -> Inference:
    """Returns a PPO policy's acting."""
    space, model = NETWORKS[network]
    config = get_algorithm("PPO").make_config({}, model)
    spec = config.get_default_rl_module_spec()
    spec.observation_space, spec.action_space = space, ACTIONS
    spec.inference_only, spec.model_config = True, config.model_config
    build = MultiRLModuleSpec(rl_module_specs={"p": spec}).build
    return Inference(build, seed=0, on_gpu=is_on_gpu)


def steps(network: str, num_rows: int) -> Any:
    """Returns steps in rows of so many episodes of one agent."""
    space, _ = NETWORKS[network]
    observations = np.zeros((num_rows, 1, *(space.shape or ())), np.float32)
    seat = SimpleNamespace(policy_id="p", seat_id="a", action_space=ACTIONS)
    return SimpleNamespace(
        benches=SimpleNamespace(benches=[SimpleNamespace(policy_id="p", seats=[seat])]),
        episodes=range(num_rows),
        should_explore=True,
        is_training=True,
        observations=[observations],
        module_states=[None],
    )


def timed(work: Callable[[], Any], least_s: float) -> float:
    """Returns the median of the milliseconds that it takes, over at least 5 times."""
    took: list[float] = []
    begun = time.perf_counter()
    while len(took) < 5 or time.perf_counter() - begun < least_s:
        start = time.perf_counter()
        work()
        took.append((time.perf_counter() - start) * 1e3)
    return statistics.median(took)


def compare_acting(least_s: float) -> Iterator[str]:
    """Yields a line for each network and number of rows."""
    bound, on_gpu.MIN_FLOPS = on_gpu.MIN_FLOPS, 0.0
    for network in NETWORKS:
        here, there = (acting(network, is_on_gpu=far) for far in (False, True))
        for num_rows in ROWS[: -1 if network == "84x84x4" else None]:
            asked = steps(network, num_rows)
            for one in (here, there):
                one.act_rows([asked])
            cpu, gpu = (timed(partial(one.act_rows, [asked]), least_s) for one in (here, there))
            assert there._gpu is not None
            flops = there._gpu._flops["p"] * num_rows
            where = "GPU" if flops >= bound else "processor"
            yield (
                f"{network:<10} {num_rows:>5} rows {flops:9.1e} flops: processor {cpu:8.3f} ms, "
                f"GPU {gpu:7.3f} ms, {cpu / gpu:6.2f} times as fast; a server takes the {where}"
            )


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--seconds", type=float, default=0.3, help="of each timing, at least")
    args = parser.parse_args()
    if not torch.cuda.is_available():
        sys.exit("there is no GPU here")
    torch.set_num_threads(1)
    print(torch.cuda.get_device_name())
    for line in compare_acting(args.seconds):
        print(line, flush=True)


if __name__ == "__main__":
    main()
