"""Settings that a trainer's class declares: how they are read, which are refused, and what they say
of a trainer."""

from __future__ import annotations

import dataclasses
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any, ClassVar, Literal

import pytest
from tests.servers.scripted_store import make_plan
from tests.servers.trainers.brought import Counting

from muxrl.orchestrator.config.server_plan import default_settings
from muxrl.protocol.spaces import Box, Discrete
from muxrl.servers.agents.seating import MASKED_AGENTS, TEAMS
from muxrl.servers.config import AgentPlan, ServerConfig, ServerPlan
from muxrl.servers.lookup import find
from muxrl.servers.setting_values import AlgorithmProblem
from muxrl.servers.trainers.check_trainer import check_trainer
from muxrl.servers.trainers.declared_settings import (
    Count,
    Limit,
    Schedule,
    ScheduleCheck,
    Settings,
    Share,
)
from muxrl.servers.trainers.entry import TrainerEntry
from muxrl.servers.trainers.spaces import AgentSpaces


class ToyModel(Settings):
    fcnet_hiddens: list[int] = [64, 64]
    """Units of each layer."""
    fcnet_activation: Literal["relu", "tanh"] = "tanh"
    """Activation between the layers."""
    num_heads: Count = 1
    """Number of heads side by side."""
    use_lstm: bool = False
    """Whether it is recurrent."""


class WithoutMemory(ToyModel):
    refused = {"use_lstm": "it draws single steps"}


class ToySettings(Settings):
    """The settings of `Toy`."""

    unused = frozenset({"num_learners"})

    epsilon: Annotated[Schedule, ScheduleCheck(highest=1.0)] = [(0, 1.0), (1_000, 0.1)]
    """Share of random actions."""
    gamma: Share = 0.99
    """Discount."""
    grad_clip: Limit = None
    """Largest norm of a gradient."""
    lr: Schedule = 1e-3
    """Learning rate."""
    minibatch_size: Count | None = None
    """Transitions in a minibatch."""
    mixer: Literal["qmix", "vdn"] = "qmix"
    """How values are mixed."""
    model: ToyModel = WithoutMemory(fcnet_activation="relu")
    """The trainer's networks."""
    target_update_freq: Count = 200
    """Env steps between two copies."""
    train_batch_size_per_learner: Count = 8
    """Env steps in a batch."""

    def validate(self) -> None:
        super().validate()
        if self.mixer == "vdn" and self.grad_clip is not None:
            raise ValueError("grad_clip means nothing with mixer='vdn'")


class Toy(Counting):
    """Learns nothing, with settings that are declared."""

    Settings = ToySettings
    seating = MASKED_AGENTS
    space_check = AgentSpaces((Discrete,))
    samples_actions = False

    def __init__(self, policy: Any, settings: ToySettings) -> None:
        super().__init__(policy)
        self.settings = settings
        self.batch_env_steps = settings.train_batch_size_per_learner


class Variant(Toy):
    """A variant of `Toy` with a fixed mixer."""

    preset: ClassVar[Mapping[str, Any]] = {"mixer": "vdn"}


class PlainSettings(Settings):
    own_module_refused = "its networks belong together"
    model_refused = "its networks are set by hidden_dim among its settings"
    hidden_dim: Count = 64
    """Units of each layer."""


class OfTeams(Counting):
    """Learns for teams."""

    Settings = PlainSettings
    seating = TEAMS

    def __init__(self, policy: Any, settings: PlainSettings) -> None:
        super().__init__(policy)
        self.settings = settings


class OfADataclass(Counting):
    """A trainer whose settings are a dataclass that does not use muxrl's `Settings`."""

    @dataclass(frozen=True)
    class Settings:
        width: int
        epsilon: float = 0.1
        sizes: list[int] = field(default_factory=list)

        def __post_init__(self) -> None:
            if self.width < 1:
                raise ValueError("no width")

    def __init__(self, policy: Any, settings: Settings) -> None:
        super().__init__(policy)
        self.settings = settings


HERE = __name__


def entry_of(cls: type) -> TrainerEntry:
    entry = find(f"{HERE}:{cls.__name__}")
    assert isinstance(entry, TrainerEntry)
    return entry


def problems(cls: type, settings: Mapping[str, Any], **given: Any) -> list[str]:
    config = ServerConfig(f"{HERE}:{cls.__name__}", settings=dict(settings), **given)
    found = entry_of(cls).find_config_problems(config)
    return [sentence.replace(f"{HERE}:", "") for sentence in found]


