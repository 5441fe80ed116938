"""Every setting of every algorithm is checked by its type before anything learns with it."""

from __future__ import annotations

import collections.abc
import math
from collections.abc import Callable
from typing import Annotated, Any, Literal, Optional, Union, get_origin

import pytest
from ray.rllib.algorithms.algorithm_config import NotProvided
from ray.rllib.algorithms.dqn import DQNConfig
from ray.rllib.algorithms.ppo import PPOConfig
from tests.servers.scripted_store import make_plan
from tests.servers.test_lookup import made as set_in
from tests.servers.trainers.brought import Counting

from muxrl.servers.agents.observing import Observing
from muxrl.servers.config import ServerConfig
from muxrl.servers.declared import bare
from muxrl.servers.fixed_policies.entry import PoolAlgorithm
from muxrl.servers.lookup import own_algorithms
from muxrl.servers.setting_values import AlgorithmProblem, kind_of, read_as
from muxrl.servers.trainers.lookup import find_trainer, registered

PAIRS = "[an integer, a number]"
Schedule = Annotated[float | list[tuple[int, float]], "checked elsewhere"]
Brought = Optional[Union[float, list[list[Union[int, float]]], Callable[[float], float]]]  # noqa: UP007, UP045, as RLlib writes


@pytest.mark.parametrize(
    ("value", "kind", "read"),
    [
        (5e1, int, 50),
        (500.0, int | None, 500),
        (None, int | None, None),
        (3e0, int | Literal["auto"], 3),
        ("auto", int | Literal["auto"], "auto"),
        (1, float, 1),
        (1e-3, Schedule, 1e-3),
        ([[0, 1e-3], [1e3, 1e-4]], Schedule, [[0, 1e-3], [1000, 1e-4]]),
        ([[0, 1], [5e2, 0.05]], Schedule, [[0, 1], [500, 0.05]]),
        ([(0, 1.0)], Schedule, [(0, 1.0)]),
        ([64.0, 64], list[int], [64, 64]),
        ([64, 32], tuple[int, ...], [64, 32]),
        ({"a": 2.0}, dict[str, int], {"a": 2}),
        ({"a": 2.0}, collections.abc.Mapping[str, Any], {"a": 2.0}),
        ("tanh", str, "tanh"),
        ("mine:half", Brought, "mine:half"),
        ([[0, 0.5]], Brought, [[0, 0.5]]),
        ({"any": "thing"}, Counting, {"any": "thing"}),
        (2.0, Literal[1, 2], 2),
        (6.4e1, kind_of("", 32), 64),
        (0.5, kind_of("", 32), 0.5),
    ],
)
def test_a_value_is_converted_to_its_type(value: Any, kind: Any, read: Any) -> None:
    def types_in(one: Any) -> Any:
        return [types_in(item) for item in one] if isinstance(one, list | tuple) else type(one)

    found = read_as("x", value, kind)
    assert found == read
    assert types_in(found) == types_in(read)


@pytest.mark.parametrize(
    ("value", "kind", "sentence"),
    [
        (50.5, int, "an integer, got 50.5"),
        (math.inf, int, "an integer, got inf"),
        (True, int, "an integer, got true"),
        (True, float, "a number, got true"),
        (1, bool, "true or false, got 1"),
        (1, Literal[True], "True, got 1"),
        (None, int, "an integer, got nothing (null)"),
        ("1e-3", float, "a number, but '1e-3' is text; leave out the quotes: 1e-3"),
        ("+.5", float, "a number, but '+.5' is text; leave out the quotes: .5"),
        ("True", bool, "true or false, but 'True' is text; leave out the quotes: True"),
        ("[[0, 1]]", list[tuple[int, float]], f"a list of {PAIRS}, but '[[0, 1]]' is text; leave"),
        ("500", int | None, "an integer or null, but '500' is text; leave out the quotes: 500"),
        ("fast", float, "a number, got the text 'fast'"),
        ("0.5", int, "an integer, got the text '0.5'"),
        ("5", list[str], "a list of text, got the text '5'; write [\"5\"]"),
        ([1, 2], float | None, "a number or null, got the list [1, 2]"),
        ([1, 2, 3], tuple[int, int], "[an integer, an integer], got the list [1, 2, 3]"),
        (["a"], list[int], "a list of integers, got the list ['a']"),
        ({"a": "x"}, dict[str, int], "a mapping of keys, got a mapping with the keys a"),
        ([[0, 1], [5.5, 1]], Schedule, f"a number or a list of {PAIRS}, got the list [[0, 1], [5."),
        ([[0, "1e-3"]], Schedule, f"a number or a list of {PAIRS}, but '1e-3' is text; leave out"),
        ("fast", Brought, "a number or a list of lists or a function or null, got the text 'fast'"),
        ("adm", Literal["adam", "sgd"], "one of 'adam', 'sgd', got the text 'adm'; did you mean"),
    ],
)
def test_a_value_of_another_type_is_refused_with_what_to_write(
    value: Any, kind: Any, sentence: str
) -> None:
    with pytest.raises(AlgorithmProblem) as refused:
        read_as("PPO's setting 'x'", value, kind)
    assert str(refused.value).startswith(f"PPO's setting 'x' must be {sentence}")


