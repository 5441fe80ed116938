"""An RLlib algorithm of people's own: a subclass of `AlgorithmConfig`, by its import path."""

from __future__ import annotations

import inspect
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from ray.rllib.algorithms.algorithm_config import AlgorithmConfig

from muxrl.servers.algorithms.declared_settings import DeclaredSettings
from muxrl.servers.algorithms.entry import AlgorithmEntry
from muxrl.servers.algorithms.settings import NOT_SETTINGS, TrainingSettings
from muxrl.servers.setting_values import (
    AlgorithmProblem,
    kind_of,
    read_as,
    suggestion,
    training_arguments,
)

_ALONE = ("EpisodeReplayBuffer", "PrioritizedEpisodeReplayBuffer")
"""RLlib's replays of episodes of one agent."""


@dataclass(frozen=True)
class BroughtSettings(TrainingSettings):
    """The arguments of ``training()`` of the config's class, and of those above it.

    Attributes:
        nearest: muxrl's own config of the kind, whose types count, too: RLlib's annotations do not
            have every schedule.
    """

    config_class: Any
    nearest: type[DeclaredSettings] = DeclaredSettings

    def known(self) -> dict[str, Any]:
        config = self.config_class()
        names = sorted(training_arguments(type(config)).keys() - NOT_SETTINGS)
        return {name: getattr(config, name) for name in names if hasattr(config, name)}

    def make_config(
        self, algorithm: str, given: Mapping[str, Any], model: Collection[str] = ()
    ) -> AlgorithmConfig:
        config: AlgorithmConfig = self.config_class()
        known = self.known()
        refusals = [
            f"{algorithm} has no setting {name!r}{suggestion(name, known)}"
            for name in given
            if name not in known
        ]
        if refusals:
            raise AlgorithmProblem("\n".join(refusals))
        kinds = {n: kind_of(a, known.get(n)) for n, a in training_arguments(type(config)).items()}
        for name, kind in self.nearest.declared().items():
            kinds[name] = kind | kinds[name] if name in kinds else kind
        read = {n: read_as(f"{algorithm}'s setting {n!r}", v, kinds[n]) for n, v in given.items()}
        config = config.training(**read)
        if hasattr(config, "broadcast_interval"):  # IMPALA's and its kin's: 10 s
            config.min_time_s_per_iteration = None
        replay = getattr(config, "replay_buffer_config", None) or {}
        kind = replay.get("type")
        if kind in _ALONE:  # all of a server's episodes are of several agents to RLlib
            config.replay_buffer_config = {**replay, "type": f"MultiAgent{kind}"}
        return config


def entry_of(
    name: str, config_class: type[AlgorithmConfig], entries: Sequence[AlgorithmEntry]
) -> AlgorithmEntry:
    """Returns the entry of an RLlib config: that of the algorithm which it is a variant of.

    Args:
        name: the import path.
        config_class: found there.
        entries: of muxrl's algorithms; the one whose config is the nearest ancestor counts, or
            stands for the nearest one of RLlib's.

    Raises:
        AlgorithmProblem: it is a variant of none of them.
    """
    of_config: dict[type, AlgorithmEntry] = {}
    for entry in entries:
        own = entry.training.config_class
        rllib = next(one for one in own.__mro__ if one.__module__.startswith("ray.rllib."))
        for one in (own, rllib):
            if one.__name__ == f"{entry.name}Config":
                of_config[one] = entry
    found = next((of_config[one] for one in config_class.__mro__ if one in of_config), None)
    if found is None:
        known = dict.fromkeys(one.__name__ for one in of_config)
        raise AlgorithmProblem(
            f"algorithm {name!r} is an RLlib config of none of the kinds that a server knows how "
            f"to feed; derive it from {', '.join(known)}, or bring a trainer of your own"
        )
    if issubclass(config_class, DeclaredSettings):
        training = TrainingSettings(config_class)
    else:
        training = BroughtSettings(config_class, nearest=found.training.config_class)
    summary = (inspect.getdoc(config_class) or f"a variant of {found.name}").partition("\n")[0]
    return replace(found, name=name, summary=summary, training=training)
