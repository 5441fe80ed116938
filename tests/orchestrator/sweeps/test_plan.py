"""A sweep's YAML becomes a table of trials, and every mistake is named before anything starts."""

import io
import re
from dataclasses import replace

import msgspec
import pytest
import yaml
from rich.console import Console

from muxrl.experiments.simulations.zero_cost import ZeroCost
from muxrl.orchestrator.config.load import load_written, to_yaml
from muxrl.orchestrator.errors import ConfigError
from muxrl.orchestrator.sweeps.directory import TrialRecord
from muxrl.orchestrator.sweeps.dry_run import print_plan
from muxrl.orchestrator.sweeps.load import load_resumed, load_sweep
from muxrl.orchestrator.sweeps.plan import keep_trials, make_plan
from muxrl.orchestrator.sweeps.schema import SweepConfig

BASE = """
simulation: {env: "muxrl.experiments.simulations.zero_cost:ZeroCost", kwargs: {num_agents: 3}}
servers:
  old: {algorithm: PPO, agents: [agent_0, agent_1], port: 9900}
  stays: {algorithm: RANDOM, agents: [agent_2]}
stop: {env_steps: 500}
"""
SWEEP = """
base: base.yaml
experiment: {stop: {env_steps: 400}}
roles: {left: [agent_0], right: [agent_1]}
algorithms:
  random: {}
  small_ppo: {algorithm: PPO, model: {fcnet_hiddens: [8]}, settings: {lr: 0.001}}
  team: {algorithm: VDN}
seeds: [3, 5]
"""


@pytest.fixture
def write(tmp_path):
    (tmp_path / "base.yaml").write_text(BASE)

    def write(text=SWEEP):
        (tmp_path / "mine.yaml").write_text(text)
        return tmp_path / "mine.yaml"

    return write


@pytest.fixture
def problems_of(write):
    def problems_of(*overrides, text=SWEEP):
        with pytest.raises(ConfigError) as caught:
            make_plan(load_sweep(write(text), overrides))
        return caught.value.problems

    return problems_of


def test_the_base_is_found_beside_the_sweep_and_changed(write):
    config = load_sweep(write(), ["experiment.simulation.kwargs.num_steps=7", "num_samples=1"])
    assert config.name == "mine"
    assert config.experiment.name == "base"
    assert config.experiment.stop.env_steps == 400
    assert config.experiment.simulation.kwargs == {"num_agents": 3, "num_steps": 7}


def test_a_baseline_is_evaluated_and_not_trained(write):
    """No server in a baseline learns from the steps; a script against a learner is trained on."""
    overrides = ["experiment.evaluation.interval_env_steps=100", "seeds=[3]"]
    for source, env_steps in (("evaluation", 1), ("training", 400)):
        plan = make_plan(load_sweep(write(), [*overrides, f"metric.source={source}"]))
        configs = {tuple(t.roles.values()): plan.config_of(t) for t in plan.trials}
        assert configs["random", "random"].stop.env_steps == env_steps
        assert configs["random", "small_ppo"].stop.env_steps == 400
        assert configs["random", "small_ppo"].evaluation.interval_env_steps == 100
        for trial in plan.trials:  # otherwise it would be played again when the sweep is resumed
            unresolved = replace(trial, id="another")
            assert plan.config_of(unresolved).stop == plan.config_of(trial).stop


def test_a_mapping_and_a_dataclass_give_the_same_sweep_as_the_file(write, monkeypatch, tmp_path):
    said = load_sweep(write(), ["experiment.simulation.kwargs.num_steps=7"])
    tree = yaml.safe_load(SWEEP) | {"name": "mine"}
    tree["experiment"]["simulation"] = {"env": ZeroCost, "kwargs": {"num_steps": 7}}
    monkeypatch.chdir(tmp_path)  # the base of a mapping is looked for there
    assert load_sweep(tree) == said
    assert load_sweep(replace(said, base="")) == replace(said, base="")
    with pytest.raises(ConfigError, match="base: cannot be combined with an experiment"):
        load_sweep(said)
    assert load_sweep(SweepConfig(base="base.yaml")).experiment.stop.env_steps == 500


