"""The loop of twenty_lines.py over plain HTTP and JSON, as any language can speak them."""

from typing import Any

import numpy as np
import requests
from mpe2 import simple_tag_v3

URL = "http://127.0.0.1:9900/v1"
session = requests.Session()


class EpisodeIsOver(Exception):
    """The gateway refused; with code 423 the run is over, with 410 another episode may begin."""

    def __init__(self, refusal: dict[str, Any]) -> None:
        super().__init__(refusal["message"])
        self.code = refusal["code"]


def post(path: str, **message: Any) -> Any:
    """Returns the answer to a message."""
    answer = session.post(URL + path, json=message, timeout=600).json()
    reply = answer["replies"][0] if "replies" in answer else answer
    if reply["type"] == "refused":
        raise EpisodeIsOver(reply)
    return reply


def plain(values: dict[str, Any]) -> dict[str, Any]:
    """Returns arrays as lists."""
    return {agent: np.asarray(value).tolist() for agent, value in values.items()}


def play() -> None:
    """Plays one episode."""
    observations, _ = simulation.reset()
    episode: dict[str, Any] = {"episode_id": post("/episodes")["episode_id"]}
    rewards: dict[str, float] = {}
    t = 0
    while simulation.agents:
        said = {"observations": plain(observations), "rewards": plain(rewards)}
        reply = post("/step", items=[{"type": "step", "t": t} | episode | said])
        observations, rewards, _, _, _ = simulation.step(reply["actions"])
        t += 1
    said = {"rewards": plain(rewards), "final_observations": plain(observations)}
    post(f"/episodes/{episode['episode_id']}/end", t=t, is_truncated=True, **said)


simulation = simple_tag_v3.parallel_env(max_cycles=25)
while True:
    try:
        play()
    except EpisodeIsOver as error:
        print(error)
        if error.code != 410:
            break
