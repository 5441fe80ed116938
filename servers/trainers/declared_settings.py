"""Settings of a trainer, each declared once: type, checks, default and description.

A declaration looks like a config's (`muxrl.servers.declared`):

.. code-block:: python

    class MySettings(Settings):
        width: Count = 64
        '''Units of the hidden layer.'''

A trainer's class names such a class as its attribute ``Settings``, and is made with an instance of
it. Any other dataclass will do, too; its values are checked by their types alone. A subclass may
declare a setting again, or assign another default. `muxrl.orchestrator.settings_reference` makes
the lists on the algorithms' pages from these declarations.
"""

from __future__ import annotations

import contextlib
import copy
import inspect
from collections.abc import Collection, Mapping
from dataclasses import Field, dataclass, field, fields, is_dataclass
from functools import partial
from types import UnionType
from typing import (
    Annotated,
    Any,
    ClassVar,
    Self,
    Union,
    dataclass_transform,
    get_args,
    get_origin,
    get_type_hints,
)

from muxrl.servers.declared import Check as Check
from muxrl.servers.declared import between
from muxrl.servers.setting_values import AlgorithmProblem, read_as, suggestion
from muxrl.servers.trainers.brought_settings import OF_RLLIB, where_it_went


@dataclass(frozen=True)
class ScheduleCheck:
    """Checks a number, or ``[(env step, value), ...]`` from step 0 on: values in 0..`highest`.

    Attributes:
        highest: largest value; None: there is no upper bound.
    """

    highest: float | None = None

    def find_problem(self, name: str, value: Any) -> str:
        """Returns what is wrong with a value, "" for nothing."""
        values = [value]
        if not isinstance(value, int | float):
            if len(value) < 2:
                return (
                    f"Invalid `{name}` ({value}) specified! Must be a list of 2 or more tuples, "
                    f"each of the form (`timestep`, `{name} to reach`), for example "
                    "`[(0, 0.001), (1e6, 0.0001), (2e6, 0.00005)]`."
                )
            if value[0][0] != 0:
                return (
                    f"When providing a `{name}` schedule, the first timestep must be 0 and the "
                    f"corresponding lr value is the initial {name}! You provided "
                    f"ts={value[0][0]} {name}={value[0][1]}."
                )
            values = [v for _, v in value]
        if all(v >= 0.0 and (self.highest is None or v <= self.highest) for v in values):
            return ""
        bounds = "be at least 0" if self.highest is None else f"stay within 0 and {self.highest:g}"
        return f"{name}={value} must {bounds}"


Schedule = Annotated[float | list[tuple[int, float]], ScheduleCheck()]
Share = Annotated[float, between(0.0, 1.0, "must lie in [0, 1]")]
Count = Annotated[
    int,
    Check(
        lambda v: isinstance(v, int) and v >= 1,
        "must be a whole number of at least 1",
        (("minimum", 1),),
    ),
]
Positive = Annotated[float, Check(lambda v: v > 0.0, "must be above 0", (("exclusiveMinimum", 0),))]
NotNegative = Annotated[float, Check(lambda v: v >= 0.0, "must be at least 0", (("minimum", 0),))]
Limit = Annotated[
    float | None,
    Check(lambda v: v is None or v > 0.0, "must be above 0, or None", (("exclusiveMinimum", 0),)),
]