def plan_of(cls: type, settings: Mapping[str, Any], **given: Any) -> ServerPlan:
    plan = make_plan("ab")
    return dataclasses.replace(
        plan, algorithm=f"{HERE}:{cls.__name__}", settings=dict(settings), **given
    )


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ({"minibatch_size": 5e2}, ""),
        ({"lr": [[0, 1e-3], [5e2, 0]]}, ""),
        ({"minibatch_size": "500"}, "Toy's setting 'minibatch_size' must be an integer or null, "),
        ({"minibatch_size": 0}, "Toy: minibatch_size=0 must be a whole number of at least 1"),
        ({"grad_clip": "0.5"}, "'0.5' is text; leave out the quotes: 0.5"),
        ({"grad_clip": -1}, "Toy: grad_clip=-1 must be above 0, or None"),
        ({"gamma": 1.5}, "Toy: gamma=1.5 must lie in [0, 1]"),
        ({"target_update_freq": 1.5}, "must be an integer, got 1.5"),
        ({"epsilon": [[0, 1.0], [9, 2.0]]}, "must stay within 0 and 1"),
        ({"epsilon": [[5, 1.0], [9, 0.0]]}, "the first timestep must be 0"),
        ({"epsilon": [[0, 1.0]]}, "Must be a list of 2 or more tuples"),
        ({"epsilon": []}, "Invalid `epsilon` ([]) specified!"),
        ({"epsilon": [[0, 1.0, 2.0], [9, 0.0]]}, "Toy's setting 'epsilon' must be a number or"),
        ({"mixer": "vnd"}, "must be one of 'qmix', 'vdn', got the text 'vnd'; did you mean 'vdn'?"),
        ({"learning_rate": 1}, "Toy has no setting 'learning_rate'; it is 'lr' here"),
        ({"num_learners": 1}, "Toy makes no use of 'num_learners'; remove it"),
        ({"use_lstm": True}, "Toy has no setting 'use_lstm'"),
        ({"fcnet_hiddens": [8]}, "it is 'fcnet_hiddens' of the server's model here"),
        ({"validate": 1}, "Toy has no setting 'validate'; known: epsilon, gamma"),
        ({"model": {}}, "Toy has no setting 'model'; it is 'model' of the server here"),
        ({"mixer": "vdn", "grad_clip": 1}, "Toy: grad_clip means nothing with mixer='vdn'"),
    ],
)
def test_settings_are_read_by_their_declarations(settings: dict[str, Any], sentence: str) -> None:
    found = problems(Toy, settings)
    assert len(found) == bool(sentence)
    assert sentence in "".join(found)


def test_each_unknown_name_is_named() -> None:
    assert len(problems(Toy, {"learning_rate": 1, "train_batch_size": 2, "gama": 3})) == 3


@pytest.mark.parametrize(
    ("cls", "model", "sentence"),
    [
        (Toy, {"fcnet_hiddens": [8.0]}, ""),
        (Toy, {"fcnet_hiddens": 8}, "Toy's model setting 'fcnet_hiddens' must be a list of integ"),
        (Toy, {"fcnet_hidden": [8]}, "Toy has no model setting 'fcnet_hidden'; did you mean"),
        (Toy, {"num_heads": 0}, "Toy: num_heads=0 must be a whole number of at least 1"),
        (Toy, {"use_lstm": True}, "the model setting 'use_lstm': it draws single steps"),
        (OfTeams, {"x": 1}, "no separate model settings ('x' was given): its networks are set by"),
    ],
)
def test_network_settings_are_read_by_their_declarations(
    cls: type, model: dict[str, Any], sentence: str
) -> None:
    found = problems(cls, {}, model=model)
    assert len(found) == bool(sentence)
    assert sentence in "".join(found)


def test_every_setting_has_its_default() -> None:
    entry = entry_of(Toy)
    assert entry.settings() == {
        "epsilon": [(0, 1.0), (1_000, 0.1)],
        "gamma": 0.99,
        "grad_clip": None,
        "lr": 1e-3,
        "minibatch_size": None,
        "mixer": "qmix",
        "target_update_freq": 200,
        "train_batch_size_per_learner": 8,
    }
    model = {"fcnet_activation": "relu", "fcnet_hiddens": [64, 64], "num_heads": 1}
    assert entry.model_settings() == model
    assert entry.memory() == ""
    assert default_settings(plan_of(Toy, {}))["model"] == model
    assert {*entry.kinds()} == {*entry.settings()}
    assert entry.meanings()["target_update_freq"] == "Env steps between two copies."


def test_a_preset_of_a_class_cannot_be_changed_by_its_user() -> None:
    assert "mixer" not in entry_of(Variant).settings()
    assert problems(Variant, {"mixer": "qmix"}) == [
        "Variant is ToySettings with mixer='vdn'; to set 'mixer' yourself use Toy"
    ]
    made = entry_of(Variant).make_settings(ServerConfig("x", settings={"gamma": 0.5}))
    assert (made.mixer, made.gamma) == ("vdn", 0.5)


def test_a_trainer_is_made_with_its_settings() -> None:
    plan = plan_of(Toy, {"gamma": 0.5}, model={"fcnet_hiddens": [8]})
    entry = entry_of(Toy)
    assert list(entry.find_problems(plan)) == []
    actors = entry.make_actors(plan, entry.seating.make_seats(plan))
    (trainer,) = actors.learners.values()
    assert isinstance(trainer, Toy)
    assert (trainer.settings.gamma, trainer.settings.lr) == (0.5, 1e-3)
    assert trainer.settings.model.fcnet_hiddens == [8]
    assert trainer.settings.model.fcnet_activation == "relu"
    assert ToySettings().model.fcnet_hiddens == [64, 64]
    assert not entry.samples_actions


