"""YAML and overrides become dataclasses; mistakes are named with their place and a remedy."""

import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from muxrl.orchestrator.config import from_yaml, load_config, to_yaml
from muxrl.orchestrator.errors import ConfigError

GOOD = """\
simulation:
  env: gymnasium:CartPole-v1
  kwargs: {max_episode_steps: 100}
servers:
  ppo:
    agents: [agent]
    settings: {lr: 0.001}
stop:
  env_steps: 1000
"""


@pytest.fixture
def write(tmp_path):
    def write(text: str) -> Path:
        path = tmp_path / "good.yaml"
        path.write_text(text)
        return path

    return write


def problems_of(path, *overrides) -> list[str]:
    with pytest.raises(ConfigError) as caught:
        load_config(path, overrides)
    return caught.value.problems


@pytest.mark.parametrize(
    ("written", "value"),
    [
        ("1e-3", 0.001), ("1E-2", 0.01), ("5e2", 500.0), ("5E+2", 500.0), (".99", 0.99),
        ("1.e3", 1000.0), ("+1e3", 1000.0), ("-1e-3", -0.001), (".5e-3", 0.0005), ("5.", 5.0),
        ("1_000", 1000), ("'1e-3'", "1e-3"), ('"5"', "5"),
    ],
)  # fmt: skip
def test_numbers_are_read_in_every_form_that_people_write(write, written, value):
    file = write(GOOD.replace("{lr: 0.001}", f"{{lr: {written}, epsilon: [[0, {written}]]}}"))
    written_in_file = load_config(file)
    overridden = load_config(write(GOOD), [f"servers.ppo.settings.lr={written}"])
    for config in (written_in_file, overridden):
        found = config.servers["ppo"].settings["lr"]
        assert (found, type(found)) == (value, type(value))
    assert written_in_file.servers["ppo"].settings["epsilon"] == [[0, value]]


@pytest.mark.parametrize("written", ["2e5", "200000.0", "'200000'", "${seed}"])
def test_whole_numbers_are_read_in_every_form(write, written):
    text = GOOD.replace("env_steps: 1000", f"env_steps: {written}") + "seed: 200000\n"
    steps = load_config(write(text)).stop.env_steps
    assert (steps, type(steps)) == (200_000, int)


def test_experiment_is_named_after_its_file_unless_it_says_otherwise(write):
    assert load_config(write(GOOD)).name == "good"
    assert load_config(write(GOOD + "name: other\n")).name == "other"


def test_overrides_replace_values_and_the_last_one_wins(write):
    config = load_config(
        write(GOOD),
        ["seed=1", "seed=2", "servers.ppo.settings.lr=0.5", "servers.ppo.agents=[a, b]"],
    )
    assert config.seed == 2
    assert config.servers["ppo"].settings == {"lr": 0.5}
    assert config.servers["ppo"].agents == ["a", "b"]


def test_interpolations_are_resolved_after_overrides(write, monkeypatch):
    monkeypatch.setenv("MUXRL_TEST_TOKEN", "secret")
    text = GOOD + "seed: 3\nevaluation: {seed: '${seed}'}\n"
    config = load_config(write(text), ["seed=9", "servers.ppo.token=${oc.env:MUXRL_TEST_TOKEN}"])
    assert config.evaluation.seed == 9
    assert config.servers["ppo"].token == "secret"


