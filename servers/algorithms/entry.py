"""What an algorithm is to a server: its settings, networks and spaces, its seats, and its feed.

Each algorithm has an entry; `registry` lists them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal

import numpy as np
from ray.rllib.algorithms.algorithm_config import AlgorithmConfig

from muxrl.protocol.messages import PolicyNetwork
from muxrl.protocol.spaces import (
    MAX_CHOICES,
    Box,
    Discrete,
    MultiBinary,
    MultiDiscrete,
    Space,
    parts_of,
    typed_bounds,
)
from muxrl.protocol.suggestions import listed
from muxrl.servers.agents.action_forms import MAX_COMBINATIONS
from muxrl.servers.agents.seating import Seating
from muxrl.servers.agents.seats import Seat
from muxrl.servers.agents.spaces import module_observation_space
from muxrl.servers.algorithms.milestones import FIRST_UPDATE, Milestone, Schedule, find_schedules
from muxrl.servers.algorithms.networks import Networks
from muxrl.servers.algorithms.replay_size import ReplaySize
from muxrl.servers.algorithms.settings import TrainingSettings, find_minibatch_problem
from muxrl.servers.config import AgentPlan, ServerConfig, ServerPlan
from muxrl.servers.export.graph import PolicyGraph
from muxrl.servers.gymnasium_spaces import to_gymnasium
from muxrl.servers.rllib.numpy_mlp import mlp_network
from muxrl.servers.setting_values import AlgorithmProblem

LearnsFrom = Literal["newest", "recent", "replay"]
SpaceProblem = tuple[Literal["observation", "action"], str]
"""Which of two spaces an algorithm cannot learn in, and the reason."""

SpaceCheck = Callable[[Space, Space], SpaceProblem | None]
"""From an observation space, as a network reads it, and an action space to what is wrong."""

_MAX_NAMED = 14
"""Algorithms that a refusal names, so that the fitting one is not behind "and 3 more"."""

_OF_PARTS = (
    "; make integers one MultiDiscrete, or numbers one Box; of both, make all integers, with 5 to "
    "11 values a number, or all numbers, and round. If the parts are of several agents, as in "
    "RLlib's with_agent_groups, have the environment name each agent by itself, and put them "
    "together in the server's 'groups'"
)


def integers_need_bounds(space: Space) -> str:
    """Returns what makes choices of an action's integers, as the end of a refusal; "": nothing."""
    if not isinstance(space, Box) or np.dtype(space.dtype).kind not in "iu":
        return ""
    return "; integers with bounds are choices: give the Box its own, or the server action_bounds"


@dataclass(frozen=True)
class AgentSpaces:
    """A `SpaceCheck` of one agent's spaces.

    Attributes:
        actions: the kinds of action space that the algorithm takes.
        can_act_unbounded: whether its actions reach beyond -1..1.
        reads_images: whether a network reads observations of three dimensions.
    """

    actions: tuple[type[Space], ...] = (Discrete, MultiDiscrete, MultiBinary, Box)
    can_act_unbounded: bool = True
    reads_images: bool = True

    def __call__(self, observation_space: Space, action_space: Space) -> SpaceProblem | None:
        if not isinstance(observation_space, Box):
            return "observation", "it takes a Box; flatten the observation, or one-hot it, first"
        if len(observation_space.shape) == 3 and not self.reads_images:
            return "observation", (
                "its critic reads observations as one flat array, so it takes a Box of one "
                "dimension; flatten the observation first"
            )
        box = action_space if isinstance(action_space, Box) else None
        if not isinstance(action_space, self.actions) or (box is not None and len(box.shape) != 1):
            more = ""
            if parts_of(action_space) is not None:
                more = _OF_PARTS
            elif isinstance(action_space, MultiDiscrete) and Discrete in self.actions:
                more = f", or up to {MAX_COMBINATIONS} combinations as one"
            else:
                more = integers_need_bounds(action_space)
            return "action", f"it takes {self._actions_text()}{more}"
        problem = None if box is None else self._box_problem(box)
        return None if problem is None else ("action", problem)

    def _box_problem(self, box: Box) -> str | None:
        """Policies act in -1..1, which is scaled to the bounds; without bounds it is the action."""
        if np.dtype(box.dtype).kind != "f":
            return (
                f"integers are chosen one by one, out of at most {MAX_CHOICES} each; give the Box "
                "bounds (or the server action_bounds), or make it a Box of float32"
            )
        has_end = np.isfinite(typed_bounds(box))
        is_unbounded = not has_end.any()
        if has_end.all() or (is_unbounded and self.can_act_unbounded):
            return None
        return (
            ("it has no bounds" if is_unbounded else "it has bounds on some sides only")
            + ", and actions are scaled to them from -1..1; give every action a lowest and a "
            "highest value, or the server action_bounds: [lowest, highest]"
        )

    def _actions_text(self) -> str:
        names = ["a Box of one dimension" if cls is Box else cls.__name__ for cls in self.actions]
        return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} or {names[-1]}"


