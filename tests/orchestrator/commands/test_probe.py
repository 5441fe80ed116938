"""``muxrl probe`` prints what ``muxrl check`` reads."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.client.scripted_servers import CountingSimulation
from tests.protocol.some_spaces import SPACES

from muxrl.orchestrator.cli import main
from muxrl.orchestrator.commands.probe import external_section
from muxrl.orchestrator.config import SimulationConfig, load_config, prepare, probe
from muxrl.orchestrator.errors import ConfigError

REST = "servers: {all: {algorithm: PPO, agents: ['*']}}\nstop: {env_steps: 5000}\n"


class Declared(CountingSimulation):
    """A simulation with these spaces."""

    def __init__(self, spaces: dict[str, tuple], state_size: int | None = None) -> None:
        self.possible_agents = tuple(spaces)
        self.observation_spaces = {agent: both[0] for agent, both in spaces.items()}
        self.action_spaces = {agent: both[1] for agent, both in spaces.items()}
        self.state_size = state_size


@pytest.mark.parametrize(
    ("env", "kwargs", "expected"),
    [
        pytest.param("mpe2.simple_tag_v3:parallel_env", {"max_cycles": 5}, "adversary_{0..2}:",
                     id="parallel"),
        pytest.param("mpe2.simple_speaker_listener_v4:env", {}, "listener_0:", id="aec"),
        pytest.param("gymnasium:Pendulum-v1", {"g": 9.5}, "agent:", id="gymnasium"),
        pytest.param("gymnasium:lbforaging:Foraging-8x8-3p-1f-v3", {}, "agent_{0..2}:",
                     id="gymnasium-of-several"),
    ],
)  # fmt: skip
def test_check_takes_what_probe_prints(
    env: str, kwargs: dict[str, float], expected: str, tmp_path: Path, capsys
) -> None:
    assert main(["probe", env, *(f"{key}={value}" for key, value in kwargs.items())]) == 0
    printed, err = capsys.readouterr()
    assert err == ""
    assert f"    {expected}\n" in printed
    path = tmp_path / "declared.yaml"
    path.write_text(printed + REST)
    facts = prepare(load_config(path)).facts
    seen = probe(SimulationConfig(env=env, kwargs=kwargs))
    # No one knows which agents of an external simulation act first.
    assert facts == replace(seen, first_agents=())
    assert main(["check", str(path)]) == 0


def test_a_vector_environment_is_declared_as_one_of_its_copies(capsys) -> None:
    assert main(["probe", "gymnasium:CartPole-v1"]) == 0
    alone = capsys.readouterr()
    assert main(["probe", "gymnasium:CartPole-v1", "--vector-env"]) == 0
    assert capsys.readouterr() == alone


AGENTS = st.sampled_from(
    ["a", "1", "0x1f", "null", "No", "x: y", "#", "é", "a b", "car_0", "car_1", "car_2", "car_03",
     "-", "{", "3e5", "~", "[a]", "*a", "N", "a.b"]
)  # fmt: skip


@settings(max_examples=20)
@given(
    spaces=st.dictionaries(AGENTS, st.tuples(SPACES, SPACES), min_size=1, max_size=5),
    state_size=st.sampled_from([None, 3]),
)
def test_every_printed_space_and_name_is_read_back_unchanged(
    spaces: dict[str, tuple], state_size: int | None, tmp_path_factory
) -> None:
    path = tmp_path_factory.mktemp("declared") / "declared.yaml"
    path.write_text(external_section(Declared(spaces, state_size)), encoding="utf-8")
    facts = probe(load_config(path).simulation)
    assert list(facts.agents.items()) == list(spaces.items())
    assert facts.state_size == state_size


def test_an_agent_whose_name_looks_like_a_range_is_refused() -> None:
    space = CountingSimulation().action_spaces["a"]
    with pytest.raises(ConfigError, match=r"agent 'car_\{0\.\.2\}' cannot be declared: in a"):
        external_section(Declared({"car_{0..2}": (space, space)}))


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["nowhere:make"], "muxrl: probe: simulation 'nowhere:make': no module 'nowhere'"),
        (["mpe2"], "muxrl: probe: simulation 'mpe2' is not of the form 'package.module:callable'"),
        (
            ["mpe2.simple_tag_v3:parallel_env", "max_cycle=5"],
            "unexpected keyword argument 'max_cycle'",
        ),
        (["mpe2.simple_tag_v3:parallel_env", "5"], "'5' must look like key=value"),
    ],
)
def test_a_simulation_that_cannot_be_made_is_explained_in_a_sentence(
    arguments: list[str], expected: str, capsys
) -> None:
    assert main(["probe", *arguments]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.count("\n") == 1
    assert expected in err


PLAIN_ENV = """
import numpy as np

class Discrete:
    n, start = 4, 0

class Box:
    shape, dtype = (2,), np.float32
    low, high = np.zeros(2), np.ones(2)

class Mine:
    observation_space, action_space = Box(), Discrete()
    def reset(self, seed=None): return np.zeros(2), {}
    def step(self, action): return np.zeros(2), 0.0, True, False, {}
    def close(self): pass
"""
"""A user's module whose spaces are like Gymnasium's, but which does not import it."""
PLAIN_SECTION = """simulation:
  env: external
  agents:
    agent:
      observation_space: {type: box, shape: [2], dtype: float32, low: 0.0, high: 1.0}
      action_space: {type: discrete, n: 4}
"""


def test_probe_imports_no_heavy_packages(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(PLAIN_ENV)
    code = (
        "import sys; from muxrl.orchestrator.cli import main\n"
        "assert main(['probe', 'mine:Mine']) == 0\n"
        "heavy = ['ray', 'torch', 'gymnasium', 'omegaconf', 'yaml', 'rich']\n"
        "print([name for name in heavy if name in sys.modules])\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.endswith(f"\n{PLAIN_SECTION}[]\n")
