"""Environments with their authors' habits: those that are taken as they are and play, and those
that are refused at once."""

from __future__ import annotations

import sys
import time
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium.spaces import Box, Dict, Discrete
from pettingzoo import ParallelEnv
from ray.rllib.env.multi_agent_env import MultiAgentEnv
from tests.client.scripted_envs import BOX, TwoAgents, gives, raises

from muxrl.client import first_look
from muxrl.client.adapters import SimulationError, adapt, make_simulation
from muxrl.client.adapters.factory import naming
from muxrl.client.first_look import look

Play = Any


class MyBox(Box): ...


class MyDict(Dict): ...


class MyDiscrete(Discrete): ...


class Subclasses(TwoAgents):
    def observation_space(self, agent: str) -> Any:
        return MyDict({"x": MyBox(-1, 1, (2,), np.float32), "n": MyDiscrete(4)})

    def action_space(self, agent: str) -> Any:
        return MyDiscrete(3)

    def seen(self) -> Any:
        return {agent: {"x": np.zeros(2), "n": np.int64(1)} for agent in "ab"}


class DictsByAgent(gymnasium.Env):
    observation_space = Dict({"a": BOX, "b": BOX})
    action_space = Dict({"a": Discrete(3), "b": Discrete(3)})

    def __init__(self) -> None:
        self.env = TwoAgents()

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        return self.env.reset()

    def step(self, actions: Any) -> Any:
        seen, rewards, terminations, truncations, infos = self.env.step(actions)
        over = {"__all__": not self.env.agents}
        return seen, rewards, terminations, {**truncations, **over}, infos


class AfterReset(TwoAgents, ParallelEnv):  # type: ignore[misc]
    possible_agents = property(lambda self: self.known)

    def observation_space(self, agent: str) -> Any:
        return self.box

    def reset(self, seed: int | None = None, options: Any = None) -> Any:
        self.known, self.box = ["a", "b"], BOX
        return super().reset()


class NobodyBeforeReset(AfterReset):
    known: Any = None


class OneAfterReset(gymnasium.Env):
    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        self.observation_space, self.action_space = BOX, Discrete(2)
        return np.zeros(3, np.float32), {}

    def step(self, action: int) -> Any:
        return np.zeros(3, np.float32), 1.0, True, False, {}


class OneObservationAlone(OneAfterReset):
    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        return super().reset()[0]


class OneWithoutInfos(OneAfterReset):
    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        return super().reset()[0], None


class RLlibAlone(TwoAgents, MultiAgentEnv):  # type: ignore[misc]
    observation_spaces = dict.fromkeys("ab", BOX)
    action_spaces = dict.fromkeys("ab", Discrete(3))

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:  # type: ignore[override]
        return super().reset()[0]


class RLlibAsked(RLlibAlone):
    observation_spaces = action_spaces = observation_space = action_space = None  # type: ignore

    def get_observation_space(self, agent: Any) -> Any:
        return BOX

    def get_action_space(self, agent: Any) -> Any:
        return Discrete(3)


class NoClose(TwoAgents):
    def __getattribute__(self, name: str) -> Any:
        if name == "close":
            raise AttributeError(name)
        return super().__getattribute__(name)


class Seedless(TwoAgents):
    def reset(self) -> Any:  # type: ignore[override]
        return super().reset()


class ExitsInInit(TwoAgents):
    def __init__(self) -> None:
        sys.exit("no licence")


@pytest.mark.parametrize(
    ("env", "notes"),
    [
        (Subclasses, []),
        (DictsByAgent, []),
        (AfterReset, []),
        (NobodyBeforeReset, []),
        (OneAfterReset, []),
        (gives(reset=lambda seen, _: seen), []),
        (OneObservationAlone, []),
        (gives(reset=lambda seen, _: (seen, None), step=lambda *five: (*five[:4], None)), []),
        (OneWithoutInfos, []),
        (RLlibAlone, []),
        (RLlibAsked, []),
        (NoClose, []),
        (Seedless, ["reset() takes no seed"]),
        (
            gives(close=raises(RuntimeError("connection lost"))),
            ["close() raised RuntimeError: connection lost (scripted_envs.py, line "],
        ),
        (gives(close=raises(SystemExit())), ["close() raised SystemExit (scripted_envs.py, line "]),
    ],
)
def test_an_environment_is_taken_as_it_is_and_plays(
    env: type, notes: list[str], play: Play
) -> None:
    assert play(adapt(env())).results
    found = look(adapt(env())).notes
    assert len(found) == len(notes)
    assert all(note in sentence for note, sentence in zip(notes, found, strict=True))


