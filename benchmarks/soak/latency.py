"""Measures how long a step waits for its actions, by an extra client while a run goes on."""

from __future__ import annotations

import socket
import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass

import numpy as np

from muxrl.client import MultiplexingClient
from muxrl.protocol.spaces import Box

NUM_EXCHANGES = 1_000
_STEPS_PER_EPISODE = 50


@dataclass(frozen=True)
class Latency:
    """Times of an exchange with all servers in an evaluation episode, which awaits no learner."""

    p50_ms: float
    p99_ms: float

    def __str__(self) -> str:
        return f"p50 {self.p50_ms:.1f} ms, p99 {self.p99_ms:.1f} ms"


def free_ports(num: int) -> list[int]:
    """Returns ports of the loopback address on which no process listens now."""
    with ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(num)]
        for one in sockets:
            one.bind(("127.0.0.1", 0))
        return [one.getsockname()[1] for one in sockets]


def measure(ports: Sequence[int]) -> Latency:
    """Plays evaluation episodes with random observations, one step after another.

    Raises:
        ClientError: a server is lost for longer than the client's patience.
    """
    rng = np.random.default_rng(0)
    durations_s = []
    with MultiplexingClient([f"127.0.0.1:{port}" for port in ports]) as client:
        shapes = {
            agent_id: agent.observation_space.shape
            for spec in client.specs.values()
            for agent_id, agent in spec.agents.items()
            if isinstance(agent.observation_space, Box)
        }
        while len(durations_s) < NUM_EXCHANGES:
            episode_id = client.start_episode(training_enabled=False)
            for _ in range(_STEPS_PER_EPISODE):
                observations = {
                    agent_id: rng.random(shape, np.float32) for agent_id, shape in shapes.items()
                }
                began = time.perf_counter()
                client.get_action(episode_id, observations)
                durations_s.append(time.perf_counter() - began)
            client.end_episode(episode_id)
    p50, p99 = np.percentile(np.array(durations_s) * 1e3, [50, 99])
    return Latency(float(p50), float(p99))
