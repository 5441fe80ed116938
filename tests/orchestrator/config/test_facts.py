"""What is known of a simulation before it starts: what it declares, or what its config says."""

import pytest

from muxrl.orchestrator.config import ExternalAgentConfig, SimulationConfig, probe
from muxrl.orchestrator.errors import ConfigError
from muxrl.protocol.spaces import Box, Discrete

DISCRETE = {"type": "discrete", "n": 2}


def external(**agents) -> SimulationConfig:
    return SimulationConfig(
        env="external",
        agents={a: ExternalAgentConfig(*spaces) for a, spaces in agents.items()},
    )


def test_a_number_in_quotes_is_a_number_in_a_space_too():
    box = {"type": "box", "shape": ["4"], "low": "-1"}
    facts = probe(external(a=(box, {"type": "discrete", "n": "2"})))
    assert facts.agents == {"a": (Box((4,), low=-1.0), Discrete(2))}


@pytest.mark.parametrize(
    ("space", "problem"),
    [
        ({"type": "bx"}, "has the unknown type 'bx'; did you mean 'box'?; types are box, "),
        ({"n": 2}, "has no type; types are box, discrete, "),
        ({"type": "discrete"}, "Object missing required field `n`"),
        ({"type": "discrete", "n": 0}, "Discrete(0) is not a space: "),
        ({"type": "discrete", "m": 2}, "a discrete space has no 'm'"),
        ({"type": "box", "shape": [2], "hihg": 1}, "a box space has no 'hihg'; did you mean 'high"),
        ({"type": "box", "shape": [2], "low": [1, 2, 3]}, "Box(2,) float32 is not a space: "),
        ({"type": "box", "shape": [2], "dtype": "flot32"}, "Box(2,) flot32 is not a space: "),
        ({"type": "tuple", "spaces": 3}, "spaces must be a mapping or a list of spaces, got 3"),
        ({"type": "tuple", "spaces": None}, "spaces must be a mapping or a list of spaces, got N"),
        ({"type": ["box"]}, "has the unknown type ['box']; did you mean 'box'?"),
        ({"type": "box", "shape": [10**9, 10**9]}, "Box(1000000000, 1000000000) float32 is not a "),
        (
            {"type": "dict", "spaces": {"x": {"type": "discret", "n": 2}}},
            "spaces.x: has the unknown type 'discret'; did you mean 'discrete'?",
        ),
    ],
)
def test_an_invalid_space_of_an_external_simulation_is_refused(space, problem):
    with pytest.raises(ConfigError) as caught:
        probe(external(a=(space, DISCRETE)))
    (found,) = caught.value.problems
    assert found.startswith(f"simulation.agents.a.observation_space: {problem}")


@pytest.mark.parametrize(
    ("agents", "problem"),
    [
        (["a_{0..4}", "a_3"], "'a_3' is declared twice, by 'a_{0..4}' and 'a_3'"),
        (["a_3", "a_{0..4}"], "'a_3' is declared twice, by 'a_3' and 'a_{0..4}'"),
        (["a_{4..0}"], "'a_{4..0}' counts downwards; write {0..4}"),
        (
            ["a_*"],
            "'a_*' declares no agent: patterns are for the agents of servers, but here each agent "
            "needs a name; give numbers, such as 'a_{0..3}'",
        ),
    ],
)
def test_agents_that_are_declared_twice_or_wrongly_are_refused(agents, problem):
    with pytest.raises(ConfigError) as caught:
        probe(external(**dict.fromkeys(agents, (DISCRETE, DISCRETE))))
    assert caught.value.problems == [f"simulation.agents: {problem}"]
