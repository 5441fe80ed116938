"""Plays a game with policies that `muxrl export` wrote: numpy and ONNX Runtime act, nothing else.

python -m muxrl.experiments.examples.play_onnx runs/chase-20261123-101500/onnx
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime

from muxrl.experiments.simulations.torus_chase import TorusChase


class Player:
    """One agent in one episode.

    Args:
        session: its policy's file, which other agents may share.
        agent_id: the agent.
    """

    def __init__(self, session: onnxruntime.InferenceSession, agent_id: str) -> None:
        about = session.get_modelmeta().custom_metadata_map
        agents = json.loads(about["muxrl.agents"])
        self._num_frames = int(about["muxrl.frame_stack"])
        self._frames: list[dict[str, Any]] = []
        self._session = session
        self._inputs = [port.name for port in session.get_inputs()]
        self._outputs = [port.name for port in session.get_outputs()]
        self._known: dict[str, Any] = {
            "agent_id": agents[agent_id].get("agent_id"),
            "last_action": -1,
        }
        for port in session.get_inputs():
            if port.name.startswith("state_in"):
                self._known[port.name] = np.zeros(port.shape[1:], np.float32)

    def act(self, observation: Any, is_asked: bool = True) -> Any:
        """Returns the greedy action for an observation.

        In a team with a GRU, call it with `is_asked` False and any observation where others of
        the team act and this agent does not.
        """
        seen = dict(leaves(observation))
        if self._num_frames > 1:
            seen = {**seen, **self._stacked(seen, is_asked)}
        given = {**self._known, "alive": np.float32(is_asked), **seen}
        inputs = {name: np.asarray(given[name])[None] for name in self._inputs}
        values = self._session.run(None, inputs)
        outputs = {name: value[0] for name, value in zip(self._outputs, values, strict=True)}
        for name, value in outputs.items():
            if name.startswith("state_out"):
                self._known[name.replace("state_out", "state_in")] = value
        if is_asked:
            self._known["last_action"] = outputs["action"]
        return outputs["action"]

    def _stacked(self, seen: dict[str, Any], is_asked: bool) -> dict[str, Any]:
        """Returns the last observations; the first one stands for those that are missing."""
        frames = [*(self._frames or [seen] * self._num_frames)[1:], seen]
        if is_asked:
            self._frames = frames
        return {key: np.stack([f[key] for f in frames]) for key in seen if key != "action_mask"}


def leaves(value: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    """Yields the inputs of an observation: its parts by their path, as in ``position.x``."""
    if isinstance(value, dict | tuple):
        for key, part in value.items() if isinstance(value, dict) else enumerate(value):
            yield from leaves(part, f"{path}.{key}" if path else str(key))
    else:
        yield path or "observation", value


def players(folder: str | Path) -> dict[str, Player]:
    """Returns a player for each agent of the files in a folder."""
    found: dict[str, Player] = {}
    for path in Path(folder).rglob("*.onnx"):
        session = onnxruntime.InferenceSession(path)
        agents = json.loads(session.get_modelmeta().custom_metadata_map["muxrl.agents"])
        found |= {agent_id: Player(session, agent_id) for agent_id in agents}
    return found


def play(simulation: Any, everybody: Mapping[str, Player], seed: int) -> dict[str, float]:
    """Returns what each agent earned in one episode."""
    observations, _ = simulation.reset(seed=seed)
    returns = dict.fromkeys(observations, 0.0)
    while simulation.agents:
        actions = {agent: everybody[agent].act(seen) for agent, seen in observations.items()}
        observations, rewards, _, _, _ = simulation.step(actions)
        for agent, reward in rewards.items():
            returns[agent] += reward
    return returns


if __name__ == "__main__":
    for seed in range(10):
        print(seed, play(TorusChase(), players(sys.argv[1]), seed))
