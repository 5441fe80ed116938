"""What a user may set of an algorithm's training; unknown names and wrong kinds are refused."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Any

from muxrl.servers.setting_values import (
    AlgorithmProblem,
    read_as,
    suggestion,
)
from muxrl.servers.trainers.brought_settings import where_it_went
from muxrl.servers.trainers.declared_settings import MODEL, Settings

_OF_RLLIB = frozenset(
    {
        "adam_epsilon",
        "broadcast_interval",
        "burn_in_len",
        "categorical_distribution_temperature",
        "circular_buffer_num_batches",
        "clip_actions",
        "learner_queue_size",
        "learner_queue_timeout",
        "log_gradients",
        "max_requests_in_flight_per_aggregator_worker",
        "metrics_num_episodes_for_smoothing",
        "momentum",
        "noisy",
        "num_aggregation_workers",
        "num_aggregator_actors_per_learner",
        "num_gpu_loader_threads",
        "num_learners",
        "opt_type",
        "policy_model_config",
        "q_model_config",
        "replay_proportion",
        "sigma0",
        "simple_queue_size",
        "store_buffer_in_checkpoints",
        "timeout_s_aggregator_manager",
        "timeout_s_sampler_manager",
        "use_circular_buffer",
        "vtrace",
    }
)
"""Settings of RLlib's algorithms that muxrl's own ones of these names have no use for."""


@dataclass(frozen=True)
class TrainingSettings:
    """What a user may set: what a class of settings declares.

    Attributes:
        config_class: the class.
        preset: settings that make a variant out of it; a user cannot change them.
    """

    config_class: Any
    preset: Mapping[str, Any] = field(default_factory=dict)

    def known(self) -> dict[str, Any]:
        """Every setting that a user may give, with its default."""
        defaults = self.config_class.defaults()
        return {name: defaults[name] for name in sorted(self.kinds())}

    def kinds(self) -> dict[str, Any]:
        """Likewise, with its declared type."""
        cls = self.config_class
        hidden = {*self.preset, *cls.unused, *cls.refused}
        return {name: kind for name, kind in cls.declared().items() if name not in hidden}

    def make_config(
        self, algorithm: str, given: Mapping[str, Any], model: Collection[str] = ()
    ) -> Any:
        """Returns an object of the class with what was given, everything else at its default.

        Args:
            algorithm: named in messages.
            given: the settings.
            model: names of network settings, where a brought setting may belong.

        Raises:
            AlgorithmProblem: a value is of the wrong kind, or beyond its range; or names are
                unknown, with a line for each.
        """
        config, known = self.config_class(), self.known()
        unknown = [name for name in given if name not in known]
        if unknown:
            refusals = (self._refusal(algorithm, name, known, model, config) for name in unknown)
            raise AlgorithmProblem("\n".join(refusals))
        set_values(config, given, algorithm)
        for name, value in self.preset.items():
            setattr(config, name, value)
        return config

    def _refusal(
        self,
        algorithm: str,
        name: str,
        known: Mapping[str, Any],
        model: Collection[str],
        config: Settings,
    ) -> str:
        if name in self.preset:
            kind = next(c.__name__ for c in self.config_class.__mro__ if not c._preset)
            return (
                f"{algorithm} is {kind} with {name}={self.preset[name]!r}; to set {name!r} "
                f"yourself use {kind.removesuffix('Settings')}"
            )
        if place := where_it_went(name, known, model):
            return f"{algorithm} has no setting {name!r}{place}"
        if name in config.unused | _OF_RLLIB:
            return f"{algorithm} makes no use of {name!r}; remove it"
        if name in config.refused:
            return f"{algorithm} cannot have the setting {name!r}: {config.refused[name]}"
        return f"{algorithm} has no setting {name!r}{suggestion(name, known)}"


def set_values(
    config: Settings, given: Mapping[str, Any], algorithm: str, what: str = "setting"
) -> None:
    """Sets what a user gave in an object of settings.

    Args:
        config: has them all.
        given: the values by name.
        algorithm: named in messages.
        what: they are, in messages.

    Raises:
        AlgorithmProblem: a value is of the wrong kind, or none that was declared.
    """
    readers, declared = config.readers(), config.declared()
    for name, value in given.items():
        which = f"{algorithm}'s {what} {name!r}"
        value = read_as(which, value, declared[name])
        if name in readers:
            value = readers[name](which, value, getattr(config, name))
        setattr(config, name, value)
        try:
            config.validate_setting(name)
        except (TypeError, ValueError) as error:
            raise AlgorithmProblem(f"{algorithm}: {first_line(error)}") from None


def model_of(config: Settings) -> dict[str, Any]:
    """Returns the network settings of a trainer that a user may give, with their values."""
    model: Settings | None = getattr(config, MODEL, None)
    if model is None:
        return {}
    return {name: value for name, value in model.values().items() if name not in model.refused}


def set_model(config: Settings, given: Mapping[str, Any], algorithm: str) -> None:
    """Sets what a user gave for networks in a trainer's settings; raises as `set_values`."""
    model: Settings | None = getattr(config, MODEL, None)
    known = model_of(config)
    for name in given:
        if model is None and not config.model_refused:
            raise AlgorithmProblem(f"{algorithm} makes its networks itself; leave out model")
        if model is None:
            raise AlgorithmProblem(
                f"{algorithm} has no separate model settings ({name!r} was given): "
                f"{config.model_refused}"
            )
        if reason := model.refused.get(name):
            raise AlgorithmProblem(f"{algorithm} cannot have the model setting {name!r}: {reason}")
        if name not in known:
            raise AlgorithmProblem(
                f"{algorithm} has no model setting {name!r}{suggestion(name, known)}"
            )
    if model is not None:
        set_values(model, given, algorithm, "model setting")


def first_line(error: Exception) -> str:
    """Returns the reason, without what follows in lines of its own."""
    return str(error).partition("\n")[0]
