"""What a user may set of an algorithm's networks: RLlib's default ones, or their own module."""

from __future__ import annotations

import dataclasses
import inspect
import math
import typing
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from gymnasium import spaces
from ray.rllib.algorithms.algorithm_config import AlgorithmConfig
from ray.rllib.core.rl_module.default_model_config import DefaultModelConfig
from ray.rllib.core.rl_module.multi_rl_module import MultiRLModuleSpec
from ray.rllib.core.rl_module.rl_module import RLModule, RLModuleSpec
from ray.rllib.core.rl_module.torch.torch_rl_module import TorchRLModule
from ray.rllib.models.utils import get_filter_config

from muxrl.servers.agents.keys import OBS
from muxrl.servers.import_by_name import CannotImport, import_by_name
from muxrl.servers.setting_values import AlgorithmProblem, kind_of, read_as, suggestion

_BOARD_SIZE = 10
"""Cells a side that are seen without a stride."""
_LARGE_SIZE = 64

_MODEL_TYPES: Mapping[str, Any] = {
    **typing.get_type_hints(DefaultModelConfig),
    "conv_filters": list,  # of which RLlib takes more than it says, "valid" as the fourth of each
}

EXAMPLE = "my_package.my_module:MyRLModule"


@dataclass(frozen=True)
class Networks:
    """The networks of an algorithm: RLlib's default ones, unless its attributes say otherwise.

    Attributes:
        defaults: network settings whose default here is not RLlib's.
        refused: network settings that the algorithm cannot have, with the reason.
        model_refused: why there are no network settings at all; "": there are.
        own_module_refused: why a user's RLModule cannot take the networks' place; "": it can.
        module: the RLModule for observations with an action mask apart, and for recurrent
            networks, of which RLlib's default has old critics act; None: it is RLlib's default.
        is_module_for_all: whether ``module`` takes RLlib's default's place without these, too; not
            that of a class which a brought config names.
    """

    defaults: Mapping[str, Any] = field(default_factory=dict)
    refused: Mapping[str, str] = field(default_factory=dict)
    model_refused: str = ""
    own_module_refused: str = ""
    module: type[RLModule] | None = None
    is_module_for_all: bool = False

    def settings(self) -> dict[str, Any]:
        """Every network setting that a user may give, with its default."""
        if self.model_refused:
            return {}
        fields = dataclasses.asdict(self._default_model())
        return {name: value for name, value in fields.items() if name not in self.refused}

    def configure(
        self,
        config: AlgorithmConfig,
        algorithm: str,
        model: Mapping[str, Any],
        rl_module: str,
        *,
        has_masks: bool,
    ) -> None:
        """Sets the networks in an RLlib config; see `AlgorithmEntry.make_config`.

        Raises:
            AlgorithmProblem: the algorithm cannot have these; it is named in the message.
        """
        if rl_module and self.own_module_refused:
            raise AlgorithmProblem(
                f"{algorithm} cannot take an RLModule of your own ({rl_module!r} was given): "
                f"{self.own_module_refused}; leave out rl_module"
            )
        if rl_module:
            module_class = load_module_class(rl_module, algorithm, config)
            config.rl_module(
                rl_module_spec=RLModuleSpec(module_class=module_class, model_config=dict(model))
            )
            return
        model = self._read(algorithm, model)
        if self.model_refused:
            return
        config.rl_module(model_config=dataclasses.replace(self._default_model(), **model))
        needs_module = has_masks or model.get("use_lstm")
        if self.is_module_for_all and not needs_module:
            default = config.get_default_rl_module_spec()
            needs_module = issubclass(self.module, getattr(default, "module_class", ()))  # type: ignore[arg-type]
        if self.module is not None and needs_module:
            config.rl_module(rl_module_spec=RLModuleSpec(module_class=self.module))

    def configure_images(
        self, config: AlgorithmConfig, observation_spaces: Mapping[str, spaces.Space]
    ) -> None:
        """Gives policies that see images their convolutions, where the user has given none.

        RLlib has them for five sizes, and raises for others.

        Args:
            config: as `configure` has left it.
            observation_spaces: by policy, as its RLModule reads them.
        """
        if self.model_refused or config.model_config.get("conv_filters"):
            return
        filters = {policy_id: find_convolutions(s) for policy_id, s in observation_spaces.items()}
        if not any(filters.values()):
            return
        base = config.rl_module_spec
        specs = {
            policy_id: dataclasses.replace(
                base, model_config={"conv_filters": found} if found else None
            )
            for policy_id, found in filters.items()
        }
        config.rl_module(rl_module_spec=MultiRLModuleSpec(rl_module_specs=specs))

    def _read(self, algorithm: str, model: Mapping[str, Any]) -> dict[str, Any]:
        defaults, read = self.settings(), {}
        for name, value in model.items():
            if self.model_refused:
                raise AlgorithmProblem(
                    f"{algorithm} has no separate model settings ({name!r} was given): "
                    f"{self.model_refused}"
                )
            if name in self.refused:
                raise AlgorithmProblem(
                    f"{algorithm} cannot have the model setting {name!r}: {self.refused[name]}"
                )
            if name not in defaults:
                raise AlgorithmProblem(
                    f"{algorithm} has no model setting {name!r}{suggestion(name, defaults)}"
                )
            kind = kind_of(_MODEL_TYPES[name], defaults[name])
            read[name] = read_as(f"{algorithm}'s model setting {name!r}", value, kind)
        return read

    def _default_model(self) -> DefaultModelConfig:
        # vf_share_layers: RLlib's PPO says False, but a DefaultModelConfig overrides that by True.
        defaults = {
            "fcnet_hiddens": [64, 64],
            "fcnet_activation": "tanh",
            "vf_share_layers": False,
            **self.defaults,
        }
        return DefaultModelConfig(**defaults)


