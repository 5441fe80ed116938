"""The algorithms a policy server can train, by name, and the check of what a user sets.

A new algorithm is one more `AlgorithmEntry` in `ALGORITHMS`.
"""

from __future__ import annotations

import dataclasses
import difflib
import inspect
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from gymnasium import spaces
from ray.rllib.algorithms.algorithm_config import AlgorithmConfig
from ray.rllib.algorithms.ppo.ppo import PPOConfig
from ray.rllib.core.rl_module.default_model_config import DefaultModelConfig

from servers.algorithms.a2c import A2CConfig
from servers.algorithms.qmix.config import QMIXConfig
from servers.algorithms.qmix.team import TEAM_KEYS, TeamProblem, check_member_spaces

WhileLearning = Literal["wait", "serve"]

# What a user may set beside the arguments of the config's `training()`.
_MORE_SETTINGS = frozenset(
    {
        "count_steps_by",
        "log_gradients",
        "metrics_num_episodes_for_smoothing",
        "min_sample_timesteps_per_iteration",
        "min_time_s_per_iteration",
        "min_train_timesteps_per_iteration",
        "rollout_fragment_length",
    }
)
# Arguments of `training()` that are not settings: RLlib's old API, or code.
_NOT_SETTINGS = frozenset(
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
_PPO_ONLY = frozenset(
    {
        "clip_param",
        "kl_coeff",
        "kl_target",
        "minibatch_size",
        "num_epochs",
        "shuffle_batch_per_epoch",
        "use_critic",
        "use_kl_loss",
        "vf_clip_param",
    }
)
_NOT_QMIX = frozenset(
    {
        "count_steps_by",
        "grad_clip_by",
        "minibatch_size",
        "num_epochs",
        "rollout_fragment_length",
        "shuffle_batch_per_epoch",
        "train_batch_size",
        "train_batch_size_per_learner",
    }
)


class AlgorithmProblem(ValueError):
    """An algorithm cannot be had as asked for. The sentence says what to change in the config."""


@dataclass(frozen=True)
class AlgorithmEntry:
    """One algorithm a server can train.

    Attributes:
        name: as users write it.
        config_class: RLlib config of the algorithm.
        is_on_policy: whether it learns from its newest samples only.
        needs_teams: whether its agents must be grouped into teams (see `TeamSpec`).
        default_while_learning: whether simulations wait for an update (on-policy), or are served
            by the old weights meanwhile.
        summary: one line for lists.
        preset: settings that make the name out of the config class; a user cannot change them.
        not_settings: further settings of the config class that have no meaning here.
    """

    name: str
    config_class: type[AlgorithmConfig]
    is_on_policy: bool
    needs_teams: bool
    default_while_learning: WhileLearning
    summary: str
    preset: Mapping[str, Any] = field(default_factory=dict)
    not_settings: frozenset[str] = frozenset()

    def settings(self) -> dict[str, Any]:
        """Every setting a user may give, with its default."""
        config = self.config_class()
        names = set(_MORE_SETTINGS)
        for cls in self.config_class.__mro__:
            training = vars(cls).get("training")
            if training is not None:
                parameters = inspect.signature(training).parameters.values()
                names |= {p.name for p in parameters if p.kind is p.KEYWORD_ONLY}
        names -= _NOT_SETTINGS | self.not_settings | set(self.preset)
        return {name: getattr(config, name) for name in sorted(names)}

    def model_settings(self) -> dict[str, Any]:
        """Every model setting a user may give, with its default; none if `settings` has them."""
        return {} if self.needs_teams else dataclasses.asdict(_default_model())

    def make_config(
        self, settings: Mapping[str, Any], model: Mapping[str, Any] | None = None
    ) -> AlgorithmConfig:
        """The RLlib config for a user's settings, everything else at its default.

        Args:
            settings: training settings, see `settings`.
            model: for PPO and A2C fields of RLlib's `DefaultModelConfig`; the default is two
                tanh layers of 64, not shared between policy and value.

        Raises:
            AlgorithmProblem: an unknown name, one that is not the user's to set, or a value that
                is not one. RLlib's own checks of values follow when the algorithm is built.
        """
        config = self.config_class()
        known = self.settings()
        for name, value in settings.items():
            if name not in known:
                raise AlgorithmProblem(self._refuse_setting(name, known, config))
            _check_kind(f"{self.name}'s setting {name!r}", value, known[name])
        for name, value in {**settings, **self.preset}.items():
            setattr(config, name, value)
        if self.needs_teams:
            if model:
                name = next(iter(model))
                raise AlgorithmProblem(
                    f"{self.name} has no separate model settings ({name!r} was given): its "
                    "networks are set by agent, hidden_dim, mixing_embed_dim and hypernet_embed "
                    "among its settings"
                )
            return config
        defaults = self.model_settings()
        for name, value in (model or {}).items():
            if name not in defaults:
                raise AlgorithmProblem(
                    f"{self.name} has no model setting {name!r}{_did_you_mean(name, defaults)}"
                )
            _check_kind(f"{self.name}'s model setting {name!r}", value, defaults[name])
        return config.rl_module(
            model_config=dataclasses.replace(_default_model(), **dict(model or {}))
        )

    def check_spaces(
        self,
        policy_id: str,
        observation_space: spaces.Space,
        action_space: spaces.Space,
        agent_id: str | None = None,
    ) -> None:
        """Whether this algorithm can learn in these spaces.

        Args:
            policy_id: named in the message.
            observation_space: of one agent; for an algorithm that needs teams of one member, or
                of the team itself.
            action_space: likewise.
            agent_id: named in the message, if given.

        Raises:
            AlgorithmProblem: with the reason and a way out.
        """
        who = repr(agent_id) if agent_id is not None else f"of policy {policy_id!r}"
        if self.needs_teams:
            if isinstance(observation_space, spaces.Dict) and set(observation_space.spaces) == set(
                TEAM_KEYS
            ):
                return
            try:
                check_member_spaces(agent_id or "?", observation_space, action_space)
            except TeamProblem:
                pass
            else:
                return
            if isinstance(action_space, spaces.Discrete) and action_space.start == 0:
                raise AlgorithmProblem(
                    f"policy {policy_id!r}: {self.name} cannot read the observation space "
                    f"{observation_space} of agent {who}: it takes a one-dimensional Box; flatten "
                    "the observation first"
                )
            raise AlgorithmProblem(
                f"policy {policy_id!r}: {self.name} cannot do the action space {action_space} of "
                f"agent {who}: it learns one value per discrete action, counted from 0; use PPO "
                "or A2C"
            )
        if not isinstance(observation_space, spaces.Box) or len(observation_space.shape) not in (
            1,
            3,
        ):
            raise AlgorithmProblem(
                f"policy {policy_id!r}: {self.name} cannot read the observation space "
                f"{observation_space} of agent {who}: it takes a Box of one dimension, or of "
                "three for an image; flatten the observation, or one-hot it, first"
            )
        if isinstance(action_space, spaces.Box) and len(action_space.shape) == 1:
            return
        if not isinstance(action_space, (spaces.Discrete, spaces.MultiDiscrete)):
            raise AlgorithmProblem(
                f"policy {policy_id!r}: {self.name} cannot do the action space {action_space} of "
                f"agent {who}: it takes Discrete, MultiDiscrete, or a Box of one dimension"
            )

    def _refuse_setting(self, name: str, known: Mapping[str, Any], config: AlgorithmConfig) -> str:
        if name in self.preset:
            return (
                f"{self.name} is {self.config_class.__name__} with "
                f"{name}={self.preset[name]!r}; to set {name!r} yourself use "
                f"{self.config_class.__name__.removesuffix('Config')}"
            )
        is_private = name.startswith("_")
        if not is_private and name in self.not_settings:
            return f"{self.name} makes no use of {name!r}; remove it"
        if not is_private and hasattr(config, name):
            return (
                f"{name!r} is not a setting of {self.name} for a user to give: muxrl sets it "
                "itself, or it has no effect on a policy server; remove it"
            )
        return f"{self.name} has no setting {name!r}{_did_you_mean(name, known)}"


def _default_model() -> DefaultModelConfig:
    # vf_share_layers: RLlib's PPO says False, but any DefaultModelConfig overrides that by True.
    return DefaultModelConfig(
        fcnet_hiddens=[64, 64], fcnet_activation="tanh", vf_share_layers=False
    )


def _did_you_mean(name: str, known: Collection[str]) -> str:
    by_lower = {k.lower(): k for k in known}
    close = difflib.get_close_matches(name.lower(), by_lower, n=3, cutoff=0.5)
    if not close:
        return f"; known: {', '.join(sorted(known))}"
    return f" (did you mean {' or '.join(repr(by_lower[c]) for c in close)}?)"


def _check_kind(what: str, value: Any, default: Any) -> None:
    """Refuse what would fail much later, such as YAML's ``1e-3``, which is a string there."""
    is_number = isinstance(default, (int, float)) and not isinstance(default, bool)
    if isinstance(default, bool) and not isinstance(value, bool):
        raise AlgorithmProblem(f"{what} must be true or false, not {value!r}")
    if is_number and isinstance(value, (str, bool)):
        hint = "; in YAML write 1.0e-3, not 1e-3" if _is_float(value) else ""
        raise AlgorithmProblem(f"{what} must be a number, not {value!r}{hint}")


def _is_float(value: Any) -> bool:
    try:
        float(value)
    except ValueError:
        return False
    return isinstance(value, str)


def _team_entry(name: str, mixer: str | None, summary: str) -> AlgorithmEntry:
    return AlgorithmEntry(
        name=name,
        config_class=QMIXConfig,
        is_on_policy=False,
        needs_teams=True,
        default_while_learning="serve",
        summary=summary,
        preset={} if mixer is None else {"mixer": mixer},
        not_settings=_NOT_QMIX,
    )


ALGORITHMS: tuple[AlgorithmEntry, ...] = (
    AlgorithmEntry(
        name="PPO",
        config_class=PPOConfig,
        is_on_policy=True,
        needs_teams=False,
        default_while_learning="wait",
        summary="proximal policy optimisation, RLlib's (Schulman et al. 2017)",
    ),
    AlgorithmEntry(
        name="A2C",
        config_class=A2CConfig,
        is_on_policy=True,
        needs_teams=False,
        default_while_learning="wait",
        summary="synchronous advantage actor-critic (Mnih et al. 2016)",
        not_settings=_PPO_ONLY,
    ),
    _team_entry("QMIX", None, "monotonic value mixing for teams (Rashid et al. 2018)"),
    _team_entry("VDN", "vdn", "sum of values for teams (Sunehag et al. 2017)"),
    _team_entry("IQL", "none", "independent Q-learning on the team's reward (Tan 1993)"),
)


def get_algorithm(name: str) -> AlgorithmEntry:
    """The entry of that name, in upper or lower case.

    Raises:
        AlgorithmProblem: no such algorithm; the message suggests one.
    """
    for entry in ALGORITHMS:
        if entry.name.lower() == name.lower():
            return entry
    known = [entry.name for entry in ALGORITHMS]
    close = difflib.get_close_matches(name.upper(), known, n=1, cutoff=0.5)
    hint = f" (did you mean {close[0]!r}?)" if close else ""
    raise AlgorithmProblem(f"unknown algorithm {name!r}{hint}; known: {', '.join(known)}")
