"""What a user may set, and the refusals: an unknown name, a value of the wrong kind."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from muxrl.protocol.suggestions import did_you_mean

# What a user may set beside the arguments of the config's `training()`.
COMMON_SETTINGS = frozenset(
    {
        "min_sample_timesteps_per_iteration",
        "min_time_s_per_iteration",
        "min_train_timesteps_per_iteration",
        "rollout_fragment_length",
    }
)
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
    """An algorithm cannot be had as asked for. The sentence says what to change in the config."""


def suggestion(name: str, known: Collection[str]) -> str:
    """Returns what `name` may have been meant to be, or all that it could have been."""
    return did_you_mean(name, known, most=3) or f"; known: {', '.join(sorted(known))}"


def check_kind(what: str, value: Any, default: Any) -> None:
    """Refuses what would fail much later, such as YAML's ``1e-3``, which is a string there."""
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


def _is_float(value: Any) -> bool:
    try:
        float(value)
    except ValueError:
        return False
    return isinstance(value, str)