def test_the_table_has_all_trials_of_a_seed_before_those_of_the_next(write):
    plan = make_plan(load_sweep(write()))
    assert [spec.seed for spec in plan.trials] == [3] * 9 + [5] * 9
    assert [tuple(spec.roles.values()) for spec in plan.trials[:4]] == [
        ("random", "random"),
        ("random", "small_ppo"),
        ("random", "team"),
        ("small_ppo", "random"),
    ]
    ids = [spec.id for spec in plan.trials]
    assert len(set(ids)) == len(ids)
    assert re.fullmatch("01-random_left-small_ppo-random_stays-[0-9a-f]{12}-s3", ids[1]), ids[1]


def test_servers_of_roles_replace_those_of_the_base(write):
    plan = make_plan(load_sweep(write()))
    spec = next(r for r in plan.trials if r.roles == {"left": "team", "right": "small_ppo"})
    experiment = plan.experiments[spec.id]
    assert list(experiment.servers) == ["stays", "left", "right"]
    assert experiment.servers["left"].algorithm == "VDN"
    assert experiment.servers["left"].groups == {"left": ("agent_0",)}
    assert experiment.servers["right"].settings == {"lr": 0.001}
    assert all(server.port == 0 for server in experiment.servers.values())
    assert experiment.config.seed == 3
    assert spec.assignment == experiment.assignment
    assert spec.assignment == "team:agent_0|small_ppo:agent_1|random:agent_2"


@pytest.mark.parametrize(
    ("template", "groups"),
    [
        ("{algorithm: QMIX}", {"all": ("agent_0", "agent_1")}),
        # Without a group it would be MAPPO with a policy for each agent.
        ("{algorithm: HAPPO}", {"all": ("agent_0", "agent_1")}),
        ("{algorithm: HAPPO, groups: {own: [agent_1]}}", {"own": ("agent_1",)}),
        ("{algorithm: MAPPO}", {}),
        ("{algorithm: PPO}", {}),
    ],
)
def test_a_role_is_one_group_if_the_algorithm_needs_groups(write, template, groups):
    text = SWEEP.replace("left: [agent_0], right: [agent_1]", "all: [agent_0, agent_1]")
    text = text.replace("{algorithm: VDN}", template) + "assignments: {listed: [{all: team}]}\n"
    plan = make_plan(load_sweep(write(text)))
    assert [one.servers["all"].groups for one in plan.resolved] == [groups]
    assert not any("teams" in warning for one in plan.resolved for warning in one.warnings)


def test_parameters_reach_the_servers_and_templates_that_use_them(write):
    text = SWEEP + (
        "parameters:\n"
        "  algorithms.small_ppo.settings.lr: {grid: [0.1, 0.2]}\n"
        "  servers.left.max_policy_lag: {choice: [4]}\n"
    )
    plan = make_plan(load_sweep(write(text), ["seeds=[0]", "algorithms.team.algorithm=RANDOM"]))
    rows = [spec for spec in plan.trials if spec.roles == {"left": "random", "right": "small_ppo"}]
    assert [spec.parameters for spec in rows] == [
        {"algorithms.small_ppo.settings.lr": lr, "servers.left.max_policy_lag": 4}
        for lr in (0.1, 0.2)
    ]
    for spec, lr in zip(rows, (0.1, 0.2), strict=True):
        servers = plan.experiments[spec.id].servers
        assert servers["right"].settings == {"lr": lr}
        assert servers["left"].max_policy_lag == 4
    without = [spec for spec in plan.trials if spec.roles == {"left": "random", "right": "random"}]
    assert [spec.parameters for spec in without] == [{"servers.left.max_policy_lag": 4}]


