"""Plays a game with policies that `muxrl export` wrote: numpy and ONNX Runtime act, nothing else.

python -m muxrl.experiments.examples.play_onnx runs/chase-20261123-101500/onnx
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from typing import Any

from muxrl.client.onnx_policy import load_onnx
from muxrl.experiments.simulations.torus_chase import TorusChase


def play(
    simulation: Any, policies: Mapping[str, Callable[[Any], Any]], seed: int
) -> dict[str, float]:
    """Returns what each agent earned in one episode; the policies are new, or reset."""
    observations, _ = simulation.reset(seed=seed)
    returns = dict.fromkeys(observations, 0.0)
    while simulation.agents:
        actions = {agent: policies[agent](seen) for agent, seen in observations.items()}
        observations, rewards, _, _, _ = simulation.step(actions)
        for agent, reward in rewards.items():
            returns[agent] += reward
    return returns


if __name__ == "__main__":
    for seed in range(10):
        print(seed, play(TorusChase(), load_onnx(sys.argv[1]), seed))
