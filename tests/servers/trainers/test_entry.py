"""How a trainer's class is found, which settings it has, and what is refused before a run."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
from gymnasium import spaces
from tests.servers.scripted_store import SEES, make_plan

from muxrl.orchestrator.config import ExperimentConfig, SimulationConfig, prepare
from muxrl.protocol.spaces import Box, DictSpace, Discrete
from muxrl.servers.agents.observing import Observing
from muxrl.servers.config import AgentPlan, ServerConfig, algorithm_label
from muxrl.servers.lookup import find
from muxrl.servers.setting_values import AlgorithmProblem
from muxrl.servers.trainers import lookup
from muxrl.servers.trainers.entry import TrainerEntry
from muxrl.servers.trainers.lookup import find_trainer

HERE = "tests.servers.trainers.brought"


def entry_of(name: str) -> TrainerEntry:
    entry = find_trainer(f"{HERE}:{name}")
    assert entry is not None
    return entry


def problems(name: str, **settings: Any) -> list[str]:
    entry = entry_of(name)
    config = ServerConfig(algorithm=entry.name, settings=settings)
    found = list(entry.find_config_problems(config))
    plan = dataclasses.replace(make_plan("ab"), algorithm=entry.name, settings=settings)
    return [sentence.replace(f"{HERE}:", "") for sentence in (*found, *entry.find_problems(plan))]


def test_a_class_with_the_methods_is_a_trainer() -> None:
    assert problems("Counting", start=2, rate=0.2) == []


def test_settings_are_the_class_s_arguments_after_the_first() -> None:
    entry = entry_of("Counting")
    assert entry.settings() == {"start": 0, "rate": 0.1}
    assert entry.learns_from == "newest"
    assert entry.find_while_learning("auto") == "wait"
    assert entry.summary.startswith("Takes the number of its updates")


@pytest.mark.parametrize("name", ["PPO", "DQN", "SAC", "QMIX", "MAPPO", "MASAC"])
def test_a_subclass_of_a_muxrl_trainer_is_served_like_its_parent(name: str) -> None:
    own = find(name)
    assert isinstance(own, TrainerEntry)
    entry = TrainerEntry("mine:Mine", type("Mine", (own.make,), {}))
    same = ("learns_from", "gives_log_probs", "samples_actions", "seating", "acts_while_learning")
    for what in same:
        assert getattr(entry, what) == getattr(own, what), what
    mine = TrainerEntry("mine:Mine", type("Mine", (own.make,), {"learns_from": "recent"}))
    assert mine.learns_from == "recent", "what the class itself says"


@pytest.mark.parametrize(
    ("name", "settings", "sentence"),
    [
        ("Counting", {"rat": 0.2}, "Counting has no setting 'rat'; did you mean 'rate'?"),
        ("Counting", {"rate": "1e-3"}, "Counting's setting 'rate' must be a number, but '1e-3'"),
        ("NeedsASetting", {}, "NeedsASetting needs the setting 'width', which has no default"),
        ("WithoutLearn", {}, "made a WithoutLearn without learn, state, load"),
        ("FailsToBegin", {}, "cannot be made for policy 'default': RuntimeError: no such device"),
        ("TooFewRows", {}, "act of policy 'default': expected an array of shape (1,), got shape"),
        ("EndsTheProcess", {}, "cannot be made for policy 'default': SystemExit: no such device"),
        ("CopiesWithoutWeights", {}, "without weights, set_weights; one that acts while it learns"),
        ("ByAgent", {}, "expected an array of shape (1,), got dict"),
        ("OutsideOfItsSpace", {}, "from 0 below [3], got 99 for agent 'a'"),
        ("Fractions", {}, "expected whole numbers from 0 below [3], got 0.5"),
        ("RemembersAnother", {}, "expected states ['num'] as of initial_state(), got ['count']"),
        ("FailsToAct", {}, "FailsToAct.act of policy 'default': ValueError: lost my weights"),
        ("NoBatch", {}, "NoBatch.batch_env_steps is 0; it must be a whole number from 1 on"),
        ("LearnsFromNothing", {}, "learns_from is 'old'; it must be one of newest, recent, replay"),
        ("WithState", {}, "learns with the global state (reads_state), and none is sent: give"),
        ("KeepsObjects", {}, "state['rng'] is Generator, which a checkpoint cannot hold"),
        ("LoadsAnotherKey", {}, "LoadsAnotherKey.load of policy 'default': KeyError: 'updates'"),
    ],
)
def test_a_wrong_trainer_class_is_refused_by_what_is_wrong(
    name: str, settings: dict[str, Any], sentence: str
) -> None:
    found = problems(name, **settings)
    assert len(found) == 1
    assert sentence in found[0]


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        ({"rl_module": "a:B"}, "leave out rl_module"),
        ({"model": {"fcnet_hiddens": [8]}}, "leave out model"),
        ({"initialize_only": "actor"}, "leave out initialize_only"),
    ],
)
def test_config_that_means_nothing_to_a_trainer_is_refused(
    given: dict[str, Any], sentence: str
) -> None:
    entry = entry_of("Counting")
    (found,) = entry.find_config_problems(ServerConfig(algorithm=entry.name, **given))
    assert sentence in found


def test_a_mask_of_another_length_is_refused() -> None:
    plan = make_plan("a")
    agent = plan.agents["a"]
    seen = DictSpace({"observation": agent.observation_space, "action_mask": Box((9,), "int8")})
    masked = AgentPlan("default", seen, agent.action_space)
    entry = entry_of("Counting")
    (found,) = entry.find_problems(dataclasses.replace(plan, agents={"a": masked}))
    assert "observes the action mask" in found


def test_a_trainer_counts_actions_from_0() -> None:
    entry = entry_of("Counting")
    plan = make_plan("a")
    agent = dataclasses.replace(plan.agents["a"], action_space=Discrete(4, start=3))
    plan = dataclasses.replace(plan, algorithm=entry.name, agents={"a": agent})
    actors = entry.make_actors(plan, entry.seating.make_seats(plan, Observing(plan)))
    (trainer,) = actors.learners.values()
    assert trainer.policy.action_space == spaces.Discrete(4)


def test_a_team_s_members_act_in_discrete_spaces() -> None:
    entry = entry_of("OfTeams")
    assert entry.seating.forms_teams
    plan = make_plan("ab", {"team": ("a", "b")})
    assert list(entry.find_problems(plan)) == []
    agents = {a: dataclasses.replace(one, action_space=SEES) for a, one in plan.agents.items()}
    (found,) = entry.find_problems(dataclasses.replace(plan, agents=agents))
    assert found.startswith("a team cannot do the action space Box(")


@pytest.mark.parametrize(
    ("name", "sentence"),
    [
        (f"{HERE}:Countin", "has no 'Countin'; did you mean 'Counting'?"),
        ("no.such.module:Mine", "cannot be imported: ModuleNotFoundError"),
        ("a b:Mine", "'a b:Mine'"),
        ("collections:OrderedDict", "is a class that no server can train with: give a class with"),
        ("math:pi", "is an object of float that no server can train with"),
    ],
)
def test_a_path_that_leads_to_no_trainer_is_refused(name: str, sentence: str) -> None:
    with pytest.raises(AlgorithmProblem, match="algorithm ") as refusal:
        find_trainer(name)
    assert sentence in str(refusal.value)


def test_a_name_without_a_colon_is_another_s() -> None:
    assert find_trainer("RANDOM") is None


def test_packages_register_names(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lookup, "registered", lambda: {"Mine": f"{HERE}:Counting"})
    entry = find_trainer("mine")
    assert entry is not None
    assert (entry.name, entry.make.__name__) == ("Mine", "Counting")


def test_names_in_results_are_short() -> None:
    assert algorithm_label("my_package.my_module:Mine") == "Mine"
    assert algorithm_label("PPO") == "PPO"
    by_command = ["other/bin/python", "-m", "muxrl.serving", "bandit:Bandit", "{address}"]
    assert algorithm_label("EXTERNAL", by_command) == "Bandit"
    assert algorithm_label("EXTERNAL", ["./learner", "127.0.0.1:80", "http://x"]) == "EXTERNAL"
    config = ExperimentConfig(
        name="by_command",
        simulation=SimulationConfig(env="muxrl.experiments.simulations.cue_game:CueGame"),
        servers={"own": ServerConfig(agents=["*"], command=by_command)},
    )
    experiment = prepare(config, needs_stop=False)
    assert experiment.assignment.startswith("bandit:")
    assert experiment.servers["own"].shown_algorithm == "Bandit"
