"""What a user may set of an algorithm's training; unknown names and wrong kinds are refused."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from muxrl.servers.algorithms.brought_settings import where_it_went
from muxrl.servers.setting_values import (
    AlgorithmProblem,
    read_as,
    suggestion,
    training_arguments,
)

if TYPE_CHECKING:
    from ray.rllib.algorithms.algorithm_config import AlgorithmConfig

    from muxrl.servers.algorithms.declared_settings import DeclaredSettings

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


@dataclass(frozen=True)
class TrainingSettings:
    """What a user may set: what the config's class declares.

    Attributes:
        config_class: RLlib config of the algorithm.
        preset: settings that make a variant out of the config class; a user cannot change them.
        unused: settings of the config class that have no meaning here.
    """

    config_class: type[DeclaredSettings]
    preset: Mapping[str, Any] = field(default_factory=dict)
    unused: frozenset[str] = frozenset()

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
        known, readers, declared = self.known(), config.readers(), config.declared()
        unknown = [name for name in given if name not in known]
        if unknown:
            refusals = (self._refusal(algorithm, name, known, model, config) for name in unknown)
            raise AlgorithmProblem("\n".join(refusals))
        for name, value in given.items():
            what = f"{algorithm}'s setting {name!r}"
            value = read_as(what, value, declared[name])
            if name in readers:
                value = readers[name](what, value, known[name])
            setattr(config, name, value)
            try:
                config.validate_setting(name)
            except (TypeError, ValueError) as error:  # of RLlib's, the first line is the reason
                reason = str(error).partition("\n")[0]
                raise AlgorithmProblem(f"{algorithm}: {reason}") from None
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
        unused = self.unused | training_arguments(type(config)).keys() - NOT_SETTINGS
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