# By the text of a file: the expected problem. Without a line number, it is the first line.
MISTAKES = {
    "seeed: {a: 1}": "seeed: unknown key 'seeed'; did you mean 'seed'?",
    "run_dir: one": "run_dir: unknown key 'run_dir'; it is an option of the command: --run-dir",
    "servers:\n  q:\n    algoritm: QMIX": "line 3: servers.q.algoritm: unknown key 'algoritm'; did "
    "you mean 'algorithm'?",
    "servers: {q: {limits: {max_episode: 1}}}": "servers.q.limits.max_episode: unknown key "
    "'max_episode'; did you mean 'max_episodes'?",
    "servers: {q: {lr: 0.1}}": "servers.q.lr: unknown key 'lr'; settings of the algorithm go under "
    "servers.q.settings",
    "servers: {s: {algorithm: QMIX, lr: 0.1}}": "servers.s.lr: unknown key 'lr'; it is a setting "
    "of QMIX, and belongs at servers.s.settings.lr",
    "servers: {s: {algorithm: ppo, num_sgd_iter: 3}}": "servers.s.num_sgd_iter: unknown key "
    "'num_sgd_iter'; it is 'num_epochs' here, and belongs at servers.s.settings",
    "servers: {s: {algorithm: PPO, num_workers: 3}}": "servers.s.num_workers: unknown key "
    "'num_workers'; it is the experiment's simulation.num_processes here",
    "servers: {s: {algorithm: PPO, epsilon_start: 1}}": "servers.s.epsilon_start: unknown key "
    "'epsilon_start'; leave it out: its exploration is the algorithm's own",
    "t_max: 3": "t_max: unknown key 't_max'; it is the experiment's stop.env_steps here",
    "time_s: 3": "time_s: unknown key 'time_s'; it belongs at stop.time_s",
    "seed: one": "seed: must be an integer, got the text 'one'",
    "seed:": "seed: must be an integer, got nothing (null)",
    "seed: true": "seed: must be an integer, got true",
    "seed: [1]": "seed: must be an integer, got the list [1]",
    "stop: {env_steps: 2e-5}": "stop.env_steps: must be an integer or null, got 2e-05",
    "servers: {a: {agents: adversary_*}}": "servers.a.agents: must be a list of text, got the text "
    "'adversary_*'; write [\"adversary_*\"]",
    "servers: {a: {policies: {p: b}}}": "servers.a.policies.p: must be a list of text, got the "
    "text 'b'; write [\"b\"]",
    "servers: {a: {while_learning: waite}}": "servers.a.while_learning: must be one of 'auto', "
    "'serve', 'wait', got the text 'waite'; did you mean 'wait'?",
    "evaluation: {interval_env_steps: '+2e3'}": "evaluation.interval_env_steps: must be an integer "
    "or null, but '+2e3' is text; leave out the quotes: 2e3",
    "servers: [1]": "servers: must be a mapping of keys, got the list [1]",
    "servers: {a: }": "servers.a: must be a mapping of keys, got nothing (null)",
    "servers: {1: {}}": "servers.1: the key must be text, got 1",
    "runs_dir: ${nowhere}": "runs_dir: interpolation key 'nowhere' not found, in '${nowhere}'",
    "runs_dir: '${oc.env:MUXRL_TEST_NOWHERE}'": "runs_dir: environment variable "
    "'MUXRL_TEST_NOWHERE' not found, in '${oc.env:MUXRL_TEST_NOWHERE}'",
    "seed: ???": "seed: is left open (???)",
    "simulation:\n  agents:\n    a:\n      action_space: {type: discret, n: 2}": "line 4: "
    "simulation.agents.a.action_space: has the unknown type 'discret'; did you mean 'discrete'?; "
    "types are box, discrete, multi_discrete, multi_binary, dict, tuple",
}


@pytest.mark.parametrize(("text", "problem"), MISTAKES.items())
def test_a_mistake_is_one_line_with_place_and_remedy(write, text, problem):
    assert problems_of(write(text)) == [problem if problem[:4] == "line" else f"line 1: {problem}"]


@pytest.mark.parametrize(("text", "what"), [("- a", "a list"), ("hello", "one value")])
def test_files_that_are_no_mapping_are_refused(write, text, what):
    assert problems_of(write(text)) == [f"holds {what}; a config is a mapping of keys"]


@pytest.mark.parametrize(
    ("text", "beginning"),
    [
        ("a: 1\nb: [1\nc: 2\n", "line 3, column 2: not YAML: "),
        ("a: 1\na: 2\n", "line 2, column 1: not YAML: found duplicate key a"),
        (
            "a:\n\tb: 1\n",
            "line 2, column 1: not YAML: found character '\\t' that cannot start any token; indent "
            "with spaces",
        ),
        ("runs_dir: '${'\n", "runs_dir: broken interpolation: "),
    ],
)
def test_broken_yaml_names_the_line(write, text, beginning):
    (problem,) = problems_of(write(text))
    assert problem.startswith(beginning)
    assert "\n" not in problem


MISTAKEN = """\
sed: 3
simulation:
  num_processes: two
  num_cpus: -1
  respawn: same-id
servers:
  ppo:
    agents: [agent]
    token: ???
    limits: {max_episodes: '${nowhere}'}
"""


def test_mistakes_of_every_kind_are_named_in_one_refusal_that_imports_nothing_heavy(write):
    file = write(MISTAKEN)
    program = (
        "import sys\nfrom muxrl.orchestrator.cli import main\n"
        f"code = main(['launch', {str(file)!r}, 'stop.env_steps=-5'])\n"
        "print(code, sorted({'torch', 'ray', 'gymnasium'} & sys.modules.keys()))"
    )
    ran = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert ran.stdout.endswith("2 []\n")
    assert [line for line in ran.stderr.splitlines() if line.startswith("muxrl: ")] == [
        f"muxrl: {file}: {problem}"
        for problem in (
            "line 1: sed: unknown key 'sed'; did you mean 'seed'?",
            "line 3: simulation.num_processes: must be an integer, got the text 'two'",
            "line 4: simulation.num_cpus: is -1.0, must not be negative",
            "line 5: simulation.respawn: must be one of 'refuse', 'same_id', 'same_step', "
            "'new_ids', got the text 'same-id'; did you mean 'same_id'?",
            "line 9: servers.ppo.token: is left open (???); a token is never written down, so give "
            "it again",
            "line 10: servers.ppo.limits.max_episodes: interpolation key 'nowhere' not found, in "
            "'${nowhere}'",
            "override 'stop.env_steps=-5': stop.env_steps: is -5, must be above 0",
        )
    ]


