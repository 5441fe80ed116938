"""Which `simulation.parameters` are refused, and which values evaluations get."""

from __future__ import annotations

from typing import Any

import pytest

from muxrl.orchestrator.config import ConfigError, SimulationConfig, load_config, prepare, probe
from muxrl.orchestrator.config.checks import find_problems
from muxrl.orchestrator.config.parameters import of_evaluations

WHEN = {"metric": "win", "at_least": 0.8}


def problems(parameters: Any, evaluation: Any = None) -> list[str]:
    config = load_config(
        {
            "simulation": {"env": "m:e", "parameters": parameters, "metrics": {"win": "last"}},
            "servers": {"one": {"agents": ["*"]}},
            "stop": {"env_steps": 10},
            "evaluation": {"parameters": evaluation or {}},
        }
    )
    return find_problems(config)


def test_valid_parameters_are_taken() -> None:
    lessons = {"lessons": [3, 2.5]}
    for given in (
        *(2, 0.5, [[0, 1.0], [100, 3.0]], [[0, 1]]),
        *({"low": 1, "high": 1}, {"choice": [1, 2.5]}, {"sides": ["left", ["right"]]}),
        {**lessons, "next_when": {**WHEN, "of": "one", "episodes": 5}},
        {**lessons, "next_when": {"metric": "return", "at_most": 0}},
        {**lessons, "next_when": {"metric": "episode_length", "at_least": 9}},
    ):
        assert problems({"speed": given}) == []


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ("fast", "expected a number, a schedule"),
        (True, "expected a number"),
        ({"low": 1}, "expected a number"),
        ({"low": 3.0, "high": 1}, "low is 3, above high, 1"),
        ({"choice": [1, "b"]}, "expected a number"),
        (
            {"sides": ["left"]},
            "sides: must be two or more agents, or lists of agents, got ['left']",
        ),
        ([[0, 1.0], [0, 3.0]], "must begin at 0 and increase, got [0, 0]"),
        ([[5, 1.0]], "must begin at 0 and increase, got [5]"),
        ([[0, "a"]], "must be a list of pairs [env steps, number]"),
        ([], "must be a list of pairs [env steps, number]"),
        ({"lessons": [1, "two", 1], "next_when": WHEN}, "lessons: must be numbers, all different"),
        ({"lessons": [1, 2]}, "next_when: must be a mapping that has metric"),
        (
            {"lessons": [1, 2], "next_when": {**WHEN, "window": 3}},
            "must be a mapping that has metric, and no keys but metric, of,",
        ),
        (
            {"lessons": [1, 2], "when": 1, "next_when": WHEN},
            "has the unknown keys ['when']; known are lessons and",
        ),
        ({"lessons": [1, 2], "next_when": {"metric": "win"}}, "as at_least or at_most"),
        ({"lessons": [1, 2], "next_when": {**WHEN, "at_most": 1}}, "as at_least or at_most"),
        ({"lessons": [1, 2], "next_when": {**WHEN, "episodes": 0}}, "above 0, got 0"),
        ({"lessons": [1, 2], "next_when": {**WHEN, "of": "onw"}}, "no server 'onw'; did you mean"),
        ({"lessons": [1, 2], "next_when": {**WHEN, "metric": "wim"}}, "no metric 'wim'; did you"),
    ],
)
def test_invalid_parameters_are_refused(given: Any, says: str) -> None:
    (problem,) = problems({"speed": given})
    assert says in problem
    assert problem.startswith("simulation.parameters.speed")
    # A simulation that can be made is not asked to begin an episode with a wrong parameter.
    config = load_config("stairs", {"simulation.parameters.speed": given})
    with pytest.raises(ConfigError) as refused:
        prepare(config)
    assert any(p.startswith("simulation.parameters.speed") for p in refused.value.problems)


@pytest.mark.parametrize("name", ["win", "return", "episode_length", "truncated", "a b"])
def test_a_parameter_needs_a_name_of_its_own(name: str) -> None:
    (problem,) = problems({name: 1})
    assert "cannot have this name" in problem


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"spede": 1}, "has no parameter of this name; did you mean 'speed'?"),
        ({"speed": [[0, 1]]}, "all evaluations play with the same values"),
        ({"speed": {"low": 2}}, "expected a number"),
    ],
)
def test_evaluations_have_the_same_parameters_at_fixed_values(given: Any, says: str) -> None:
    (problem,) = problems({"speed": 1}, given)
    assert says in problem


def test_evaluations_get_the_values_with_which_the_run_ends() -> None:
    config = load_config("stairs")
    drawn = {"low": 1, "high": 2}
    config.simulation.parameters |= {"speed": [[0, 1.0], [10, 3.0]], "size": drawn, "cars": drawn}
    config.evaluation.parameters = {"cars": 5}
    expected = {"distance": 20, "speed": 3.0, "size": drawn, "cars": 5}
    assert of_evaluations(config) == expected


def test_an_environment_is_tried_with_its_parameters() -> None:
    simulation = load_config("stairs").simulation
    assert probe(simulation).agents.keys() == {"climber_0", "climber_1"}
    simulation.parameters = {"distance": {"choice": [21]}}
    with pytest.raises(ConfigError, match="distance is 21; the stairs have 20 steps"):
        probe(simulation)
    deaf = SimulationConfig(f"{__name__}:Deaf", parameters={"speed": 1})
    with pytest.raises(ConfigError, match=r"reset\(\) takes no options"):
        probe(deaf)


class Deaf:
    """A Gymnasium environment whose `reset` takes no options, as in older ones."""

    def __init__(self) -> None:
        from gymnasium import spaces

        self.observation_space = spaces.Discrete(2)
        self.action_space = spaces.Discrete(2)

    def reset(self, seed: int | None = None) -> Any:
        return 0, {}

    def step(self, action: Any) -> Any:
        return 0, 0.0, True, False, {}