def test_the_agents_of_a_trial_are_those_of_its_simulation(write):
    text = SWEEP.replace("roles: {left: [agent_0], right: [agent_1]}", "roles: {all: ['*']}") + (
        "parameters: {simulation.kwargs.num_agents: {grid: [1, 2]}}\n"
    )
    plan = make_plan(load_sweep(write(text), ["seeds=[0]"]))
    assert [spec.assignment for spec in plan.trials[:2]] == [
        "random:agent_0",
        "random:agent_0,agent_1",
    ]


@pytest.mark.parametrize(
    ("key", "values", "is_warned"),
    [
        ("simulation.kwargs.num_steps", "{choice: [5, 7]}", True),
        ("simulation.kwargs.num_steps", "{randint: [5, 7]}", True),
        ("simulation.kwargs.num_steps", "{grid: [5]}", False),
        ("simulation.parameters.wind", "{grid: [5, 7]}", False),
    ],
)
def test_trials_that_cannot_be_compared_are_warned_of(write, key, values, is_warned):
    plan = make_plan(load_sweep(write(SWEEP + f"parameters: {{{key}: {values}}}\n")))
    console = Console(file=io.StringIO(), width=400)
    print_plan(plan, console)
    told = f"warning: parameters.{key}: trials that differ in this key have different simulations"
    assert (told in console.file.getvalue()) == is_warned


def test_a_sweep_without_roles_keeps_the_servers_of_its_base(write):
    text = "base: base.yaml\nparameters: {servers.old.settings.lr: {grid: [0.1, 0.2]}}\n"
    plan = make_plan(load_sweep(write(text)))
    assert [spec.roles for spec in plan.trials] == [{}, {}]
    assert plan.trials[0].assignment == "ppo:agent_0,agent_1|random:agent_2"
    lrs = [plan.experiments[spec.id].servers["old"].settings["lr"] for spec in plan.trials]
    assert lrs == [0.1, 0.2]


def test_the_written_config_makes_the_same_table(write, tmp_path):
    config = load_sweep(write(), ["experiment.servers.stays.token=secret-of-sixteen"])
    text = to_yaml(config)
    assert "secret" not in text
    (tmp_path / "sweep.yaml").write_text(text)
    again = load_resumed(
        tmp_path / "sweep.yaml",
        ["experiment.servers.stays.token=secret-of-sixteen", "max_concurrent=3"],
    )
    assert again.max_concurrent == 3
    assert make_plan(again).trials == make_plan(config).trials
    with pytest.raises(ConfigError, match=r"stays\.token: is left open"):
        load_resumed(tmp_path / "sweep.yaml")
    written = load_written(tmp_path / "sweep.yaml", SweepConfig)
    assert written.experiment.servers["stays"].token == ""


@pytest.mark.parametrize(
    ("override", "story"),
    [
        ("seeds=[3,6]", r"seeds: the sweep already has trials with \[5\]"),
        ("num_samples=1", "num_samples: is 1, but the sweep had 2"),
        (
            "experiment.stop.env_steps=300",
            "is 300, but the sweep had 400; a sweep can only be resumed with more",
        ),
        ("experiment.stop.time_s=9", "is 9.0, but the sweep had no such limit"),
        (
            "algorithms.small_ppo.settings.lr=0.1",
            r"small_ppo\.settings\.lr: cannot change, .* second sweep, 'muxrl sweep .*mine.yaml "
            r"algorithms.small_ppo.settings.lr=...', and compare both, 'muxrl compare ",
        ),
        ("metric.of=left", "metric.of: cannot change"),
        ("seedz=[3]", "unknown key 'seedz'"),
    ],
)
def test_a_resumed_sweep_names_keys_that_cannot_change_and_how_to_go_on(write, override, story):
    file = write(to_yaml(load_sweep(write(DRAWN))))
    with pytest.raises(ConfigError, match=story):
        load_resumed(file, [override])
    # Everything in the printed command of the second sweep is a valid sweep.
    assert load_sweep(file, ["algorithms.small_ppo.settings.lr=0.1"]).seeds == [3, 5]


DRAWN = SWEEP + (
    "parameters: {algorithms.small_ppo.settings.lr: {loguniform: [0.001, 0.1]}}\nnum_samples: 2\n"
)