FIELDS = ["name", "seed", "servers", "simulation", "agents", "stop", "policies", "settings"]
KEYS = st.sampled_from([*FIELDS, "ppo", "kwargs", "limits", "port", "", "a.b", "${", 1, None])
VALUES = st.sampled_from(
    [None, True, 0, -1.5, float("nan"), "", "text", "${seed}", "${a.b}", "${", "???", [], {}]
)


@given(
    st.recursive(
        VALUES,
        lambda inner: st.lists(inner, max_size=2) | st.dictionaries(KEYS, inner, max_size=4),
        max_leaves=8,
    )
)
@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_every_file_gives_a_config_or_one_line_for_each_problem(write, tree):
    path = write(yaml.safe_dump(tree))
    problems = []
    try:
        load_config(path)
    except ConfigError as error:
        problems = error.problems
        assert problems, "an error without a problem"
    assert all(problem and "\n" not in problem for problem in problems)
    assert len(set(problems)) == len(problems)


@pytest.mark.parametrize(
    ("override", "problem"),
    [
        ("seed", "must look like key.path=value"),
        ("=3", "must look like key.path=value"),
        ("a..b=3", "must look like key.path=value"),
        ("seed=x", "seed: must be an integer, got the text 'x'"),
        ("sed=3", "sed: unknown key 'sed'; did you mean 'seed'?"),
        ("servers.ppo.prt=1", "servers.ppo.prt: unknown key 'prt'; did you mean 'port'?"),
    ],
)
def test_a_mistaken_override_is_quoted(write, override, problem):
    assert problems_of(write(GOOD), override) == [f"override {override!r}: {problem}"]


def test_an_override_that_is_not_yaml_is_refused(write):
    (problem,) = problems_of(write(GOOD), "seed=[1")
    assert problem.startswith("override 'seed=[1': the value is not YAML: ")


def test_a_missing_file_is_refused_with_a_similar_name(write, tmp_path):
    path = write(GOOD)
    for wrong, problem in (
        (path.with_name("god.yaml"), "no such file; did you mean 'good.yaml'?"),
        ("cartpole_pp", "no such file; did you mean 'cartpole_ppo'?"),
        ("nowhere/a.yaml", "no such file; the directory 'nowhere' does not exist"),
        (tmp_path, "this is a directory, not a YAML file"),
    ):
        assert problems_of(wrong) == [problem]


def test_dumped_config_loads_as_the_same(write, tmp_path):
    config = load_config("tag", ["servers.qmix.settings.lr=0.001"])
    (tmp_path / "tag.yaml").write_text(to_yaml(config))
    assert load_config(tmp_path / "tag.yaml") == config


def test_other_values_that_are_called_a_token_are_not_masked(write):
    given = ["simulation.kwargs.server.token=a", "simulation.kwargs.gateway.token=b",
             "servers.ppo.settings.servers={one: {token: c}}"]  # fmt: skip
    config = load_config(write(GOOD), given)
    assert from_yaml(to_yaml(config)) == config
    assert "???" not in to_yaml(config)


@pytest.mark.parametrize("listener", ["servers.ppo", "simulation.gateway"])
def test_dumped_token_is_masked_and_has_to_be_filled_in(write, tmp_path, listener):
    text = to_yaml(load_config(write(GOOD), [f"{listener}.token=secret"]))
    assert "secret" not in text
    assert from_yaml(text) == load_config(write(GOOD))
    path = tmp_path / "dumped.yaml"
    path.write_text(text)
    (problem,) = problems_of(path)
    assert f"{listener}.token: is left open (???); a token is never written down" in problem


def test_a_token_of_an_environment_variable_is_read_from_it_again(write, tmp_path, monkeypatch):
    monkeypatch.setenv("MUXRL_TOKEN", "secret")
    config = load_config(write(GOOD), ["servers.ppo.token=${oc.env:MUXRL_TOKEN}"])
    text = to_yaml(config)
    assert "secret" not in text
    path = tmp_path / "dumped.yaml"
    path.write_text(text)
    assert load_config(path) == config
    monkeypatch.delenv("MUXRL_TOKEN")
    assert from_yaml(text) == load_config(write(GOOD))
    (problem,) = problems_of(path)
    assert "servers.ppo.token: environment variable 'MUXRL_TOKEN' not found" in problem
