"""Reads an RLlib config: its settings and networks, and the kind of its algorithm."""

from __future__ import annotations

import inspect
import typing
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from typing import Any

from ray.rllib.algorithms.algorithm_config import AlgorithmConfig
from ray.rllib.algorithms.appo.appo import APPOConfig
from ray.rllib.algorithms.dqn.dqn import DQNConfig
from ray.rllib.algorithms.impala.impala import IMPALAConfig
from ray.rllib.algorithms.ppo.ppo import PPOConfig
from ray.rllib.algorithms.sac.sac import SACConfig
from ray.rllib.core.rl_module.default_model_config import DefaultModelConfig
from ray.rllib.core.rl_module.rl_module import RLModuleSpec
from ray.rllib.core.rl_module.torch.torch_rl_module import TorchRLModule

from muxrl.servers.config import ServerConfig, ServerPlan
from muxrl.servers.import_by_name import import_named
from muxrl.servers.setting_values import (
    AlgorithmProblem,
    kind_of,
    read_as,
    suggestion,
    training_arguments,
)
from muxrl.servers.trainers.entry import TrainerEntry
from muxrl.servers.trainers.interface import PolicySpec
from muxrl.servers.trainers.rllib.masks import (
    MaskableAPPOTorchRLModule,
    MaskableDQNTorchRLModule,
    MaskablePPOTorchRLModule,
    MaskableSACTorchRLModule,
)
from muxrl.servers.trainers.rllib.trainer import (
    Corrected,
    OnPolicy,
    Replayed,
    ReplayedValues,
    RLlibTrainer,
)

# Arguments of `training()` that are no settings: they are RLlib's old API, or code.
NOT_SETTINGS = frozenset(
    {
        "add_default_connectors_to_learner_pipeline",
        "entropy_coeff_schedule",
        "learner_class",
        "learner_config_dict",
        "learner_connector",
        "lr_schedule",
        "max_requests_in_flight_per_aggregator_actor",
        "max_requests_in_flight_per_sampler_worker",
        "model",
        "num_aggregator_actors_per_learner",
        "num_sgd_iter",
        "optimizer",
        "use_gae",
        "vf_share_layers",
    }
)

_KINDS: Mapping[type[AlgorithmConfig], tuple[type[RLlibTrainer], type]] = {
    PPOConfig: (OnPolicy, MaskablePPOTorchRLModule),
    APPOConfig: (Corrected, MaskableAPPOTorchRLModule),
    IMPALAConfig: (Corrected, MaskablePPOTorchRLModule),
    DQNConfig: (ReplayedValues, MaskableDQNTorchRLModule),
    SACConfig: (Replayed, MaskableSACTorchRLModule),
}
"""By class of config: the trainer that feeds it, and the RLModule that follows action masks."""
_MORE_KINDS: Mapping[str, Any] = {
    "entropy_coeff": float | list[tuple[int, float]],
    "grad_clip": float | None,
}
"""Types of settings that take more than RLlib's annotation says."""

MODEL_TYPES: Mapping[str, Any] = {
    **typing.get_type_hints(DefaultModelConfig),
    "conv_filters": list,  # RLlib also takes "valid" as the fourth entry of each
}
EXAMPLE = "my_package.my_module:MyRLModule"