def test_more_seeds_and_samples_keep_the_earlier_trials(write):
    few = make_plan(load_sweep(write(DRAWN)))
    file = write(to_yaml(few.config))
    # As `trials.jsonl` keeps them.
    earlier = [msgspec.json.decode(trial.to_json(), type=TrialRecord) for trial in few.trials]
    more = make_plan(load_resumed(file, ["seeds=[3,5,8]", "num_samples=3"]))
    number = len(more.trials)
    keep_trials(more, earlier)
    assert more.trials[: len(earlier)] == earlier
    assert len(more.trials) == len({trial.id for trial in more.trials}) == number
    assert {trial.seed for trial in more.trials} == {3, 5, 8}
    assert len({(str(t.roles), str(t.parameters), t.seed) for t in more.trials}) == number
    for trial in more.trials:  # each trial has its own experiment
        experiment = more.experiments[trial.id]
        assert experiment.config.seed == trial.seed
        for role, name in trial.roles.items():
            lr = trial.parameters.get("algorithms.small_ppo.settings.lr")
            if name == "small_ppo":
                assert experiment.config.servers[role].settings["lr"] == lr


def test_all_mistakes_of_the_file_are_named_at_once_with_their_lines(write):
    text = (
        "base: base.yaml\nexperiment:\n  stop: {env_stps: 4}\nroles: {left: [agent_0]}\n"
        "algorithms:\n  ppo: {setings: {}}\nnum_sampels: 3\nmetric: {mode: up}\n"
        "parameters:\n  seed.x: {unifrm: [0, 1]}\n"
    )
    with pytest.raises(ConfigError) as caught:
        load_sweep(write(text))
    assert caught.value.problems == [
        "line 3: experiment.stop.env_stps: unknown key 'env_stps'; did you mean 'env_steps'?",
        "line 6: algorithms.ppo.setings: unknown key 'setings'; did you mean 'settings'?",
        "line 7: num_sampels: unknown key 'num_sampels'; did you mean 'num_samples'?",
        "line 8: metric.mode: must be one of 'max', 'min', got the text 'up'",
        "line 10: parameters.seed.x.unifrm: unknown key 'unifrm'; did you mean 'uniform'?",
    ]


@pytest.mark.parametrize(
    ("override", "story"),
    [
        ("roles.left=[agent_9]", "roles.left: 'agent_9' matches no agent"),
        (
            "roles.right=[agent_*]",
            "agent 'agent_0' is in 'left' and 'right', and can be in only one",
        ),
        ("roles.right=[agent_1,agent_2]", None),
        ("roles.left=[]", "roles.left: has no agents"),
        ("roles.stays=[agent_2]", None),
        ("roles.total=[agent_2]", "'total' stands for all agents in `metric`"),
        ("roles={left: [agent_0], right: null}", "roles.right"),
        (
            "algorithms.random.port=9",
            "algorithms.random.port: is given, but trials run at the same",
        ),
        ("algorithms.RANDOM={}", "differ only in upper and lower case"),
        ("algorithms.team.algorithm=QMX", "unknown algorithm 'QMX'"),
        ("metric.of=rigt", "there is no role or server 'rigt'; did you mean 'right'?"),
        ("metric.name=wins", "metric.name: there is no metric 'wins'; simulation.metrics and"),
        ("scheduler.kind=pbt", "a league, whose 'exploit' is population-based training"),
        ("scheduler.kind=ash", "there is no 'ash'; did you mean 'asha'?"),
        ("scheduler={kind: asha, grace_env_steps: 900}", "none would ever be ended"),
        ("searcher=bayes", "there is no 'bayes'; known are random, optuna"),
        ("seeds=[1,1]", "seeds: has a seed twice"),
        ("num_samples=2", "no parameter is drawn"),
        ("num_samples=0", "num_samples: is 0, must be above 0"),
        ("max_concurrent=0", "max_concurrent: is 0, must be above 0"),
        ("experiment.simulation.env=external", "is external; a sweep starts the simulations"),
        ("experiment.stop={env_steps: null}", "stop: nothing ends this run"),
        ("parameters={servers.lft.port: {grid: [1]}}", "no role or server 'lft'; did you mean 'l"),
        ("parameters={algorithms.pp.port: {grid: [1]}}", "there is no algorithm 'pp'"),
        ("parameters={stp.env_steps: {grid: [1]}}", "unknown key 'stp'; did you mean 'stop'?"),
        ("parameters={stop.time_s: {grid: [null]}}", None),
        ("parameters={stop.env_steps: {grid: [x]}}", "must be an integer or null, got the text"),
        ("parameters={algorithms.small_ppo.settings.minibatch_size: {grid: [5e1, 6e1]}}", None),
        (
            "parameters={algorithms.small_ppo.settings.minibatch_size: {grid: [5e1, 5.5]}}",
            "PPO's setting 'minibatch_size' must be an integer or null, got 5.5",
        ),
        (
            "parameters={algorithms.small_ppo.settings.lr: {choice: ['1e-3', 1e-4]}}",
            "but '1e-3' is text; leave out the quotes: 1e-3",
        ),
    ],
)
def test_mistakes_in_a_sweep_are_named(problems_of, write, override, story):
    if story is None:
        make_plan(load_sweep(write(), [override]))
        return
    problems = problems_of(override)
    assert any(story in problem for problem in problems), problems


