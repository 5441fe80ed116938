"""The loop of twenty_lines.py over plain HTTP and JSON, as any language can speak them."""

from typing import Any

import numpy as np
import requests
from mpe2 import simple_tag_v3

SERVERS = {
    "http://127.0.0.1:9900": ["adversary_0", "adversary_1", "adversary_2"],
    "http://127.0.0.1:9910": ["agent_0"],
}
session = requests.Session()


def post(url: str, **message: Any) -> Any:
    """Returns the answer to a message; a refusal raises."""
    response = session.post(url, json=message, timeout=120)
    response.raise_for_status()
    return response.json()


def share(values: dict[str, Any], agents: list[str]) -> dict[str, Any]:
    """Returns what belongs to these agents, arrays as lists."""
    return {a: np.asarray(values[a]).tolist() for a in agents if a in values}


simulation = simple_tag_v3.parallel_env(max_cycles=25)
for episode in range(10):
    observations, _ = simulation.reset(seed=episode)
    rewards: dict[str, float] = {}
    t = 0
    episode_id = post(f"{next(iter(SERVERS))}/v1/episodes")["episode_id"]
    for url in SERVERS:
        post(f"{url}/v1/episodes", episode_id=episode_id)  # on the first one: a repeat, harmless
    while simulation.agents:
        actions: dict[str, int] = {}
        for url, agents in SERVERS.items():
            step = {
                "type": "step",
                "episode_id": episode_id,
                "t": t,
                "observations": share(observations, agents),
                "rewards": share(rewards, agents),  # for the actions of step t - 1
            }
            reply = post(f"{url}/v1/step", items=[step])["replies"][0]
            if reply["type"] == "refused":
                raise SystemExit(reply["message"])
            actions |= reply["actions"]
        observations, rewards, _, _, _ = simulation.step(actions)
        t += 1
    for url, agents in SERVERS.items():
        ended = post(
            f"{url}/v1/episodes/{episode_id}/end",
            t=t,
            is_truncated=True,
            rewards=share(rewards, agents),
            final_observations=share(observations, agents),
        )
        print(ended)
