"""What is known of one algorithm before it runs: settings, networks, spaces; and how it is fed.

Everything that a user may have got wrong is refused here, by name and with a suggestion, before
any process starts. Which algorithms there are is in `registry`.
"""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
from gymnasium import spaces
from ray.rllib.algorithms.algorithm_config import AlgorithmConfig
from ray.rllib.core.rl_module.default_model_config import DefaultModelConfig
from ray.rllib.core.rl_module.rl_module import RLModule, RLModuleSpec

from muxrl.servers.algorithms.settings import (
    COMMON_SETTINGS,
    NOT_SETTINGS,
    AlgorithmProblem,
    check_kind,
    suggestion,
)
from muxrl.servers.algorithms.user_module import load_module_class
from muxrl.servers.teams import TEAM_KEYS, TeamProblem, check_member_spaces

WhileLearning = Literal["wait", "serve"]
LearnsFrom = Literal["newest", "recent", "replay"]

ReadValue = Callable[[str, Any, Any], Any]
"""Reads a setting: from what it is in words, its value and its default to what RLlib is given."""


@dataclass(frozen=True)
class AlgorithmEntry:
    """One algorithm a server can train.

    Attributes:
        name: as users write it.
        config_class: RLlib config of the algorithm.
        learns_from: ``newest``: samples of the very weights that are updated, whole batches of
            them (PPO, A2C); ``recent``: whole batches too, but it corrects for weights that are
            some versions old (IMPALA, APPO); ``replay``: whatever it has kept (DQN, SAC, QMIX).
        summary: one line for lists.
        needs_teams: whether its agents must be grouped into teams (see `TeamSpec`).
        is_central: whether each agent is recorded with the state that its critic sees (MAPPO).
        masked_module: RLModule for agents whose observation has an action mask, which it is given
            apart; None: the mask is flattened with the observation, or it is a team's.
        action_spaces: what it can act in; for an algorithm without teams.
        instead: names of algorithms that can do other action spaces; "": there are none.
        can_act_unbounded: whether its actions reach beyond -1..1.
        samples_actions: whether it has a policy to draw actions from; else it takes the best by
            value, and chance is exploration only.
        preset: settings that make the name out of the config class; a user cannot change them.
        defaults: settings whose default here is not RLlib's.
        not_settings: further settings of the config class that have no meaning here.
        readers: by setting, for values that a look at the default's type cannot check.
        model_defaults: network settings whose default here is not RLlib's.
        not_model_settings: network settings that the algorithm cannot do, with the reason.
    """

    name: str
    config_class: type[AlgorithmConfig]
    learns_from: LearnsFrom
    summary: str
    needs_teams: bool = False
    is_central: bool = False
    masked_module: type[RLModule] | None = None
    action_spaces: tuple[type[spaces.Space], ...] = (
        spaces.Discrete,
        spaces.MultiDiscrete,
        spaces.Box,
    )
    instead: str = ""
    can_act_unbounded: bool = True
    samples_actions: bool = True
    preset: Mapping[str, Any] = field(default_factory=dict)
    defaults: Mapping[str, Any] = field(default_factory=dict)
    not_settings: frozenset[str] = frozenset()
    readers: Mapping[str, ReadValue] = field(default_factory=dict)
    model_defaults: Mapping[str, Any] = field(default_factory=dict)
    not_model_settings: Mapping[str, str] = field(default_factory=dict)

    @property
    def is_on_policy(self) -> bool:
        """Whether stale samples bias it, so that simulations had better wait for an update."""
        return self.learns_from == "newest"

    @property
    def default_while_learning(self) -> WhileLearning:
        """Whether simulations wait for an update, or are served by the old weights meanwhile."""
        return "wait" if self.is_on_policy else "serve"

    @property
    def takes_whole_batches(self) -> bool:
        """Whether `sample()` gives a whole train batch at once, else a fragment for the replay."""
        return self.learns_from != "replay"

    @property
    def needs_log_probabilities(self) -> bool:
        """Whether the learner wants what the policy thought of its actions recorded with them."""
        return self.learns_from != "replay"

    @property
    def fills_replay_by_agent(self) -> bool:
        """Whether RLlib's replay buffer for several agents takes its episodes."""
        return self.learns_from == "replay" and not self.needs_teams

    @property
    def follows_masks(self) -> bool:
        """Whether the networks of agents alone are given action masks apart."""
        return self.masked_module is not None

    # --- settings -----------------------------------------------------------------------

    def settings(self) -> dict[str, Any]:
        """Every setting a user may give, with its default."""
        config = self._default_config()
        names = set(COMMON_SETTINGS)
        for cls in self.config_class.__mro__:
            training = vars(cls).get("training")
            if training is not None:
                parameters = inspect.signature(training).parameters.values()
                names |= {p.name for p in parameters if p.kind is p.KEYWORD_ONLY}
        names -= NOT_SETTINGS | self.not_settings | set(self.preset)
        return {
            name: getattr(config, name)
            for name in sorted(names)
            if not name.startswith("_") and hasattr(config, name)
        }

    def model_settings(self) -> dict[str, Any]:
        """Every model setting a user may give, with its default; none if `settings` has them."""
        if self.needs_teams:
            return {}
        fields = dataclasses.asdict(self._default_model())
        return {name: v for name, v in fields.items() if name not in self.not_model_settings}

    def make_config(
        self,
        settings: Mapping[str, Any],
        model: Mapping[str, Any] | None = None,
        rl_module: str = "",
    ) -> AlgorithmConfig:
        """The RLlib config for a user's settings, everything else at its default.

        Args:
            settings: training settings, see `settings`.
            model: fields of RLlib's `DefaultModelConfig`, see `model_settings`; with `rl_module`
                whatever that class reads from its `model_config`.
            rl_module: import path "package.module:Class" of the user's own RLModule; "": RLlib's
                default for the algorithm.

        Raises:
            AlgorithmProblem: an unknown name, one that is not the user's to set, or a value that
                is not one. RLlib's own checks of values follow when the algorithm is built.
        """
        config = self._default_config()
        known = self.settings()
        for name, value in settings.items():
            if name not in known:
                raise AlgorithmProblem(self._refuse_setting(name, known, config))
            what = f"{self.name}'s setting {name!r}"
            if name in self.readers:
                value = self.readers[name](what, value, known[name])
            else:
                check_kind(what, value, known[name])
            setattr(config, name, value)
        for name, value in self.preset.items():
            setattr(config, name, value)
        if self.needs_teams:
            self._refuse_networks_of_a_team(model, rl_module)
            return config
        if rl_module and self.is_central:
            raise AlgorithmProblem(
                f"{self.name} cannot take an RLModule of your own ({rl_module!r} was given): its "
                "critic sees the state, apart from what its actor sees; leave out rl_module"
            )
        if rl_module:
            module_class = load_module_class(rl_module, self.name, config)
            return config.rl_module(
                rl_module_spec=RLModuleSpec(
                    module_class=module_class, model_config=dict(model or {})
                )
            )
        defaults = self.model_settings()
        for name, value in (model or {}).items():
            if name in self.not_model_settings:
                raise AlgorithmProblem(
                    f"{self.name} cannot have the model setting {name!r}: "
                    f"{self.not_model_settings[name]}"
                )
            if name not in defaults:
                raise AlgorithmProblem(
                    f"{self.name} has no model setting {name!r}{suggestion(name, defaults)}"
                )
            check_kind(f"{self.name}'s model setting {name!r}", value, defaults[name])
        return config.rl_module(
            model_config=dataclasses.replace(self._default_model(), **dict(model or {}))
        )

    def _default_config(self) -> AlgorithmConfig:
        config = self.config_class()
        for name, value in self.defaults.items():
            setattr(config, name, value)
        return config

    def _default_model(self) -> DefaultModelConfig:
        # vf_share_layers: RLlib's PPO says False, but a DefaultModelConfig overrides that by True.
        defaults = {
            "fcnet_hiddens": [64, 64],
            "fcnet_activation": "tanh",
            "vf_share_layers": False,
            **self.model_defaults,
        }
        return DefaultModelConfig(**defaults)

    def _refuse_networks_of_a_team(self, model: Mapping[str, Any] | None, rl_module: str) -> None:
        if rl_module:
            raise AlgorithmProblem(
                f"{self.name} cannot take an RLModule of your own ({rl_module!r} was given): its "
                "mixer and its members' networks belong together; leave out rl_module"
            )
        if model:
            name = next(iter(model))
            raise AlgorithmProblem(
                f"{self.name} has no separate model settings ({name!r} was given): its "
                "networks are set by agent, hidden_dim, mixing_embed_dim and hypernet_embed "
                "among its settings"
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
        return f"{self.name} has no setting {name!r}{suggestion(name, known)}"

    # --- spaces -------------------------------------------------------------------------

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
            self._check_team_spaces(policy_id, observation_space, action_space, agent_id, who)
            return
        if not isinstance(observation_space, spaces.Box) or len(observation_space.shape) not in (
            1,
            3,
        ):
            raise AlgorithmProblem(
                f"policy {policy_id!r}: {self.name} cannot read the observation space "
                f"{observation_space} of agent {who}: it takes a Box of one dimension, or of "
                "three for an image; flatten the observation, or one-hot it, first"
            )
        if self.is_central and len(observation_space.shape) != 1:
            raise AlgorithmProblem(
                f"policy {policy_id!r}: {self.name} cannot read the observation space "
                f"{observation_space} of agent {who}: its critic reads observations as one flat "
                "array, so it takes a Box of one dimension; flatten the observation first"
            )
        if not isinstance(action_space, self.action_spaces) or (
            isinstance(action_space, spaces.Box) and len(action_space.shape) != 1
        ):
            raise AlgorithmProblem(
                f"policy {policy_id!r}: {self.name} cannot do the action space {action_space} of "
                f"agent {who}: it takes {self._taken_action_spaces()}"
                + ("" if self.instead == "" else f"; use {self.instead}")
            )
        if isinstance(action_space, spaces.Box):
            self._check_box_actions(policy_id, action_space, who)

    def _check_box_actions(self, policy_id: str, box: spaces.Box, who: str) -> None:
        """Policies act in -1..1, which is scaled to the bounds; without bounds it is the action."""
        if not np.issubdtype(box.dtype, np.floating):
            raise AlgorithmProblem(
                f"policy {policy_id!r}: {self.name} cannot do the action space {box} of agent "
                f"{who}: a Box of {box.dtype} holds no real numbers; make it Discrete or "
                "MultiDiscrete"
            )
        is_unbounded = not (box.bounded_below.any() or box.bounded_above.any())
        if box.is_bounded("both") or (is_unbounded and self.can_act_unbounded):
            return
        raise AlgorithmProblem(
            f"policy {policy_id!r}: {self.name} cannot do the action space {box} of agent {who}: "
            + ("it has bounds on some sides only" if not is_unbounded else "it has no bounds")
            + ", and actions are scaled to them from -1..1; give every action a lowest and a "
            "highest value"
        )

    def _taken_action_spaces(self) -> str:
        names = [
            "a Box of one dimension" if cls is spaces.Box else cls.__name__
            for cls in self.action_spaces
        ]
        return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} or {names[-1]}"

    def _check_team_spaces(
        self,
        policy_id: str,
        observation_space: spaces.Space,
        action_space: spaces.Space,
        agent_id: str | None,
        who: str,
    ) -> None:
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