def test_a_base_server_with_only_some_agents_in_roles_is_refused(problems_of):
    (problem,) = problems_of(text=SWEEP.replace(", right: [agent_1]", ""))
    assert (
        "the base's server 'old' serves agents of a role and agent_1, which no role has" in problem
    )


@pytest.mark.parametrize(("name", "num_trials"), [("chase", 18), ("chase_lr", 8)])
def test_a_packaged_sweep_has_its_trials(name, num_trials):
    plan = make_plan(load_sweep(name))
    assert len(plan.trials) == num_trials
    assert {spec.seed for spec in plan.trials} == set(plan.config.seeds or [0])


def test_a_mistake_in_some_trials_names_the_trials(problems_of):
    one, other = problems_of("algorithms.team.settings.mixr=qmix")
    assert one.endswith("(in 3 of 9 settings, such as {left: random, right: team})")
    assert other.endswith("(in 3 of 9 settings, such as {left: team, right: random})")


def test_asha_without_a_budget_is_refused(problems_of):
    problems = problems_of("scheduler.kind=asha", "experiment.stop={env_steps: null, time_s: 3}")
    assert any("set experiment.stop.env_steps" in problem for problem in problems)


@pytest.mark.parametrize(
    ("callback", "problem"),
    [
        ("ray.tune:Calback", "has no 'Calback'; did you mean 'Callback'?"),
        ("Callback", "must look like 'ray.air.integrations.mlflow:MLflowLoggerCallback'"),
        ("ray.tune.logger:CSVLoggerCallback", "unexpected keyword argument 'path'"),
    ],
)
def test_a_callback_that_cannot_be_made_is_refused(problems_of, callback, problem):
    (found,) = problems_of(text=SWEEP + f"callbacks: {{'{callback}': {{path: x}}}}\n")
    assert found.startswith(f"callbacks: {callback}: ")
    assert problem in found


def test_optuna_is_refused_with_grids_and_without_anything_to_choose(problems_of, monkeypatch):
    text = SWEEP + "parameters: {servers.left.max_policy_lag: {grid: [1, 2]}}\n"
    problems = problems_of("searcher=optuna", text=text)
    assert any("use choice, or searcher: random" in problem for problem in problems)
    assert any("optuna has nothing to choose" in p for p in problems_of("searcher=optuna"))
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    assert any("optuna is not installed" in p for p in problems_of("searcher=optuna"))


def test_assignments_without_roles_are_refused(problems_of):
    text = "base: base.yaml\nassignments: {listed: ['ppo:agent_0']}\n"
    assert any("no roles" in problem for problem in problems_of(text=text))
    assert any("algorithms: is missing" in p for p in problems_of(text=text + "roles: {a: [x]}\n"))
