"""Every adapter reads action masks that an environment puts into its infos."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces
from pettingzoo.utils.conversions import parallel_to_aec
from ray.rllib.env.multi_agent_env import MultiAgentEnv
from tests.client.scripted_envs import TwoAgents

from muxrl.client.adapters import Simulation, SimulationError, make_simulation
from muxrl.protocol.spaces import Box, DictSpace

Play = Callable[..., Any]
LENGTH = 4
SEES = spaces.Box(0.0, 10.0, (1,), np.float32)
MASKED = DictSpace({"observation": Box((1,), "float32", 0.0, 10.0),
                    "action_mask": Box((3,), "int8", 0, 1)})  # fmt: skip


class Steps:
    """An environment in which at step t only action t modulo 3 is allowed, and any other is an
    error.

    Args:
        masks: the type of a mask; None: there are no masks.
        silent: steps whose infos have no mask; every action is allowed in them.
    """

    def __init__(self, masks: Any = np.int8, silent: tuple[int, ...] = ()) -> None:
        self.masks, self.silent = masks, silent
        self.num_resets = 0

    def begin(self) -> None:
        self.t = 0
        self.num_resets += 1

    def shown(self) -> Any:
        return np.array([self.t], np.float32)

    def info(self) -> dict[str, Any]:
        if self.masks is None or self.t in self.silent:
            return {}
        if self.t == LENGTH:  # after the last step nobody acts
            return {"action_mask": np.zeros(3, np.int8)}
        mask = [0, 0, 0]
        mask[self.t % 3] = 1
        return {"action_mask": mask if self.masks is list else np.array(mask, self.masks)}

    def take(self, action: int) -> None:
        assert self.t in self.silent or action == self.t % 3


class InGymnasium(Steps, gymnasium.Env):
    observation_space = SEES
    action_space = spaces.Discrete(3)

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        self.begin()
        return self.shown(), self.info()

    def step(self, action: Any) -> Any:
        self.take(action)
        self.t += 1
        return self.shown(), 1.0, self.t == LENGTH, False, self.info()


class InParallel(Steps, TwoAgents):
    """Agent "a" puts its mask into its info; agent "b", which acts in a Box, has none."""

    sees = SEES

    def action_space(self, agent: str) -> spaces.Space:
        return spaces.Discrete(3) if agent == "a" else spaces.Box(-1.0, 1.0, (1,), np.float32)

    def reset(self, seed: int | None = None, options: Any = None) -> Any:
        self.begin()
        return super().reset()[0], self.infos()

    def step(self, actions: dict[str, Any]) -> Any:
        self.take(actions["a"])
        return super().step(actions)

    def seen(self) -> dict[str, Any]:
        return dict.fromkeys("ab", self.shown())

    def infos(self) -> dict[str, Any]:
        return {"a": self.info(), "b": {}}


class InRLlib(InParallel, MultiAgentEnv):
    def __init__(self, config: dict[str, Any] | None = None) -> None:
        MultiAgentEnv.__init__(self)
        Steps.__init__(self, **(config or {}))
        self.observation_spaces = dict.fromkeys("ab", SEES)
        self.action_spaces = {agent: self.action_space(agent) for agent in "ab"}

    def step(self, actions: dict[str, Any]) -> Any:
        seen, rewards, terminations, truncations, infos = super().step(actions)
        terminations["__all__"] = self.t == LENGTH
        truncations["__all__"] = False
        return seen, rewards, terminations, truncations, infos


def in_turns(**how: Any) -> Any:
    return parallel_to_aec(InParallel(**how))


KINDS = [InGymnasium, InParallel, InRLlib, in_turns]


def first_allowed(agent: str, observation: Any) -> Any:
    if isinstance(observation, dict):
        return int(observation["action_mask"].argmax())
    return np.zeros(1, np.float32)


def simulation_of(kind: Any, **kwargs: Any) -> Simulation:
    return make_simulation(f"{__name__}:{kind.__name__}", kwargs)


def masked(played: Any) -> list[Any]:
    """Returns what the only agent with a mask observed after each of its steps."""
    told = [r.observations | r.final_observations for r in played.results]
    found = [value for seen in told for value in seen.values() if isinstance(value, dict)]
    assert len(found) == LENGTH
    return found


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("masks", [np.int8, np.bool_, np.float64, list])
def test_masks_in_infos_are_part_of_observations(kind: type, masks: Any, play: Play) -> None:
    simulation = simulation_of(kind, masks=masks)
    discrete = {a: MASKED for a, s in simulation.action_spaces.items() if not isinstance(s, Box)}
    assert simulation.observation_spaces == {
        a: discrete.get(a, MASKED.spaces["observation"]) for a in simulation.possible_agents
    }
    for t, seen in enumerate(masked(play(simulation, first_allowed)), 1):
        assert seen["observation"].tolist() == [t]
        mask = seen["action_mask"].tolist()
        assert mask == [int(t < LENGTH and i == t % 3) for i in range(3)]


@pytest.mark.parametrize("kind", KINDS)
def test_without_a_mask_in_a_step_s_infos_every_action_is_allowed(kind: type, play: Play) -> None:
    seen = masked(play(simulation_of(kind, silent=(2,)), first_allowed))
    assert seen[1]["action_mask"].tolist() == [1, 1, 1]


@pytest.mark.parametrize("kind", KINDS)
def test_without_masks_in_infos_observations_stay_as_they_are(kind: type) -> None:
    simulation = simulation_of(kind, masks=None)
    assert set(simulation.observation_spaces.values()) == {MASKED.spaces["observation"]}
    observations, _ = simulation.reset()
    assert all(isinstance(value, np.ndarray) for value in observations.values())


@pytest.mark.parametrize("kind", KINDS)
def test_masks_that_begin_after_the_first_reset_are_refused(kind: type[Steps], play: Play) -> None:
    with pytest.raises(SimulationError, match=r"have an 'action_mask' now.* of reset\(\), too"):
        play(simulation_of(kind, silent=(0,)))


class WithParts(InGymnasium):
    observation_space = spaces.Dict({"near": SEES, "far": SEES})

    def shown(self) -> Any:
        return dict.fromkeys(("near", "far"), super().shown())


def test_a_dict_gets_the_mask_beside_its_parts(play: Play) -> None:
    simulation = simulation_of(WithParts)
    seen = simulation.observation_spaces["agent"]
    assert isinstance(seen, DictSpace)
    assert seen.spaces.keys() == {"near", "far", "action_mask"}
    assert len(play(simulation, first_allowed).results) == LENGTH


class WithItsOwn(InGymnasium):
    """Its observations already have a mask, so that its infos need not be searched for one."""

    observation_space = spaces.Dict({"observation": SEES, "action_mask": spaces.MultiBinary(3)})


def test_a_mask_in_the_observation_comes_first() -> None:
    simulation: Any = simulation_of(WithItsOwn)
    assert simulation._env.num_resets == 0


class OfAnotherLength(InGymnasium):
    action_space = spaces.Discrete(4)


def test_a_mask_of_another_length_is_refused_by_name() -> None:
    simulation = simulation_of(OfAnotherLength)
    with pytest.raises(
        SimulationError, match=r"agent 'agent' has the shape \[3\], but the agent has 4 actions"
    ):
        simulation.reset()
