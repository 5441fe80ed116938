"""The conversation of `conversation.json`: a server with known actions, and the frames to it."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import replace

import numpy as np
from tests.compliance.real_servers import make_counter, make_plan

from muxrl.protocol.codec import encode_batch
from muxrl.protocol.messages import AbortEpisode, AnyItem, Batch, EndEpisode, StartEpisode, Step
from muxrl.protocol.spaces import Box, Discrete, Space
from muxrl.servers.config import AgentPlan
from muxrl.servers.server import PolicyServer


@contextlib.contextmanager
def serving() -> Iterator[str]:
    """Serves the scripted agents "car" (a vector) and "eye" (an image); yields the address."""
    spaces: dict[str, Space] = {"car": Box((2,)), "eye": Box((2, 2), "uint8", 0, 9)}
    plan = make_plan(
        "SCRIPTED",
        spaces,
        server_id="past",
        settings={"policy": f"{make_counter.__module__}:make_counter"},
    )
    agents = {name: AgentPlan(name, space, Discrete(3)) for name, space in spaces.items()}
    server = PolicyServer(replace(plan, agents=agents))
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
