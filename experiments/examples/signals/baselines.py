"""Baselines without learning on the same grid, measured alike: fixed times and max-pressure.

python experiments/examples/signals/baselines.py max_pressure --num-seeds 10
"""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import signals

from muxrl.client.episode_metrics import MetricCollector

Links = Sequence[Sequence[Sequence[str]]]
"""A signal's links as TraCI gives them: for each letter of a phase the connections (incoming lane,
outgoing lane, lane inside) that it lets through."""
Controller = Callable[[Any], Mapping[str, int]]
"""Returns the agents' actions for an environment."""


def pressures(phases: Sequence[str], links: Links, num_vehicles: Mapping[str, int]) -> list[float]:
    """Returns for each phase how many more vehicles are before its green lights than behind them.

    The weights of Varaiya 2013 (Max pressure control of a network of signalized intersections,
    Transportation Research C 36), with one vehicle a second for every movement. An outgoing road's
    vehicles are spread over those of its lanes that a movement leads to, and each incoming lane
    counts once in a phase.
    """
    found = []
    for phase in phases:
        behind: dict[str, list[int]] = {}
        for light, connections in zip(phase, links, strict=True):
            if light in "Gg":
                for incoming, outgoing, _ in connections:
                    behind.setdefault(incoming, []).append(num_vehicles[outgoing])
        found.append(
            sum(num_vehicles[lane] - statistics.mean(after) for lane, after in behind.items())
        )
    return found


def max_pressure(env: Any) -> dict[str, int]:
    """Returns the phase with the highest pressure for each signal, or its present one if equal."""
    actions = {}
    for agent, signal in env.unwrapped.env.traffic_signals.items():
        lanes = {*signal.lanes, *signal.out_lanes}
        num_vehicles = {lane: signal.sumo.lane.getLastStepVehicleNumber(lane) for lane in lanes}
        links = signal.sumo.trafficlight.getControlledLinks(agent)
        found = pressures([p.state for p in signal.green_phases], links, num_vehicles)
        now = signal.green_phase
        actions[agent] = now if found[now] == max(found) else found.index(max(found))
    return actions


def any_phase(env: Any) -> dict[str, int]:
    """Returns phases at random."""
    return {agent: int(env.action_space(agent).sample()) for agent in env.agents}


def play(env: Any, controller: Controller, seed: int) -> dict[str, float]:
    """Plays an episode, and returns its metrics."""
    env.reset(seed=seed)
    metrics = MetricCollector(signals.METRICS)
    while env.agents:
        *_, infos = env.step(controller(env))
        metrics.add(infos)
    return {name: values["__common__"] for name, values in metrics.result().items()}


if __name__ == "__main__":
    # With a fixed program, which sumo-rl calls fixed_ts, signals ignore the actions.
    controllers = {"random": any_phase, "max_pressure": max_pressure, "fixed_time": any_phase}
    parser = argparse.ArgumentParser()
    parser.add_argument("controller", choices=controllers)
    parser.add_argument("--num-seeds", type=int, default=10)
    parser.add_argument("--num-seconds", type=int, default=900)
    args = parser.parse_args()
    env = signals.make_env(args.num_seconds, fixed_ts=args.controller == "fixed_time")
    for agent in env.possible_agents:
        env.action_space(agent).seed(0)
    played = [play(env, controllers[args.controller], seed) for seed in range(args.num_seeds)]
    for name in signals.METRICS:
        values = [metrics[name] for metrics in played]
        print(f"{name}: {statistics.mean(values):.2f} [{min(values):.2f} to {max(values):.2f}]")