@pytest.mark.parametrize(
    ("annotation", "default", "kind"),
    [
        (int, 3, int),
        (float, 10, float),  # as Stable-Baselines3 declares it
        (float, None, Optional[float]),  # noqa: UP045
        (int, 0.5, float),  # a library's annotation that is wrong
        ("TypeOfAnotherModule", 3, int | float),
        ("", True, bool),
        ("", None, Any),
        (dict, {}, dict),
    ],
)
def test_the_type_is_the_annotation_or_that_of_the_default(
    annotation: Any, default: Any, kind: Any
) -> None:
    assert kind_of(annotation, default) == kind


def some_mapping_or_text(kind: Any) -> Any:
    """Returns a value that is certainly not of a type."""
    kind = kind.__origin__ if get_origin(kind) is Annotated else kind
    return "fast" if (get_origin(kind) or kind) is dict else {"of": 5}


@pytest.mark.parametrize("entry", own_algorithms(), ids=lambda entry: entry.name)
def test_every_setting_of_every_algorithm_is_checked_by_type(entry: Any) -> None:
    declared = entry.kinds()
    for name, default in entry.settings().items():
        assert read_as(name, default, declared[name]) == default
        if type(default) is int and bare(declared[name]) is int:
            assert type(getattr(set_in(entry.name, {name: float(default)}), name)) is int
        for wrong in (some_mapping_or_text(declared[name]), "1e-3"):
            with pytest.raises(AlgorithmProblem, match=f"^{entry.name}'s setting '{name}' must be"):
                set_in(entry.name, {name: wrong})
    for name, default in entry.model_settings().items():
        kind = set_in(entry.name).model.known()[name]
        assert read_as(name, default, kind) == default
        wrong = "fast" if "kwargs" in name else some_mapping_or_text(kind)
        with pytest.raises(AlgorithmProblem, match=f"model setting '{name}' must be"):
            set_in(entry.name, model={name: wrong})


ODD = ("500", "0.5", -1, 0, 1.5, True, None, float("nan"), [], [[0]], [[0, 1], [0]], {}, {"a": 1})


@pytest.mark.parametrize("entry", own_algorithms(), ids=lambda entry: entry.name)
def test_no_value_of_a_setting_raises_anything_but_a_refusal(entry: Any) -> None:
    for name in entry.settings():
        for value in ODD:
            plan = make_plan("ab", settings={name: value})
            for problem in (*entry.find_config_problems(plan), *entry.find_problems(plan)):
                assert len(problem.splitlines()) == 1, problem


def test_numbers_within_a_setting_are_converted_too() -> None:
    config = set_in("DQN", {"replay_buffer_config": {"capacity": 5e3}}, {"fcnet_hiddens": [3.2e1]})
    assert type(config.replay_buffer_config["capacity"]) is int
    assert type(config.model.fcnet_hiddens[0]) is int
    for settings, wrong in (
        ({"replay_buffer_config": {"capacity": "5e3"}}, "key 'capacity', must be an integer, but"),
        ({"replay_buffer_config": {"capacity": 5e-1}}, "'capacity', must be an integer, got 0.5"),
    ):
        with pytest.raises(AlgorithmProblem, match=wrong):
            set_in("DQN", settings)
    with pytest.raises(AlgorithmProblem, match="last must be an integer, but"):
        PoolAlgorithm({"members": {"a": {"snapshots": "x", "last": "5"}}}, {})
    pool = PoolAlgorithm({"members": {"a": {"snapshots": "x", "last": 5e0}}}, {})
    assert type(pool.given["members"]["a"]["last"]) is int


class Typed(Counting):
    """A trainer whose annotations are text, as in any file with postponed annotations."""

    def __init__(
        self, policy: Any, width: int, rates: list[float] | None = None, share: Any = 1, old=0.5
    ) -> None:
        super().__init__(policy)
        self.got = width, rates, share, old


