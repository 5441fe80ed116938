"""Environments as people have them: what is taken for what it is, and what is refused at once."""

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

from muxrl.client import first_look
from muxrl.client.adapters import SimulationError, adapt, make_simulation
from muxrl.client.adapters.factory import naming
from muxrl.client.first_look import look

Play = Any
BOX = Box(-1, 1, (3,), np.float32)


class Env:
    """Two agents, ten steps."""

    possible_agents = ("a", "b")
    seen: Any = np.zeros(3, np.float32)
    reward: Any = 1.0

    def __init__(self) -> None:
        self.agents: list[str] = []

    def observation_space(self, agent: str) -> Any:
        return BOX

    def action_space(self, agent: str) -> Any:
        return Discrete(3)

    def reset(self, seed: int | None = None, options: Any = None) -> Any:
        self.t, self.agents = 0, list(self.possible_agents)
        return dict.fromkeys(self.agents, self.seen), {}

    def step(self, actions: dict[str, Any]) -> Any:
        self.t += 1
        acted, is_over = self.agents, self.t == 10
        self.agents = [] if is_over else acted
        none = dict.fromkeys(acted, False)
        return (
            dict.fromkeys(acted, self.seen),
            dict.fromkeys(acted, self.reward),
            none,
            dict.fromkeys(acted, is_over),
            {},
        )

    def close(self) -> None: ...


class MyBox(Box): ...


class MyDict(Dict): ...


class MyDiscrete(Discrete): ...


class Subclasses(Env):
    def observation_space(self, agent: str) -> Any:
        return MyDict({"x": MyBox(-1, 1, (2,), np.float32), "n": MyDiscrete(4)})

    def action_space(self, agent: str) -> Any:
        return MyDiscrete(3)

    seen = {"x": np.zeros(2), "n": np.int64(1)}


class DictsByAgent(gymnasium.Env):
    observation_space = Dict({"a": BOX, "b": BOX})
    action_space = Dict({"a": Discrete(3), "b": Discrete(3)})

    def __init__(self) -> None:
        self.env = Env()

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        return self.env.reset()

    def step(self, actions: Any) -> Any:
        seen, rewards, terminations, truncations, infos = self.env.step(actions)
        over = {"__all__": not self.env.agents}
        return seen, rewards, terminations, {**truncations, **over}, infos


class AfterReset(ParallelEnv):  # type: ignore[misc]
    def __init__(self) -> None:
        self.env = Env()

    def observation_space(self, agent: str) -> Any:
        return self.box

    def action_space(self, agent: str) -> Any:
        return Discrete(3)

    def reset(self, seed: int | None = None, options: Any = None) -> Any:
        self.possible_agents, self.box = ["a", "b"], BOX
        given = self.env.reset()
        self.agents = self.env.agents
        return given

    def step(self, actions: Any) -> Any:
        given = self.env.step(actions)
        self.agents = self.env.agents
        return given


class NobodyBeforeReset(AfterReset):
    possible_agents: Any = None


class NotEvenAnAttribute(Env):
    @property
    def possible_agents(self) -> Any:  # type: ignore[override]
        return self.known

    def reset(self, seed: int | None = None, options: Any = None) -> Any:
        self.known = ["a", "b"]
        return super().reset()


class OneAfterReset(gymnasium.Env):
    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        self.observation_space, self.action_space = BOX, Discrete(2)
        return np.zeros(3, np.float32), {}

    def step(self, action: int) -> Any:
        return np.zeros(3, np.float32), 1.0, True, False, {}


class ObservationsAlone(Env):
    def reset(self, seed: int | None = None, options: Any = None) -> Any:
        return super().reset()[0]


class OneObservationAlone(OneAfterReset):
    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        return super().reset()[0]


class NoInfos(Env):
    def reset(self, seed: int | None = None, options: Any = None) -> Any:
        return super().reset()[0], None

    def step(self, actions: Any) -> Any:
        return (*super().step(actions)[:4], None)


class OneWithoutInfos(OneAfterReset):
    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        return super().reset()[0], None


class RLlibAlone(MultiAgentEnv):  # type: ignore[misc]
    possible_agents = ["a", "b"]
    observation_spaces = dict.fromkeys("ab", BOX)
    action_spaces = dict.fromkeys("ab", Discrete(3))

    def __init__(self, config: Any = None) -> None:
        super().__init__()
        self.env = Env()

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        return self.env.reset()[0]

    def step(self, actions: Any) -> Any:
        return self.env.step(actions)


class NoClose(Env):
    close: Any = None

    def __getattribute__(self, name: str) -> Any:
        if name == "close":
            raise AttributeError(name)
        return super().__getattribute__(name)


