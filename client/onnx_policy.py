"""Loads policies that `muxrl export` wrote, and acts with them: needs numpy and ONNX Runtime.

This file may be copied into a simulation's own environment.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np


class OnnxPolicy:
    """The greedy policy of one agent, with its memory of the current episode.

    Args:
        session: an ``onnxruntime.InferenceSession`` of the policy's file, which agents may share.
        agent_id: the agent.
    """

    def __init__(self, session: Any, agent_id: str) -> None:
        about = session.get_modelmeta().custom_metadata_map
        self._agent, self._about = agent_id, json.loads(about["muxrl.agents"])[agent_id]
        self._num_frames = int(about["muxrl.frame_stack"])
        self._session = session
        self._inputs = [port.name for port in session.get_inputs()]
        self._outputs = [port.name for port in session.get_outputs()]
        self.reset()

    def reset(self) -> None:
        """Begins an episode: forgets recurrent state, last action and frames."""
        self._frames: list[dict[str, Any]] = []
        self._known: dict[str, Any] = {"agent_id": self._about.get("agent_id"), "last_action": -1}
        for port in self._session.get_inputs():
            if port.name.startswith("state_in"):
                self._known[port.name] = np.zeros(port.shape[1:], np.float32)

    def __call__(self, observation: Any, is_asked: bool = True) -> Any:
        """Returns the action for an observation, both in the simulation's form.

        In a team with a GRU, call it with `is_asked` False and any observation when other agents
        of the team act and this one does not; it returns None then.
        """
        if not is_asked and "alive" not in self._inputs:  # its memory needs only its own steps
            return None
        seen = dict(leaves(observation))
        if self._num_frames > 1:
            seen = {**seen, **self._stacked(seen, is_asked)}
        given = {**self._known, "alive": np.float32(is_asked), **seen}
        if missing := [name for name in self._inputs if name not in given]:
            raise ValueError(
                f"agent {self._agent!r}: the network reads {missing[0]!r}, but "
                f"the observation has {', '.join(seen) or 'no parts'}"
            )
        inputs = {
            port.name: np.asarray(given[port.name], _dtype(port.type))[None]
            for port in self._session.get_inputs()
        }
        values = self._session.run(None, inputs)
        outputs = {name: value[0] for name, value in zip(self._outputs, values, strict=True)}
        for name, value in outputs.items():
            if name.startswith("state_out"):
                self._known[name.replace("state_out", "state_in")] = value
        if not is_asked:
            return None
        action = outputs["action"]
        self._known["last_action"] = action
        kind = self._about["action_space"]["type"]
        if kind == "discrete":
            return int(action)
        return tuple(action.tolist()) if kind == "tuple" else action

    def _stacked(self, seen: dict[str, Any], is_asked: bool) -> dict[str, Any]:
        """Returns the last observations, stacked; the first one fills in for missing ones."""
        frames = [*(self._frames or [seen] * self._num_frames)[1:], seen]
        if is_asked:
            self._frames = frames
        read = [key for key in seen if key.partition(".")[0] != "action_mask"]
        return {key: np.stack([f[key] for f in frames]) for key in read}


def _dtype(kind: str) -> str:
    """Returns numpy's name of ONNX Runtime's "tensor(float)"."""
    name = kind[len("tensor(") : -1]
    return {"float": "float32"}.get(name, name)  # a "double" is one of numpy's, too


def leaves(value: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    """Yields the parts of an observation with their path, such as ``position.x``."""
    if isinstance(value, dict | tuple):
        for key, part in value.items() if isinstance(value, dict) else enumerate(value):
            yield from leaves(part, f"{path}.{key}" if path else str(key))
    else:
        yield path or "observation", value


def load_onnx(path: str | Path) -> dict[str, OnnxPolicy]:
    """Returns by agent the policies in a file, or in all files of a folder."""
    import onnxruntime

    found: dict[str, OnnxPolicy] = {}
    path = Path(path)
    for file in [path] if path.is_file() else sorted(path.rglob("*.onnx")):
        session = onnxruntime.InferenceSession(file)
        agents = json.loads(session.get_modelmeta().custom_metadata_map["muxrl.agents"])
        found |= {agent_id: OnnxPolicy(session, agent_id) for agent_id in agents}
    return found