@dataclass(frozen=True)
class RLlibEntry(TrainerEntry):
    """A subclass of `AlgorithmConfig` as an algorithm.

    Attributes:
        source: the trainer for configs of its kind.
        config_class: the subclass.
    """

    config_class: Any = None

    @property
    def summary(self) -> str:
        kind = self.config_class
        if kind.__module__.startswith("ray."):  # whose docstring is about the class
            return f"RLlib's {kind.__name__.removesuffix('Config')}"
        return (inspect.getdoc(kind) or "").partition("\n")[0]

    def _parameters(self) -> dict[str, inspect.Parameter]:
        """Returns the arguments of ``training()``, of the config's class and its base classes."""
        config = self.config_class()
        found = {}
        for name, kind in sorted(training_arguments(self.config_class).items()):
            if name not in NOT_SETTINGS and hasattr(config, name):
                default = getattr(config, name)
                kind = kind_of(kind, default) | _MORE_KINDS[name] if name in _MORE_KINDS else kind
                keyword = inspect.Parameter.KEYWORD_ONLY
                found[name] = inspect.Parameter(name, keyword, default=default, annotation=kind)
        return found

    def model_settings(self) -> dict[str, Any]:
        """Returns every network setting of RLlib's default module, with its default."""
        own = self.config_class().model_config
        fields = asdict(DefaultModelConfig())
        return {name: own.get(name, default) for name, default in fields.items()}

    def _network_problems(self, config: ServerConfig | ServerPlan) -> Iterator[str]:
        try:
            self._networks(self.config_class(), config)
        except AlgorithmProblem as error:
            yield str(error)

    def _networks(self, config: AlgorithmConfig, of: ServerConfig | ServerPlan) -> None:
        """Sets the networks in RLlib's config, from a server's.

        Raises:
            AlgorithmProblem: the algorithm cannot have these networks.
        """
        if of.rl_module:
            module_class = load_module_class(of.rl_module, self.name, config)
            config.rl_module(
                rl_module_spec=RLModuleSpec(module_class=module_class, model_config=dict(of.model))
            )
            return
        defaults, read = self.model_settings(), {}
        for name, value in of.model.items():
            if name not in defaults:
                raise AlgorithmProblem(
                    f"{self.name} has no model setting {name!r}{suggestion(name, defaults)}"
                )
            kind = kind_of(MODEL_TYPES[name], defaults[name])
            read[name] = read_as(f"{self.name}'s model setting {name!r}", value, kind)
        config.rl_module(model_config={**defaults, **read})

    def _make(self, spec: PolicySpec, plan: ServerPlan, settings: dict[str, Any]) -> Any:
        config = self.config_class().training(**settings)
        self._networks(config, plan)
        masked = _kind_of(self.config_class)[1]
        default = config.get_default_rl_module_spec().module_class
        if not plan.rl_module and issubclass(masked, default):
            config.rl_module(rl_module_spec=RLModuleSpec(module_class=masked))
        return self.make(spec, config)


def _kind_of(config_class: type) -> tuple[type[RLlibTrainer], type]:
    return next(_KINDS[one] for one in config_class.__mro__ if one in _KINDS)


def entry_of(name: str, config_class: type) -> RLlibEntry:
    """Returns the entry of an RLlib config.

    Args:
        name: the import path, or a registered name.
        config_class: the class that was found there.

    Raises:
        AlgorithmProblem: it derives from the config of no algorithm that a server can feed.
    """
    if not any(one in _KINDS for one in config_class.__mro__):
        raise AlgorithmProblem(
            f"algorithm {name!r} is an RLlib config of none of the kinds that a server knows how "
            f"to feed; derive it from {', '.join(one.__name__ for one in _KINDS)}, or bring a "
            "trainer of your own"
        )
    return RLlibEntry(name, _kind_of(config_class)[0], config_class)


def load_module_class(path: str, algorithm: str, config: AlgorithmConfig) -> type[TorchRLModule]:
    """Returns the class at "package.module:Class" if it fits the algorithm.

    Args:
        path: as the user wrote it.
        algorithm: its name, for messages.
        config: of the algorithm; its learner tells which of RLlib's module APIs it calls.

    Raises:
        AlgorithmProblem: the class cannot be imported, is no torch RLModule, or lacks an API.
    """
    cls = import_named("rl_module", path, EXAMPLE)
    if not (isinstance(cls, type) and issubclass(cls, TorchRLModule)):
        raise AlgorithmProblem(
            f"rl_module {path!r} is {_described(cls)}, and {algorithm} needs a subclass of RLlib's "
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


def _described(value: Any) -> str:
    if isinstance(value, type):
        bases = ", ".join(base.__name__ for base in value.__bases__)
        return f"the class {value.__name__}({bases})"
    return f"an object of {type(value).__name__}"