class Seedless(Env):
    def reset(self) -> Any:  # type: ignore[override]
        return super().reset()


class RaisesInClose(Env):
    def close(self) -> None:
        raise RuntimeError("connection lost")


class ExitsInClose(Env):
    def close(self) -> None:
        sys.exit()


class ExitsInInit(Env):
    def __init__(self) -> None:
        sys.exit("no licence")


def named(env: type) -> str:
    return f"{__name__}:{env.__name__}"


@pytest.mark.parametrize(
    ("env", "notes"),
    [
        (Subclasses, []),
        (DictsByAgent, []),
        (AfterReset, []),
        (NobodyBeforeReset, []),
        (NotEvenAnAttribute, []),
        (OneAfterReset, []),
        (ObservationsAlone, []),
        (OneObservationAlone, []),
        (NoInfos, []),
        (OneWithoutInfos, []),
        (RLlibAlone, []),
        (NoClose, []),
        (Seedless, ["reset() takes no seed"]),
        (RaisesInClose, ["close() raised RuntimeError: connection lost (test_habits.py, line "]),
        (ExitsInClose, ["close() raised SystemExit (test_habits.py, line "]),
    ],
)
def test_it_is_taken_as_it_is_and_plays(env: type, notes: list[str], play: Play) -> None:
    assert play(make_simulation(named(env), {})).results
    found = look(make_simulation(named(env), {})).notes
    assert len(found) == len(notes)
    assert all(note in sentence for note, sentence in zip(notes, found, strict=True))


def gives(step: Any = None, reset: Any = None, **attributes: Any) -> type[Env]:
    """Returns an environment whose step or reset gives what is made of the usual values."""
    methods: dict[str, Any] = {}
    if step is not None:
        methods["step"] = lambda self, actions: step(*Env.step(self, actions))
    if reset is not None:
        methods["reset"] = lambda self, seed=None, options=None: reset(*Env.reset(self))
    return type("Gives", (Env,), methods | attributes)


def raises(error: BaseException) -> Any:
    def raised(*values: Any) -> Any:
        raise error

    return raised


@pytest.mark.parametrize(
    ("env", "refusal"),
    [
        (gives(reset=raises(SystemExit(3))), "failed with SystemExit: 3"),
        (gives(step=raises(SystemExit())), r"step\(\) raised SystemExit \("),
        (gives(step=raises(KeyError("up"))),
         r"step\(\) raised KeyError: 'up' \(test_habits.py, line "),
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
        (gives(seen=np.zeros(4, np.float32)),
         r"reset\(\) gave agent 'a' .* expected Box\(3,\) float32, got shape \(4,\)"),
        (gives(seen="nothing to see"),
         r"reset\(\) gave agent 'a' an observation .* got str 'nothing to see'"),
        (gives(reward=float("nan")), r"step\(\) gave agent 'a' the reward nan"),
        (gives(reward=None), "the reward of agent 'a' is None; it must be one number"),
        (gives(reward="1.0"), "the reward of agent 'a' is '1.0'; it must be one number"),
    ],
)  # fmt: skip
def test_what_cannot_run_is_said_before_it_does(env: type[Env], refusal: str) -> None:
    with pytest.raises(SimulationError, match=refusal), naming("mine:Env", "a look"):
        look(adapt(env()))


def test_nor_can_what_exits_as_it_is_made() -> None:
    with pytest.raises(SimulationError, match=r"SystemExit: no licence \(test_habits.py, line "):
        make_simulation(named(ExitsInInit), {})


class NothingAllowed(Env):
    """From the first step on."""

    def observation_space(self, agent: str) -> Any:
        return Dict({"observation": BOX, "action_mask": Box(0, 1, (3,), np.int8)})

    def reset(self, seed: int | None = None, options: Any = None) -> Any:
        self.seen = {"observation": np.zeros(3, np.float32), "action_mask": np.ones(3, np.int8)}
        return super().reset(seed, options)

    def step(self, actions: Any) -> Any:
        self.seen = {**self.seen, "action_mask": np.zeros(3, np.int8)}
        return super().step(actions)


def test_a_mask_that_allows_nothing_is_found_in_the_first_step() -> None:
    with pytest.raises(SimulationError, match=r"after step\(\), .* forbids every action"):
        look(adapt(NothingAllowed()))


class SlowToClose(Env):
    def close(self) -> None:
        time.sleep(0.05)


def test_what_takes_long_is_said(caplog: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(first_look, "_SLOW_S", 0.01)
    look(adapt(SlowToClose()))
    (record,) = caplog.records
    assert record.message.startswith("the environment's close() has taken 0.01 s so far")


def test_agents_of_two_dicts_are_the_keys() -> None:
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