def test_an_action_space_that_a_trainer_does_not_take_is_refused() -> None:
    entry, plan = entry_of(Toy), plan_of(Toy, {})
    assert entry.takes_actions() == "discrete"
    boxes = {a: dataclasses.replace(one, action_space=Box((2,), "float32", -1.0, 1.0))
             for a, one in plan.agents.items()}  # fmt: skip
    (found,) = entry.find_problems(dataclasses.replace(plan, agents=boxes), [find("PPO"), entry])
    assert "cannot do the action space Box(-1.0, 1.0, (2,), float32) of agent 'a'" in found
    assert found.endswith("it takes Discrete; use PPO")


def test_a_policy_is_told_of_the_parts_of_observations_and_of_groups() -> None:
    entry, plan = entry_of(OfTeams), make_plan("ab", {"team": ("a", "b")})
    actors = entry.make_actors(plan, entry.seating.make_seats(plan))
    (spec,) = actors.specs.values()
    assert {*spec.parts} == {"obs", "state", "action_mask", "alive", "last_action"}
    assert spec.parts["obs"] == spec.observation_space
    assert spec.teams == {}
    agents = {a: AgentPlan("default", one.observation_space, one.action_space, "team")
              for a, one in plan.agents.items()}  # fmt: skip
    plan = dataclasses.replace(plan, agents=agents)
    (spec,) = entry_of(Toy).make_actors(plan, MASKED_AGENTS.make_seats(plan)).specs.values()
    assert spec.teams == {"a": "team", "b": "team"}
    assert [*spec.parts] == ["obs"]


def test_a_subclass_declares_and_assigns_defaults() -> None:
    @dataclass(kw_only=True)  # decorated once more
    class Other(ToySettings):
        gamma = 0.5
        width: Count = 3
        sizes: list[int] = field(default_factory=lambda: [1])

    made = Other(width=4)
    assert (made.gamma, made.width, made.sizes, made.lr) == (0.5, 4, [1], 1e-3)
    assert made.epsilon == [(0, 1.0), (1_000, 0.1)]
    assert made.epsilon is not Other().epsilon
    assert Other.known()["gamma"] == Share
    with pytest.raises(ValueError, match=r"gamma=2 must lie in \[0, 1\]"):
        Other(gamma=2).validate()

    class Fewer(Other):
        unused = frozenset({"width"})
        refused = {"sizes": "it has none"}

    assert {*Fewer.known()} == {*Other().values()} - {"width", "sizes"}
    with pytest.raises(AlgorithmProblem, match="X makes no use of 'width'; remove it"):
        Fewer.read("X", {"width": 1}, {})
    with pytest.raises(AlgorithmProblem, match="X cannot have the setting 'sizes': it has none"):
        Fewer.read("X", {"sizes": [1]}, {})


def test_settings_may_be_any_dataclass() -> None:
    entry = entry_of(OfADataclass)
    assert entry.settings() == {"epsilon": 0.1}
    assert problems(OfADataclass, {"width": 2, "sizes": [3]}) == []
    assert problems(OfADataclass, {"epsilon": "high", "wide": 2}) == [
        "OfADataclass's setting 'epsilon' must be a number, got the text 'high'",
        "OfADataclass has no setting 'wide'; did you mean 'width'?",
        "OfADataclass needs the setting 'width', which has no default",
    ]
    (found,) = entry.find_problems(plan_of(OfADataclass, {"width": 0}))
    assert "ValueError: no width; it is called with (policy, settings)" in found
    assert [*entry.find_problems(plan_of(OfADataclass, {"width": 2.0}))] == []
    settings = OfADataclass.Settings(width=2, sizes=[3])
    plan = plan_of(OfADataclass, {"width": 2.0, "sizes": [3]})
    (trainer,) = entry.make_actors(plan, entry.seating.make_seats(plan)).learners.values()
    assert trainer.settings == settings
    check_trainer(OfADataclass, num_batches=2, min_return=None, width=2, sizes=[3])


def test_declaring_settings_needs_neither_ray_nor_torch() -> None:
    modules = ("declared_settings", "budget", "spaces", "algorithm")
    code = "; ".join(f"import muxrl.servers.trainers.{module}" for module in modules)
    code += """
import sys
from muxrl.servers.config import ServerConfig
from muxrl.servers.lookup import own_algorithms
for one in own_algorithms():
    given = ServerConfig(one.name, settings={"lr": "fast", "y": 1}, model={"fcnet_hiddens": 8})
    assert [*one.find_config_problems(given)]
    assert not [*one.find_config_problems(ServerConfig(one.name))]
assert not {"ray", "torch"} & {*sys.modules}
"""
    subprocess.run([sys.executable, "-c", code], check=True)