@dataclass(frozen=True)
class AlgorithmEntry:
    """One algorithm that a server can train.

    Attributes:
        name: as users write it.
        summary: one line for lists.
        learns_from: ``newest``: whole batches, sampled with the very weights that are updated
            (PPO, A2C, MAPPO, HAPPO); ``recent``: whole batches too, corrected for weights that are
            some versions old (IMPALA, APPO); ``replay``: a replay buffer (DQN, SAC, QMIX).
        training: what a user may set of its RLlib config.
        networks: what a user may set of its networks.
        seating: how a server's agents become RLlib's.
        space_check: the spaces that it can learn in.
        samples_actions: whether its policy is a distribution to draw actions from; else it takes
            one action, that of the highest value or the actor's, and only exploration is random.
        graph: what of a policy goes into a file; see `muxrl export`.
        acting_network: what of an RLModule acts, as plain arrays for clients that do so in the
            server's place; it returns None for a module of which that is not known.
        milestones: what has to happen for it to learn from a replay; see `find_milestones`.
        replay_size: what its replay takes once it is full, for the seats of a server; None: it has
            none, or nobody has said.
        joins_members: whether with such a config the members of a team learn otherwise than alone.
        tell_seats: tells its config what it has to know of a server's seats beside policies and
            spaces; None: nothing.
    """

    name: str
    summary: str
    learns_from: LearnsFrom
    training: TrainingSettings
    networks: Networks = field(default_factory=Networks)
    seating: Seating = field(default_factory=Seating)
    space_check: SpaceCheck = field(default_factory=AgentSpaces)
    samples_actions: bool = True
    graph: type[PolicyGraph] = PolicyGraph
    acting_network: Callable[[Any], PolicyNetwork | None] = mlp_network
    milestones: Callable[[AlgorithmConfig], Iterator[Milestone]] = lambda _: iter(())
    replay_size: Callable[[AlgorithmConfig, Mapping[str, Seat]], ReplaySize] | None = None
    joins_members: Callable[[AlgorithmConfig], bool] = lambda _: True
    tell_seats: Callable[[AlgorithmConfig, Mapping[str, Seat]], None] | None = None

    learns: ClassVar[bool] = True

    # --- the config ---------------------------------------------------------------------

    def settings(self) -> dict[str, Any]:
        """Every training setting that a user may give, with its default."""
        return self.training.known()

    def model_settings(self) -> dict[str, Any]:
        """Every network setting that a user may give, with its default."""
        return self.networks.settings()

    def make_config(
        self,
        settings: Mapping[str, Any],
        model: Mapping[str, Any] | None = None,
        rl_module: str = "",
        *,
        has_masks: bool = False,
    ) -> AlgorithmConfig:
        """Returns the RLlib config for a user's settings, everything else at its default.

        Args:
            settings: training settings, see `settings`.
            model: network settings, see `model_settings`; with `rl_module` whatever that class
                reads from its `model_config`.
            rl_module: import path "package.module:Class" of the user's own RLModule; "": the
                algorithm's default.
            has_masks: whether observations have an action mask apart; see `Seating`.

        Raises:
            AlgorithmProblem: an unknown name, one that is not the user's to set, or a value of the
                wrong kind. RLlib checks values further when the algorithm is built.
        """
        config = self.training.make_config(self.name, settings, self.model_settings())
        self.networks.configure(config, self.name, model or {}, rl_module, has_masks=has_masks)
        return config

    def complete_settings(self, config: ServerConfig) -> dict[str, Any]:
        """Returns the settings for the server's plan: those that the user gave."""
        return dict(config.settings)

    def find_config_problems(self, config: ServerConfig) -> Iterator[str]:
        """Yields a sentence for what is wrong with the config's settings."""
        try:
            self.make_config(config.settings, config.model, config.rl_module)
        except ValueError as error:
            yield from str(error).splitlines()

    # --- the agents ---------------------------------------------------------------------

    def find_problems(
        self, plan: ServerPlan, others: Sequence[AlgorithmEntry] = ()
    ) -> Iterator[str]:
        """Yields a sentence for each kind of agent that it cannot learn for.

        Args:
            plan: with these agents.
            others: those of them that can are named.
        """
        seen: set[str] = set()
        for agent_id, agent in plan.agents.items():
            look = repr((agent.policy_id, agent.observation_space, agent.action_space))
            if look in seen:
                continue
            seen.add(look)
            if problem := self.seating.find_mask_problem(agent_id, agent):
                yield problem
            try:
                self._check_agent(agent_id, agent)
            except (ValueError, TypeError) as error:
                able = [one.name for one in self._nearest(others) if one.takes(agent_id, agent)]
                yield f"{error}{f'; use {listed(able, _MAX_NAMED)}' if able else ''}"
        try:
            config = self.make_config(plan.settings, plan.model, plan.rl_module)
        except ValueError:
            return  # of which `find_config_problems` tells
        num_agents = Counter(agent.policy_id for agent in plan.agents.values())
        if plan.agents and (
            problem := find_minibatch_problem(self.name, config, max(num_agents.values()))
        ):
            yield problem

    def _nearest(self, others: Sequence[AlgorithmEntry]) -> list[AlgorithmEntry]:
        """Returns the others, first those that learn for the same units and from the same data."""

        def kind(entry: AlgorithmEntry) -> tuple[bool, bool, LearnsFrom]:
            return entry.seating.is_joint, entry.seating.forms_teams, entry.learns_from

        own = kind(self)
        return sorted(others, key=lambda one: [a != b for a, b in zip(kind(one), own, strict=True)])

    def takes(self, agent_id: str, agent: AgentPlan) -> bool:
        """Whether it can learn in the agent's spaces."""
        try:
            self._check_agent(agent_id, agent)
        except (ValueError, TypeError):
            return False
        return self.seating.find_mask_problem(agent_id, agent) is None

    def takes_actions(self) -> str:
        """Returns the kinds of action that it learns, in a word: any, discrete, or continuous."""
        seen = Box((4,))
        discrete, continuous = (
            self.takes("", AgentPlan("", seen, space))
            for space in (Discrete(2), Box((1,), "float32", -1.0, 1.0))
        )
        return "any" if discrete and continuous else "discrete" if discrete else "continuous"

    def memory(self) -> str:
        """Returns the kind of recurrent network that it may have, "" for none."""
        return (
            "LSTM"
            if "use_lstm" in self.model_settings()
            else str(self.settings().get("agent", "")).upper()
        )

    def _check_agent(self, agent_id: str, agent: AgentPlan) -> None:
        observed = module_observation_space(self.seating.network_space(agent))
        action_space = self.seating.action_form(agent).space
        self.check_spaces(agent.policy_id, observed, action_space, agent_id, agent.action_space)

    def check_spaces(
        self,
        policy_id: str,
        observation_space: Space,
        action_space: Space,
        agent_id: str | None = None,
        given: Space | None = None,
    ) -> None:
        """Checks that it can learn in these spaces.

        Args:
            policy_id: named in the message.
            observation_space: of one agent, as its network reads it.
            action_space: likewise.
            agent_id: named in the message, if given.
            given: the action space as the simulation has it, for the message.

        Raises:
            AlgorithmProblem: it cannot; with the reason and what to do instead.
        """
        problem = self.space_check(observation_space, action_space)
        if problem is None:
            return
        kind, reason = problem
        verb, space = ("read", observation_space) if kind == "observation" else ("do", action_space)
        shown = str(to_gymnasium(space))  # with its bounds
        own = shown if given is None else str(to_gymnasium(given))
        if kind == "action" and own != shown:
            shown = f"{own}, which is {shown} to it,"
        who = repr(agent_id) if agent_id is not None else f"of policy {policy_id!r}"
        raise AlgorithmProblem(
            f"policy {policy_id!r}: {self.name} cannot {verb} the {kind} space {shown} of agent "
            f"{who}: {reason}"
        )

    # --- the feed -----------------------------------------------------------------------

    @property
    def default_while_learning(self) -> Literal["wait", "serve"]:
        """Whether simulations wait for an update: stale samples would bias an on-policy one."""
        return "wait" if self.learns_from == "newest" else "serve"

    @property
    def needs_log_probabilities(self) -> bool:
        """Whether the learner reads the log-probabilities of the actions taken."""
        return self.learns_from != "replay"

    @property
    def corrects_off_policy(self) -> bool:
        """Whether the learner corrects for the probabilities with which actions were chosen."""
        return self.learns_from == "recent"

    @property
    def fills_replay_by_agent(self) -> bool:
        """Whether RLlib's replay buffer for several agents takes its episodes."""
        return self.learns_from == "replay" and not self.seating.forms_teams

    def batch_env_steps(self, config: AlgorithmConfig) -> int:
        """Returns how many recorded env steps make one batch for `sample()`.

        Without a replay it is the whole train batch, so that all of it is from the same weights;
        with one it is the smallest fragment that the config asks for.
        """
        if self.learns_from == "replay":
            return int(config.get_rollout_fragment_length())
        return config.total_train_batch_size

    # --- the budget ---------------------------------------------------------------------

    def find_milestones(self, config: AlgorithmConfig) -> Iterator[Milestone]:
        """Yields what has to happen for it to learn, with what has to be played before."""
        if self.learns_from != "replay":
            num = self.batch_env_steps(config)
            yield Milestone(FIRST_UPDATE, ("train_batch_size_per_learner",), env_steps=num)
        yield from self.milestones(config)

    def find_schedules(self, config: AlgorithmConfig) -> Iterator[Schedule]:
        """Yields the settings that are schedules over env steps."""
        yield from find_schedules(config, list(self.settings()))