def find_convolutions(observation_space: spaces.Space) -> list[list[Any]] | None:
    """Returns RLlib's `conv_filters` for an image or a board, channels last, of any size.

    Strides bring it down to ten cells a side or fewer, and a last layer as large as what is left
    makes 256 features of it.

    Returns:
        None where RLlib has a default, or the space is no image.
    """
    if isinstance(observation_space, spaces.Dict):
        observation_space = observation_space[OBS]
    shape = observation_space.shape or ()
    if len(shape) != 3:
        return None
    try:
        get_filter_config(shape)
    except ValueError:
        pass
    else:
        return None
    sides = list(shape[:2])
    filters: list[list[Any]] = []
    while max(sides) > _BOARD_SIZE:
        kernel, stride = (8, 4) if max(sides) > _LARGE_SIZE else (4, 2)
        filters.append([16 if not filters else 32, [kernel, kernel], stride])
        sides = [math.ceil(side / stride) for side in sides]
    if not filters:
        filters.append([32, [3, 3], 1])
    return [*filters, [64, [3, 3], 1], [256, sides, 1, "valid"]]


def load_module_class(path: str, algorithm: str, config: AlgorithmConfig) -> type[TorchRLModule]:
    """Returns the class at "package.module:Class" if it fits the algorithm.

    Args:
        path: as the user wrote it.
        algorithm: named in the message.
        config: its learner says which of RLlib's module APIs it calls.

    Raises:
        AlgorithmProblem: it cannot be imported, is no torch RLModule, or lacks an interface.
    """
    try:
        cls = import_by_name(path, EXAMPLE)
    except CannotImport as error:
        raise AlgorithmProblem(f"rl_module {error}") from error
    if not (isinstance(cls, type) and issubclass(cls, TorchRLModule)):
        raise AlgorithmProblem(
            f"rl_module {path!r} is {_kind_of(cls)}, and {algorithm} needs a subclass of RLlib's "
            "TorchRLModule"
        )
    learner: Any = config.get_default_learner_class()
    missing = [
        api.__name__ for api in learner.rl_module_required_apis() if not issubclass(cls, api)
    ]
    if missing:
        raise AlgorithmProblem(
            f"rl_module {path!r} lacks {' and '.join(missing)}, which {algorithm}'s learner "
            "calls; inherit from it (ray.rllib.core.rl_module.apis)"
        )
    if inspect.isabstract(cls):
        abstract: frozenset[str] = getattr(cls, "__abstractmethods__", frozenset())
        raise AlgorithmProblem(
            f"rl_module {path!r} leaves {', '.join(sorted(abstract))} abstract; implement it"
        )
    return cls


def _kind_of(value: Any) -> str:
    if isinstance(value, type):
        bases = ", ".join(base.__name__ for base in value.__bases__)
        return f"the class {value.__name__}({bases})"
    return f"an object of {type(value).__name__}"
