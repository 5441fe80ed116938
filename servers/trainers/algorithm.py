"""What a name in a config stands for: how it learns, what it needs, and what is wrong with it.

`muxrl.servers.lookup` finds it. It is a trainer's class, an RLlib config, or does not learn; who
asks need not know which.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

from muxrl.protocol.spaces import Box, Discrete
from muxrl.protocol.suggestions import listed
from muxrl.servers.agents.seating import Seating
from muxrl.servers.agents.spaces import module_observation_space
from muxrl.servers.config import AgentPlan, ServerConfig, ServerPlan, WhileLearning
from muxrl.servers.gymnasium_spaces import to_gymnasium
from muxrl.servers.setting_values import AlgorithmProblem
from muxrl.servers.trainers.budget import Milestone, ReplaySize, Schedule
from muxrl.servers.trainers.spaces import SpaceCheck

_MAX_NAMED = 14
"""Algorithms that a refusal names, so that the fitting one is not behind "and 3 more"."""


class Algorithm(ABC):
    """One algorithm that a server can have; what a subclass leaves out, it does not need."""

    learns: ClassVar[bool] = True

    if TYPE_CHECKING:  # a dataclass would take a property for the default of its field

        @property
        def name(self) -> str:
            """As users write it."""

        @property
        def summary(self) -> str:
            """One line for lists."""

        @property
        def seating(self) -> Seating:
            """How agents are seated."""

        @property
        def learns_from(self) -> str:
            """See `Trainer.learns_from`; "-": it does not learn."""

        @property
        def gives_log_probs(self) -> bool:
            """Whether it records with which probabilities it draws the actions that it learns."""

        @property
        def samples_actions(self) -> bool:
            """Whether its policy is a distribution to draw actions from; else it takes one action,
            that of the highest value or the actor's, and only exploration is random."""

        @property
        def space_check(self) -> SpaceCheck | None:
            """The spaces that it can learn in; None: nobody has said."""

    @property
    def acts_while_learning(self) -> bool:
        """Whether it has copies that act while it learns."""
        return True

    def find_while_learning(self, given: WhileLearning) -> WhileLearning:
        """Returns whether simulations wait for an update, where a config says this.

        By default they wait for an on-policy one, which stale samples would bias.
        """
        waits = self.learns_from == "newest" if given == "auto" else given == "wait"
        return "wait" if waits or not self.acts_while_learning else "serve"

    @property
    def asks_for_state(self) -> bool:
        """Whether the simulation is asked for its global state."""
        return self.seating.is_joint

    @property
    def has_weights(self) -> bool:
        """Whether its weights may go to another one of its kind."""
        return self.learns

    def configured(self, config: ServerConfig | ServerPlan) -> Algorithm:
        """Returns it for a server.

        Args:
            config: of the server.

        Raises:
            AlgorithmProblem: it cannot be made with these settings.
        """
        return self

    # --- settings -----------------------------------------------------------------------

    @abstractmethod
    def settings(self) -> dict[str, Any]:
        """Returns every setting that a user may give and that has a default, with that."""

    def kinds(self) -> dict[str, Any]:
        """Returns the types of its settings, as far as they are declared; see `read_as`."""
        return {}

    def meanings(self) -> Mapping[str, str]:
        """Returns what each of its declared settings means."""
        return {}

    def model_settings(self) -> dict[str, Any]:
        """Returns every network setting that a user may give, with its default."""
        return {}

    def complete_settings(self, config: ServerConfig) -> dict[str, Any]:
        """Returns the settings for the server's plan: those that the user gave."""
        return dict(config.settings)

    @abstractmethod
    def find_config_problems(self, config: ServerConfig) -> Iterator[str]:
        """Yields a sentence for each entry of the config that makes no sense for it."""

    # --- agents -------------------------------------------------------------------------

    @abstractmethod
    def find_problems(self, plan: ServerPlan, others: Sequence[Algorithm] = ()) -> Iterator[str]:
        """Yields a sentence for each reason why it cannot act, or learn, for a plan's agents.

        Args:
            plan: with these agents.
            others: those of them that can are named.
        """

    def _find_agent_problems(self, plan: ServerPlan, others: Sequence[Algorithm]) -> Iterator[str]:
        """Yields a sentence for each kind of agent that it cannot learn for."""
        seen: set[str] = set()
        for agent_id, agent in plan.agents.items():
            look = repr((agent.policy_id, agent.observation_space, agent.action_space))
            if look in seen:
                continue
            seen.add(look)
            if problem := self.seating.find_mask_problem(agent_id, agent):
                yield problem
            try:
                self.check_agent(agent_id, agent)
            except (ValueError, TypeError) as error:
                able = [one.name for one in self._nearest(others) if one.takes(agent_id, agent)]
                yield f"{error}{f'; use {listed(able, _MAX_NAMED)}' if able else ''}"

    def _nearest(self, others: Sequence[Algorithm]) -> list[Algorithm]:
        """Returns the others, first those that learn for the same units and from the same data."""

        def kind(one: Algorithm) -> tuple[bool, bool, str]:
            return one.seating.is_joint, one.seating.forms_teams, one.learns_from

        own = kind(self)
        return sorted(others, key=lambda one: [a != b for a, b in zip(kind(one), own, strict=True)])

    def takes(self, agent_id: str, agent: AgentPlan) -> bool:
        """Whether it can learn in the agent's spaces."""
        try:
            self.check_agent(agent_id, agent)
        except (ValueError, TypeError):
            return False
        return self.seating.find_mask_problem(agent_id, agent) is None

    def takes_actions(self) -> str:
        """Returns the kinds of action that it learns, in a word: any, discrete, or continuous; ""
        if nobody has said."""
        if self.space_check is None:
            return ""
        seen = Box((4,))
        discrete, continuous = (
            self.takes("", AgentPlan("", seen, space))
            for space in (Discrete(2), Box((1,), "float32", -1.0, 1.0))
        )
        return "any" if discrete and continuous else "discrete" if discrete else "continuous"

    def memory(self) -> str:
        """Returns the kind of recurrent network that it may have, "" for none."""
        if "use_lstm" in self.model_settings():
            return "LSTM"
        return str(self.settings().get("agent", "")).upper() if self.kinds() else ""

    def check_agent(self, agent_id: str, agent: AgentPlan) -> None:
        """Checks that it can learn in an agent's spaces.

        Raises:
            AlgorithmProblem: it cannot; with the reason and what to do instead.
        """
        if (check := self.space_check) is None:
            return
        observed = module_observation_space(self.seating.network_space(agent))
        acts = self.seating.action_form(agent).space
        if (problem := check(observed, acts)) is None:
            return
        kind, reason = problem
        verb, space = ("read", observed) if kind == "observation" else ("do", acts)
        shown = str(to_gymnasium(space))  # with its bounds
        own = str(to_gymnasium(agent.action_space))
        if kind == "action" and own != shown:
            shown = f"{own}, which is {shown} to it,"
        raise AlgorithmProblem(
            f"policy {agent.policy_id!r}: {self.name} cannot {verb} the {kind} space {shown} of "
            f"agent {agent_id!r}: {reason}"
        )

    def learns_jointly(self, plan: ServerPlan) -> bool:
        """Whether the members of a team learn otherwise than alone."""
        return True

    # --- the budget ---------------------------------------------------------------------

    def values(self, plan: ServerPlan) -> Mapping[str, Any]:
        """Returns the values of its settings with a plan, as far as they are declared."""
        return {}

    def find_milestones(self, plan: ServerPlan) -> Iterator[Milestone]:
        """Yields what has to happen for it to learn, with what has to be played before."""
        yield from ()

    def find_schedules(self, plan: ServerPlan) -> Iterator[Schedule]:
        """Yields the settings that are schedules over env steps."""
        yield from ()

    def find_batch_env_steps(self, plan: ServerPlan) -> int | None:
        """Returns the env steps between two updates, if a declared setting says so; else None."""
        return None

    def find_replay_size(self, plan: ServerPlan) -> ReplaySize | None:
        """Returns what its replay takes once it is full; None: it has none, or nobody has said."""
        return None
