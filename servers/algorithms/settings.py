"""What a user may set of an algorithm's training; unknown names and wrong kinds are refused."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from muxrl.protocol.suggestions import did_you_mean
from muxrl.servers.algorithms.brought_settings import where_it_went

if TYPE_CHECKING:
    from ray.rllib.algorithms.algorithm_config import AlgorithmConfig

    from muxrl.servers.algorithms.declared_settings import DeclaredSettings

ReadValue = Callable[[str, Any, Any], Any]
"""From a setting's name for messages, the value given and the default to the value for RLlib."""

# Arguments of `training()` that are not settings: RLlib's old API, or code.
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


class AlgorithmProblem(ValueError):
    """This algorithm cannot be built with these settings. The sentence says what to change."""


@dataclass(frozen=True)
class TrainingSettings:
    """What a user may set: what the config's class declares.

    Attributes:
        config_class: RLlib config of the algorithm.
        preset: settings that make a variant out of the config class; a user cannot change them.
        unused: settings of the config class that have no meaning here.
        former_defaults: settings whose default was another before checkpoints noted all defaults;
            what was begun with them goes on with them.
    """

    config_class: type[DeclaredSettings]
    preset: Mapping[str, Any] = field(default_factory=dict)
    unused: frozenset[str] = frozenset()
    former_defaults: Mapping[str, Any] = field(default_factory=dict)

    def known(self) -> dict[str, Any]:
        """Every setting that a user may give, with its default."""
        config = self.config_class()
        names = config.declared().keys() - self.unused - self.preset.keys()
        return {name: getattr(config, name) for name in sorted(names)}

    def make_config(
        self, algorithm: str, given: Mapping[str, Any], model: Collection[str] = ()
    ) -> AlgorithmConfig:
        """Returns the config with what was given, everything else at its default.

        Args:
            algorithm: named in messages.
            given: the settings.
            model: names of network settings, where a brought setting may belong.

        Raises:
            AlgorithmProblem: as for `AlgorithmEntry.make_config`; one line for each unknown name.
        """
        config = self.config_class()
        known, readers = self.known(), config.readers()
        unknown = [name for name in given if name not in known]
        if unknown:
            refusals = (self._refusal(algorithm, name, known, model, config) for name in unknown)
            raise AlgorithmProblem("\n".join(refusals))
        for name, value in given.items():
            what = f"{algorithm}'s setting {name!r}"
            if name in readers:
                value = readers[name](what, value, known[name])
            else:
                check_kind(what, value, known[name])
            setattr(config, name, value)
        for name, value in self.preset.items():
            setattr(config, name, value)
        return config

    def _refusal(
        self,
        algorithm: str,
        name: str,
        known: Mapping[str, Any],
        model: Collection[str],
        config: DeclaredSettings,
    ) -> str:
        if name in self.preset:
            return (
                f"{algorithm} is {self.config_class.__name__} with "
                f"{name}={self.preset[name]!r}; to set {name!r} yourself use "
                f"{self.config_class.__name__.removesuffix('Config')}"
            )
        if place := where_it_went(name, known, model):
            return f"{algorithm} has no setting {name!r}{place}"
        is_private = name.startswith("_")
        unused = self.unused | config.rllib_arguments() - NOT_SETTINGS
        if not is_private and name in unused:
            return f"{algorithm} makes no use of {name!r}; remove it"
        if not is_private and hasattr(config, name):
            return (
                f"{name!r} is not a setting of {algorithm} for a user to give: muxrl sets it "
                "itself, or it has no effect on a policy server; remove it"
            )
        return f"{algorithm} has no setting {name!r}{suggestion(name, known)}"


def find_minibatch_problem(algorithm: str, config: AlgorithmConfig, num_agents: int) -> str | None:
    """Returns what is wrong with a minibatch that no batch can fill.

    Args:
        algorithm: named in the message.
        config: its config.
        num_agents: how many share the policy that most do.
    """
    minibatch, batch = config.minibatch_size, config.total_train_batch_size
    most = batch * num_agents
    if minibatch is None or minibatch <= most:
        return None
    return (
        f"{algorithm}'s setting 'minibatch_size' is {minibatch}, but a policy has {most} "
        f"transitions in a batch at most: {batch} env steps ('train_batch_size_per_learner') of "
        f"{num_agents} agent{'s' * (num_agents > 1)}; set 'minibatch_size' to {most} at most"
    )


def suggestion(name: str, known: Collection[str]) -> str:
    """Returns the end of a refusal: known names like `name`, or all of them if none is."""
    return did_you_mean(name, known, most=3) or f"; known: {', '.join(sorted(known))}"


def check_kind(what: str, value: Any, default: Any) -> None:
    """Refuses values that would fail much later, such as YAML's ``1e-3``, which is a string there.

    Raises:
        AlgorithmProblem: `value` is not of the kind of `default`; it begins with `what`.
    """
    is_number = isinstance(default, (int, float)) and not isinstance(default, bool)
    if isinstance(default, bool) and not isinstance(value, bool):
        raise AlgorithmProblem(f"{what} must be true or false, not {value!r}")
    if is_number and isinstance(value, (str, bool)):
        hint = "; in YAML write 1.0e-3, not 1e-3" if _is_float(value) else ""
        raise AlgorithmProblem(f"{what} must be a number, not {value!r}{hint}")
    if isinstance(default, Mapping) and not isinstance(value, Mapping):
        raise AlgorithmProblem(f"{what} must be a mapping of settings, not {value!r}")


def read_count(what: str, value: Any, default: Any) -> int:
    """Returns a whole number above 0.

    Raises:
        AlgorithmProblem: it is something else.
    """
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise AlgorithmProblem(f"{what} must be a whole number from 1 on, not {value!r}")
    return value


def read_share(what: str, value: Any, default: Any) -> float:
    """Returns a number from 0 to 1.

    Raises:
        AlgorithmProblem: it is something else.
    """
    check_kind(what, value, default)
    if not isinstance(value, int | float) or not 0.0 <= value <= 1.0:
        raise AlgorithmProblem(f"{what} must be a number from 0 to 1, not {value!r}")
    return float(value)


def read_limit(what: str, value: Any, default: Any) -> float | None:
    """Returns a number above 0, or None for no limit.

    Raises:
        AlgorithmProblem: it is something else.
    """
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not value > 0.0:
        raise AlgorithmProblem(f"{what} must be a number above 0, or null, not {value!r}")
    return float(value)


def _is_float(value: Any) -> bool:
    try:
        float(value)
    except ValueError:
        return False
    return isinstance(value, str)