def shows(value: Any) -> type[TwoAgents]:
    return gives(seen=lambda self: dict.fromkeys("ab", value))


def pays(reward: Any) -> type[TwoAgents]:
    return gives(rewards=lambda self: dict.fromkeys("ab", reward))


@pytest.mark.parametrize(
    ("env", "refusal"),
    [
        (gives(reset=raises(SystemExit(3))), "failed with SystemExit: 3"),
        (gives(step=raises(SystemExit())), r"step\(\) raised SystemExit \("),
        (gives(step=raises(KeyError("up"))),
         r"step\(\) raised KeyError: 'up' \(scripted_envs.py, line "),
        (gives(lambda seen, rewards, _, dones, infos: (seen, rewards, dones, infos)),
         "returned 4 values; expected five: .*cut off cannot be told from"),
        (gives(lambda *_: None), "returned a NoneType; expected five"),
        (gives(lambda seen, _, *others: (seen, 1.0, *others)),
         r"step\(\) returned its rewards as a float; expected a dict by agent"),
        (gives(lambda seen, rewards, _, *others: (seen, rewards, False, *others)),
         r"step\(\) returned its terminations as a bool; expected a dict by agent"),
        (gives(reset=lambda *_: None),
         r"reset\(\) returned None; expected \(observations, infos\)"),
        (gives(reset=lambda *two: (*two, 0)),
         r"reset\(\) returned a tuple; expected \(observations, infos\), dicts"),
        (shows(np.zeros(4, np.float32)),
         r"reset\(\) gave agent 'a' .* expected Box\(3,\) float32, got shape \(4,\)"),
        (shows("nothing to see"),
         r"reset\(\) gave agent 'a' an observation .* got str 'nothing to see'"),
        (pays(float("nan")), r"step\(\) gave agent 'a' the reward nan"),
        (pays(None), "the reward of agent 'a' is None; it must be one number"),
        (pays("1.0"), "the reward of agent 'a' is '1.0'; it must be one number"),
        (pays(np.zeros(2)), r"the reward of agent 'a' .* the shape \(2,\); it must be one number"),
    ],
)  # fmt: skip
def test_an_environment_that_cannot_run_is_refused_before_it_does(
    env: type[TwoAgents], refusal: str
) -> None:
    with pytest.raises(SimulationError, match=refusal), naming("mine:Env", "a look"):
        look(adapt(env()))


def test_an_environment_that_exits_while_it_is_made_is_refused() -> None:
    with pytest.raises(SimulationError, match=r"SystemExit: no licence \(test_habits.py, line "):
        make_simulation(f"{__name__}:ExitsInInit", {})


class NothingAllowed(TwoAgents):
    """After the first step its action masks allow no action."""

    def observation_space(self, agent: str) -> Any:
        return Dict({"observation": BOX, "action_mask": Box(0, 1, (3,), np.int8)})

    def seen(self) -> Any:
        allowed = np.full(3, self.t == 0, np.int8)
        return {a: {"observation": np.zeros(3), "action_mask": allowed} for a in "ab"}


def test_a_mask_that_allows_nothing_is_found_in_the_first_step() -> None:
    with pytest.raises(SimulationError, match=r"after step\(\), .* forbids every action"):
        look(adapt(NothingAllowed()))


def test_a_close_that_takes_long_is_logged(caplog: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(first_look, "_SLOW_S", 0.01)
    look(adapt(gives(close=lambda self: time.sleep(0.05))()))
    (record,) = caplog.records
    assert record.message.startswith("the environment's close() has taken 0.01 s so far")


def test_equal_keys_of_observation_and_action_dicts_are_the_agents() -> None:
    assert adapt(DictsByAgent()).possible_agents == ("a", "b")
    one = DictsByAgent()
    one.action_space = Dict({"up": Discrete(2), "left": Discrete(2)})
    assert adapt(one).possible_agents == ("agent",)


@pytest.mark.parametrize("env_id", ["classic/rps-v2", "classic/tictactoe-v3", "classic/rps_v2"])
def test_ids_of_pettingzoo(env_id: str, play: Play) -> None:
    simulation = make_simulation(f"pettingzoo:{env_id}", {})
    assert len(simulation.possible_agents) == 2
    look(simulation)
    with pytest.raises(SimulationError, match=r"failed with .*NotFound"):
        make_simulation("pettingzoo:classic/rsp-v2", {})
