"""What a user may set of an algorithm's networks: RLlib's default ones, or their own module."""

from __future__ import annotations

import inspect
import typing
from collections.abc import Mapping
from typing import Any

from ray.rllib.algorithms.algorithm_config import AlgorithmConfig
from ray.rllib.core.rl_module.default_model_config import DefaultModelConfig
from ray.rllib.core.rl_module.torch.torch_rl_module import TorchRLModule

from muxrl.servers.import_by_name import import_named
from muxrl.servers.setting_values import AlgorithmProblem

MODEL_TYPES: Mapping[str, Any] = {
    **typing.get_type_hints(DefaultModelConfig),
    "conv_filters": list,  # of which RLlib takes more than it says, "valid" as the fourth of each
}

EXAMPLE = "my_package.my_module:MyRLModule"


def load_module_class(path: str, algorithm: str, config: AlgorithmConfig) -> type[TorchRLModule]:
    """Returns the class at "package.module:Class" if it fits the algorithm.

    Args:
        path: as the user wrote it.
        algorithm: named in the message.
        config: its learner says which of RLlib's module APIs it calls.

    Raises:
        AlgorithmProblem: it cannot be imported, is no torch RLModule, or lacks an interface.
    """
    cls = import_named("rl_module", path, EXAMPLE)
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
