"""Settings of RLlib configs, each declared once: type, checks, default and description.

A declaration is an annotated line of the config's class, with its description as a docstring below:

.. code-block:: python

    class MyConfig(DeclaredSettings, RLlibConfig):
        width: Count = 64
        '''Units of the hidden layer.'''

Without a value the default is RLlib's. A subclass may declare a setting again, or assign another
default. `muxrl.orchestrator.settings_reference` makes the tables on the algorithms' pages from
these lines.
"""

from __future__ import annotations

import copy
import inspect
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Literal, Self, TypeVar, get_args, get_origin

from ray.rllib.algorithms.algorithm import Algorithm
from ray.rllib.algorithms.algorithm_config import AlgorithmConfig
from ray.rllib.core.rl_module.rl_module import RLModule, RLModuleSpec
from ray.rllib.utils.schedules.scheduler import Scheduler

from muxrl.servers.setting_values import ReadValue, training_arguments


@dataclass(frozen=True)
class Check:
    """What a value has to be.

    Attributes:
        sentence: completes "name=value " where `holds` is not true of the value.
    """

    holds: Callable[[Any], bool]
    sentence: str

    def __call__(self, config: AlgorithmConfig, name: str, value: Any) -> None:
        if not self.holds(value):
            config._value_error(f"{name}={value!r} {self.sentence}")


@dataclass(frozen=True)
class ScheduleCheck:
    """A number, or ``[(env step, value), ...]`` that begins at step 0, with values in 0..`highest`.

    Attributes:
        highest: None: there is no upper bound.
    """

    highest: float | None = None

    def __call__(self, config: AlgorithmConfig, name: str, value: Any) -> None:
        Scheduler.validate(fixed_value_or_schedule=value, setting_name=name, description=name)
        values = [value] if isinstance(value, int | float) else [v for _, v in value]
        if not all(v >= 0.0 and (self.highest is None or v <= self.highest) for v in values):
            bounds = (
                "be at least 0" if self.highest is None else f"stay within 0 and {self.highest:g}"
            )
            config._value_error(f"{name}={value} must {bounds}")


Schedule = Annotated[float | list[tuple[int, float]], ScheduleCheck()]
Share = Annotated[float, Check(lambda v: 0.0 <= v <= 1.0, "must lie in [0, 1]")]
Count = Annotated[
    int,
    Check(lambda v: isinstance(v, int) and v >= 1, "must be a whole number of at least 1"),
]
Positive = Annotated[float, Check(lambda v: v > 0.0, "must be above 0")]
NotNegative = Annotated[float, Check(lambda v: v >= 0.0, "must be at least 0")]
Limit = Annotated[
    float | None,
    Check(lambda v: v is None or v > 0.0, "must be above 0, or None"),
]