def made(name: str, **settings: Any) -> Any:
    entry = find_trainer(name)
    assert entry is not None
    problems = list(entry.find_config_problems(ServerConfig(algorithm=name, settings=settings)))
    if problems:
        raise AlgorithmProblem("\n".join(problems))
    plan = make_plan("ab", algorithm=name, settings=settings)
    seats = entry.seating.make_seats(plan, Observing(plan))
    return entry.make_actors(plan, seats).learners["default"]


class Penalised(PPOConfig):
    def training(self, *, penalty: float = NotProvided, num: int = NotProvided, **kwargs: Any):  # type: ignore[override, no-untyped-def]
        super().training(**kwargs)
        if penalty is not NotProvided:
            self.penalty = penalty
        if num is not NotProvided:
            self.num = num
        return self

    def __init__(self, algo_class: Any = None) -> None:
        super().__init__(algo_class=algo_class)
        self.penalty, self.num = 0.1, 3


class Deep(DQNConfig):
    pass


def test_settings_of_a_brought_config_are_judged_as_it_says() -> None:
    name = f"{__name__}:Penalised"
    config = made(name, **{
        "minibatch_size": 5e1, "num": 4.0, "penalty": 1, "lr": [[0, 1e-3], [1e3, 1e-4]],
        "entropy_coeff": [[0, 0.1], [5e2, 0.0]],  # RLlib takes such a list without declaring it
    })._algorithm.config  # fmt: skip
    assert [type(config[one]) for one in ("minibatch_size", "num")] == [int, int]
    for wrong in (
        {"minibatch_size": "50"}, {"minibatch_size": 50.5}, {"penalty": "1e-3"}, {"num": 0.5},
        {"lr": [[0, "1e-3"]]}, {"use_kl_loss": 1}, {"gamma": "high"},
    ):  # fmt: skip
        (known,) = wrong
        with pytest.raises(AlgorithmProblem, match=f"Penalised's setting '{known}' must be"):
            made(name, **wrong)  # type: ignore[arg-type]
    deep = made(f"{__name__}:Deep", epsilon=[[0, 1], [5e2, 0.1]])._algorithm.config
    assert type(deep.epsilon[1][0]) is int


def test_a_trainer_of_ones_own_gets_what_its_annotations_say() -> None:
    trainer = made(f"{__name__}:Typed", width=6.4e1, rates=[1e-3, 1])
    assert trainer.got == (64, [1e-3, 1], 1, 0.5)
    assert type(trainer.got[0]) is int
    for wrong, sentence in (
        ({"width": 6.5}, "'width' must be an integer, got 6.5"),
        ({"width": 1, "rates": ["1e-3"]}, "'rates' must be a list of numbers or null, but '1e-3'"),
        ({"width": 1, "old": "0.1"}, "'old' must be a number, but '0.1' is text"),
    ):
        with pytest.raises(AlgorithmProblem, match=sentence):
            made(f"{__name__}:Typed", **wrong)  # type: ignore[arg-type]


@pytest.mark.parametrize("name", [name for name in registered() if name.startswith("SB3_")])
def test_stable_baselines3s_settings_are_judged(name: str) -> None:
    entry = find_trainer(name)
    assert entry is not None
    parameters = entry._parameters()
    assert {"learning_rate", "gamma", "batch_env_steps"} <= parameters.keys()
    for known, parameter in parameters.items():
        kind = kind_of(parameter.annotation, parameter.default)
        if parameter.default is not parameter.empty:
            assert read_as(known, parameter.default, kind) == parameter.default
        wrong = "fast" if "kwargs" in known else {"of": 5}
        with pytest.raises(AlgorithmProblem, match=f"'{known}' must be"):
            made(name, **{"batch_env_steps": 8, "total_timesteps": 100, known: wrong})
    for settings in ({"learning_rate": "1e-3"}, {"batch_env_steps": 8.5}):
        (known,) = settings
        with pytest.raises(AlgorithmProblem, match=f"{name}'s setting '{known}' must be"):
            made(name, **{"batch_env_steps": 8, "total_timesteps": 100, **settings})


def test_stable_baselines3_gets_whole_numbers() -> None:
    trainer = made("SB3_DQN", batch_env_steps=4e0, total_timesteps=1e3, buffer_size=5e2)
    assert [type(n) for n in (trainer.batch_env_steps, trainer._model.buffer_size)] == [int, int]
