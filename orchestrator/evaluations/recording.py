"""Episodes to look at: a simulation whose steps are written down, or filmed, as it is played."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TextIO

import numpy as np
from numpy.typing import NDArray

from muxrl.client.adapters.simulation import Simulation, StepResult
from muxrl.orchestrator.errors import CannotEvaluate

RENDER_MODE = "rgb_array"
_FRAME_MS = 100


class _Around:
    """A simulation with another one inside, which does all the work."""

    def __init__(self, simulation: Simulation) -> None:
        self._inside = simulation
        self.possible_agents = simulation.possible_agents
        self.observation_spaces = simulation.observation_spaces
        self.action_spaces = simulation.action_spaces
        self.state_size = simulation.state_size

    def reset(
        self, seed: int | None = None, options: Mapping[str, float] | None = None
    ) -> tuple[dict[str, Any], dict[str, dict[str, Any]]]:
        return self._inside.reset(seed, options)

    def step(self, actions: dict[str, Any]) -> StepResult:
        return self._inside.step(actions)

    def state(self) -> NDArray[np.float32] | None:
        return self._inside.state()

    def close(self) -> None:
        self._inside.close()


class Recorded(_Around):
    """Writes what each agent saw, did and earned, a JSON object a line.

    Keys: ``seed`` of the episode's reset, ``t`` (env step, from 0), ``agent``, ``observation`` and
    ``action`` (null where the agent only earned something), ``reward``, ``terminated``,
    ``truncated``, and ``final_observation`` of agents that are done, where there is one.

    Args:
        simulation: what is played.
        file: where the lines go; several simulations may share it in one thread.
    """

    def __init__(self, simulation: Simulation, file: TextIO) -> None:
        super().__init__(simulation)
        self._file = file
        self._seed: int | None = None
        self._t = 0
        self._seen: dict[str, Any] = {}

    def reset(
        self, seed: int | None = None, options: Mapping[str, float] | None = None
    ) -> tuple[dict[str, Any], dict[str, dict[str, Any]]]:
        observations, infos = super().reset(seed, options)
        self._seed, self._t, self._seen = seed, 0, observations
        return observations, infos

    def step(self, actions: dict[str, Any]) -> StepResult:
        result = super().step(actions)
        done = result.terminations.keys() | result.truncations.keys()
        for agent in dict.fromkeys((*self._seen, *result.rewards, *sorted(done))):
            row = {
                "seed": self._seed,
                "t": self._t,
                "agent": agent,
                "observation": self._seen.get(agent),
                "action": actions.get(agent),
                "reward": result.rewards.get(agent, 0.0),
                "terminated": agent in result.terminations,
                "truncated": agent in result.truncations,
            }
            if agent in result.final_observations:
                row["final_observation"] = result.final_observations[agent]
            self._file.write(json.dumps(row, default=_plain) + "\n")
        self._t += 1
        self._seen = result.observations
        return result


class Filmed(_Around):
    """Makes an animated GIF of each episode, ``episode-SEED.gif``, ten steps a second.

    Args:
        simulation: what is played; its environment was made with ``render_mode="rgb_array"``.
        folder: where the pictures go.

    Raises:
        CannotEvaluate: the environment gives no picture.
    """

    def __init__(self, simulation: Simulation, folder: Path) -> None:
        super().__init__(simulation)
        self._folder = folder
        self._name = ""
        simulation.reset(0)  # many environments have nothing to show before
        self._frames = [self._picture()]

    def reset(
        self, seed: int | None = None, options: Mapping[str, float] | None = None
    ) -> tuple[dict[str, Any], dict[str, dict[str, Any]]]:
        observations, infos = super().reset(seed, options)
        self._name, self._frames = f"episode-{seed}.gif", [self._picture()]
        return observations, infos

    def step(self, actions: dict[str, Any]) -> StepResult:
        result = super().step(actions)
        self._frames.append(self._picture())
        if result.is_over:
            self._save()
        return result

    def _picture(self) -> NDArray[np.uint8]:
        render = getattr(self._inside, "render", None)
        picture = None if render is None else render()
        if not (isinstance(picture, np.ndarray) and picture.ndim == 3 and picture.shape[2] == 3):
            got = type(picture).__name__ if picture is None else f"shape {np.shape(picture)}"
            raise CannotEvaluate(
                f"the environment cannot be filmed: with render_mode={RENDER_MODE!r} its render() "
                f"gave {got}, not an array of [height, width, 3]"
            )
        return np.array(picture, np.uint8)  # many draw each step into the same array

    def _save(self) -> None:
        from PIL import Image

        first, *rest = (Image.fromarray(frame) for frame in self._frames)
        first.save(
            self._folder / self._name,
            save_all=True,
            append_images=rest,
            duration=_FRAME_MS,
            loop=0,
        )
        self._frames = []


def _plain(value: Any) -> Any:
    """Returns an array or a number of NumPy's as JSON has it."""
    if isinstance(value, np.ndarray | np.generic):
        return value.tolist()
    if isinstance(value, Mapping):
        return dict(value)
    raise TypeError(f"{type(value).__name__} cannot be written as JSON")
