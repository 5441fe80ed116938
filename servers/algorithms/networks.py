"""What a user may set of an algorithm's networks: RLlib's default ones, or their own module."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from ray.rllib.algorithms.algorithm_config import AlgorithmConfig
from ray.rllib.core.rl_module.default_model_config import DefaultModelConfig
from ray.rllib.core.rl_module.rl_module import RLModule, RLModuleSpec

from muxrl.servers.algorithms.settings import AlgorithmProblem, check_kind, suggestion
from muxrl.servers.algorithms.user_module import load_module_class


@dataclass(frozen=True)
class Networks:
    """The networks of an algorithm: RLlib's default ones, unless its attributes say otherwise.

    Attributes:
        defaults: network settings whose default here is not RLlib's.
        refused: network settings that the algorithm cannot have, with the reason.
        model_refused: why there are no network settings at all; "": there are.
        own_module_refused: why a user's RLModule cannot take the networks' place; "": it can.
        masked_module: the RLModule for observations with an action mask apart; None: the
            config's default.
    """

    defaults: Mapping[str, Any] = field(default_factory=dict)
    refused: Mapping[str, str] = field(default_factory=dict)
    model_refused: str = ""
    own_module_refused: str = ""
    masked_module: type[RLModule] | None = None

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
        self._check(algorithm, model)
        if self.model_refused:
            return
        config.rl_module(model_config=dataclasses.replace(self._default_model(), **model))
        if has_masks and self.masked_module is not None:
            config.rl_module(rl_module_spec=RLModuleSpec(module_class=self.masked_module))

    def _check(self, algorithm: str, model: Mapping[str, Any]) -> None:
        defaults = self.settings()
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
            check_kind(f"{algorithm}'s model setting {name!r}", value, defaults[name])

    def _default_model(self) -> DefaultModelConfig:
        # vf_share_layers: RLlib's PPO says False, but a DefaultModelConfig overrides that by True.
        defaults = {
            "fcnet_hiddens": [64, 64],
            "fcnet_activation": "tanh",
            "vf_share_layers": False,
            **self.defaults,
        }
        return DefaultModelConfig(**defaults)