@dataclass_transform(kw_only_default=True)
@dataclass(kw_only=True)
class Settings:
    """The settings of a trainer, each with a default; a subclass becomes a dataclass by itself.

    A field ``model``, an instance of another subclass, has the settings of the trainer's networks:
    ``servers.X.model``.
    """

    unused: ClassVar[frozenset[str]] = frozenset()
    """Names of settings that the trainer has no use for: inherited, or of other libraries."""
    refused: ClassVar[Mapping[str, str]] = {}
    """Inherited settings that the trainer cannot have, with the reason."""
    model_refused: ClassVar[str] = ""
    """Why the trainer has no network settings, in a class without ``model``."""
    preset: ClassVar[Mapping[str, Any]] = {}
    """Settings of a variant that a user cannot change, with their values."""
    own_module_refused: ClassVar[str] = ""
    """Why no RLModule can replace the networks; "": RLlib's algorithm of this name takes one."""
    _kinds: ClassVar[Mapping[str, Any]] = {}
    """The annotation of every setting, by name."""

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        for name, value in vars(cls).get("preset", {}).items():
            setattr(cls, name, value)
        own, inherited = cls.__annotations__, {one.name for one in fields(cls)}
        kinds = get_type_hints(cls, include_extras=True)
        own |= {name: kinds[name] for name in inherited & vars(cls).keys() - own.keys()}
        for name, kind in own.items():
            default, is_setting = vars(cls).get(name), "ClassVar" not in str(kind)
            if is_setting and isinstance(default, list | dict | Settings):  # one for each
                setattr(cls, name, field(default_factory=partial(copy.deepcopy, default)))
        made = {name: vars(cls)[name] for name in own if isinstance(vars(cls).get(name), Field)}
        dataclass(kw_only=True)(cls)
        cls._kinds = {one.name: kinds[one.name] for one in fields(cls) if one.name != MODEL}
        for name, default in made.items():  # for a caller that applies `dataclass` again
            setattr(cls, name, default)

    @classmethod
    def known(cls) -> dict[str, Any]:
        """Returns the annotation of each setting that a user may give."""
        hidden = {*cls.preset, *cls.unused, *cls.refused}
        return {name: kind for name, kind in cls._kinds.items() if name not in hidden}

    def values(self) -> dict[str, Any]:
        """Returns every setting's value by its name."""
        return {name: getattr(self, name) for name in self._kinds}

    def known_values(self) -> dict[str, Any]:
        """Returns the value of each setting that a user may give."""
        return {name: getattr(self, name) for name in self.known()}

    @property
    def known_of_model(self) -> dict[str, Any]:
        """The value of each network setting that a user may give."""
        model: Settings | None = getattr(self, MODEL, None)
        return model.known_values() if model else {}

    @classmethod
    def read(cls, algorithm: str, given: Mapping[str, Any], of_model: Mapping[str, Any]) -> Self:
        """Returns the settings with the values that a user gave, all others at their defaults.

        Args:
            algorithm: its name, for messages.
            given: the settings that the user gave.
            of_model: the network settings that the user gave.

        Raises:
            AlgorithmProblem: names are unknown, with a line for each; a value is of the wrong type
                or out of its range, or values do not go together.
        """
        made = cls()
        model: Settings | None = getattr(made, MODEL, None)
        made._take(algorithm, "setting", given, made.known_of_model)
        if model is not None:
            model._take(algorithm, "model setting", of_model)
        elif of_model and not cls.model_refused:
            raise AlgorithmProblem(f"{algorithm} makes its networks itself; leave out model")
        elif of_model:
            raise AlgorithmProblem(
                f"{algorithm} has no separate model settings ({next(iter(of_model))!r} was given): "
                f"{cls.model_refused}"
            )
        try:
            made.validate()
        except (TypeError, ValueError) as error:
            first_line = str(error).partition("\n")[0]
            raise AlgorithmProblem(f"{algorithm}: {first_line}") from None
        return made

    def _take(
        self, algorithm: str, what: str, given: Mapping[str, Any], model: Collection[str] = ()
    ) -> None:
        """Sets the values that a user gave, after checking them against the declared types.

        Args:
            algorithm: its name, for messages.
            what: a setting is called in messages, such as "model setting".
            given: the values by name.
            model: names of the network settings, among which an unknown name may belong.
        """
        known = self.known()
        refusals = [
            f"{algorithm} {self._refusal(what, name, model)}" for name in given if name not in known
        ]
        if refusals:
            raise AlgorithmProblem("\n".join(refusals))
        for name, value in given.items():
            which, kind = f"{algorithm}'s {what} {name!r}", known[name]
            value = read_as(which, value, kind)
            for part in getattr(kind, "__metadata__", ()):
                if inspect.isfunction(part):  # checks further than the type does
                    value = part(which, value, getattr(self, name))
            setattr(self, name, value)

    @classmethod
    def _refusal(cls, what: str, name: str, model: Collection[str]) -> str:
        known = cls.known()
        if name in cls.preset:
            kind = next(one.__name__ for one in cls.__mro__ if not getattr(one, "preset", ()))
            return (
                f"is {kind} with {name}={cls.preset[name]!r}; to set {name!r} yourself use "
                f"{kind.removesuffix('Settings')}"
            )
        if place := where_it_went(name, known, model):
            return f"has no {what} {name!r}{place}"
        if name in cls.unused | OF_RLLIB:
            return f"makes no use of {name!r}; remove it"
        if name in cls.refused:
            return f"cannot have the {what} {name!r}: {cls.refused[name]}"
        return f"has no {what} {name!r}{suggestion(name, known)}"

    def validate(self) -> None:
        """Checks each setting, and in subclasses also combinations of settings.

        Raises:
            ValueError: a check failed; with the sentence that a user reads.
        """
        for name, kind in self._kinds.items():
            if problem := _find_problem(name, getattr(self, name), kind):
                raise ValueError(problem)
        model = getattr(self, MODEL, None)
        if isinstance(model, Settings):
            model.validate()


def settings_class_of(trainer_class: Any) -> Any:
    """Returns the dataclass ``Settings`` of a trainer's class; None: it has none."""
    found = getattr(trainer_class, "Settings", None)
    return found if isinstance(found, type) and is_dataclass(found) else None


MODEL = "model"
"""Name of the field with the settings of networks."""


def _find_problem(name: str, value: Any, kind: Any) -> str:
    """Returns what is wrong with a value of an annotated type, "" for nothing."""
    origin, args = get_origin(kind), get_args(kind)
    if origin is Annotated:
        # The outermost first, which is the narrowest.
        checks = [c for c in reversed(kind.__metadata__) if isinstance(c, Check | ScheduleCheck)]
        problems = (check.find_problem(name, value) for check in checks)
        return next(filter(None, problems), "") or _find_problem(name, value, args[0])
    if origin in (Union, UnionType):
        for one in args:
            with contextlib.suppress(AlgorithmProblem):
                return _find_problem(name, read_as(name, value, one), one)
    return ""
