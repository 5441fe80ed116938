"""The conversation of `conversation.json`: a server whose actions are known, and its frames."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from muxrl.protocol.codec import encode_batch
from muxrl.protocol.messages import (
    AbortEpisode,
    AnyItem,
    Batch,
    EndEpisode,
    StartEpisode,
    Step,
)
from muxrl.protocol.spaces import Box, Discrete
from muxrl.servers.config import AgentPlan, LimitsConfig, ResourcesConfig, ServerPlan
from muxrl.servers.server import PolicyServer


def make_counter(
    agent_id: str, observation_space: Any, action_space: Any, seed: int
) -> Callable[[Any], int]:
    """A scripted policy that counts the steps of its episode, modulo its actions."""
    steps = itertools.count()
    return lambda observation: next(steps) % int(action_space.n)


@contextlib.contextmanager
def serving() -> Iterator[str]:
    """Serves the scripted agents "car" (a vector) and "eye" (an image); yields the address."""
    spaces = {"car": Box((2,)), "eye": Box((2, 2), "uint8", 0, 9)}
    plan = ServerPlan(
        server_id="past",
        algorithm="SCRIPTED",
        agents={name: AgentPlan(name, space, Discrete(3)) for name, space in spaces.items()},
        groups={},
        state_size=None,
        team_reward="sum",
        settings={"policy": f"{__name__}:make_counter"},
        model={},
        while_learning="wait",
        max_policy_lag=1,
        host="127.0.0.1",
        port=0,
        token="",
        seed=0,
        resources=ResourcesConfig(),
        limits=LimitsConfig(),
    )
    server = PolicyServer(plan)
    server.start()
    try:
        yield server.address
    finally:
        server.stop()


def frames(episode_id: str, *, as_json: bool) -> Iterator[bytes]:
    """Yields an episode's frames: start and first step, a repeat, a wrong step, the end."""
    car, eye = np.array([0.25, 0.75], np.float32), np.array([[1, 2], [3, 4]], np.uint8)
    both = {"car": car, "eye": eye}
    rewards = {"car": 1.0, "eye": -0.5}
    second = Step(episode_id, 1, both, rewards)
    talk: list[list[AnyItem]] = [
        [StartEpisode(episode_id), Step(episode_id, 0, both)],
        [second],
        [second],
        [Step(episode_id, 7, both)],
        [Step(episode_id, 2, {"car": car}, rewards, terminations={"eye": True})],
        [EndEpisode(episode_id, 3, rewards={"car": 2.0})],
        [AbortEpisode(episode_id, "it is over already")],
    ]
    for items in talk:
        yield encode_batch(Batch(items), as_json=as_json)