class DeclaredSettings(AlgorithmConfig):
    """An RLlib config whose settings are declared in its class and those above it."""

    own_declarations: ClassVar[Mapping[str, Any]] = {}
    """Of this class alone: the name of a setting to its annotation."""
    own_defaults: ClassVar[Mapping[str, Any]] = {}
    """Likewise, to its default where that is not inherited."""
    default_algorithm: ClassVar[type[Algorithm] | None] = None
    """Noted by `configured_by`, as those below; None: RLlib's."""
    default_learner: ClassVar[type | None] = None
    """Of this algorithm."""
    default_module: ClassVar[type[RLModule] | None] = None
    """Likewise."""

    gamma: Share
    """Discount of each step's reward."""
    grad_clip: float | None
    """Largest norm of the gradient; None: no clip."""
    min_sample_timesteps_per_iteration: int | None
    """Env steps per training record, at least."""
    min_time_s_per_iteration: float | None
    """Seconds per training record, at least."""
    min_train_timesteps_per_iteration: int | None
    """Trained steps per training record, at least."""

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        _collect(cls)

    def __init__(self, algo_class: type[Algorithm] | None = None) -> None:
        super().__init__(algo_class=algo_class or self.default_algorithm)
        for cls in reversed(declaring_classes(type(self))):
            for name, default in cls.own_defaults.items():
                setattr(self, name, copy.deepcopy(default))

    def get_default_learner_class(self) -> type:
        learner: type = self.default_learner or super().get_default_learner_class()
        return learner

    def get_default_rl_module_spec(self) -> Any:
        module = self.default_module
        return RLModuleSpec(module) if module else super().get_default_rl_module_spec()

    @classmethod
    def declared(cls) -> dict[str, Any]:
        """Returns every setting's annotation by its name."""
        classes = reversed(declaring_classes(cls))
        return {name: kind for one in classes for name, kind in one.own_declarations.items()}

    @classmethod
    def readers(cls) -> dict[str, ReadValue]:
        """Returns, by setting, what reads a server's value where its type is not check enough."""
        return {
            name: part
            for name, kind in cls.declared().items()
            for part in getattr(kind, "__metadata__", ())
            if inspect.isfunction(part)
        }

    def training(self, **kwargs: Any) -> Self:
        """Sets settings: those that the class declares, and RLlib's.

        Returns:
            This config.
        """
        own = self.declared().keys() & kwargs.keys() - training_arguments(type(self)).keys()
        super().training(**{name: kwargs[name] for name in kwargs if name not in own})
        for name in own:
            setattr(self, name, kwargs[name])
        return self

    def validate(self) -> None:
        super().validate()
        for name in self.declared():
            self.validate_setting(name)

    def validate_setting(self, name: str) -> None:
        """Raises a ValueError if the value of a setting is none that was declared."""
        for check in _checks(self.declared()[name]):
            check(self, name, getattr(self, name))


A = TypeVar("A", bound=Algorithm)


def configured_by(
    config_class: type[DeclaredSettings], learner: type, module: type[RLModule] | None = None
) -> Callable[[type[A]], type[A]]:
    """Has an algorithm and its config be each other's default.

    Args:
        config_class: the algorithm's own.
        learner: of this config.
        module: likewise; None: that of the config above it.
    """

    def bind(algorithm: type[A]) -> type[A]:
        config_class.default_algorithm = algorithm
        config_class.default_learner = learner
        config_class.default_module = module or config_class.default_module
        algorithm.get_default_config = classmethod(lambda cls: config_class())
        return algorithm

    return bind


def declaring_classes(cls: type) -> list[type[DeclaredSettings]]:
    """Returns a config class and those above it that declare settings, the nearest first."""
    return [one for one in cls.__mro__ if issubclass(one, DeclaredSettings)]


def _collect(cls: type[DeclaredSettings]) -> None:
    """Notes what a class declares, and removes the defaults: some are properties in RLlib."""
    annotations = inspect.get_annotations(cls, eval_str=True)
    cls.own_declarations = {
        name: kind
        for name, kind in annotations.items()
        if not str(kind).startswith("typing.ClassVar") and not name.startswith("_")
    }
    cls.own_defaults = {n: v for n, v in vars(cls).items() if n in cls.declared()}
    for name in cls.own_defaults:
        delattr(cls, name)


def _checks(kind: Any) -> Iterator[Check | ScheduleCheck]:
    if get_origin(kind) is Literal:
        known = get_args(kind)
        yield Check(lambda v: v in known, f"is unknown; it is one of {', '.join(known)}")
    # The narrowest first, which was put around the others.
    declared = reversed(getattr(kind, "__metadata__", ()))
    yield from (c for c in declared if isinstance(c, Check | ScheduleCheck))


_collect(DeclaredSettings)


class ActorCriticSettings(DeclaredSettings):
    """What RLlib's algorithms have that learn a policy and a value from whole batches."""

    entropy_coeff: Schedule
    """Weight of the entropy bonus; a number or a schedule."""
    grad_clip_by: Literal["value", "norm", "global_norm"]
    """`value`, `norm` or `global_norm`."""
    lr: Schedule
    """Learning rate; a number or a schedule."""
    train_batch_size: int
    """RLlib's old name of `train_batch_size_per_learner`."""
    train_batch_size_per_learner: int
    """Env steps between two updates."""
    vf_loss_coeff: float
    """Weight of the value loss."""
