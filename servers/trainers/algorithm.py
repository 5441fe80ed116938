"""The algorithm that a config names: how it learns, what it needs, and what is wrong with it.

`muxrl.servers.lookup` finds it. Behind it is a trainer's class, an RLlib config, or a policy that
does not learn; callers need not know which.
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
"""Most algorithms to name in a refusal: so many that the fitting one is not in "and 3 more"."""


class Algorithm(ABC):
    """One algorithm that a server can have; subclasses override what applies to them."""

    learns: ClassVar[bool] = True

    if TYPE_CHECKING:  # a dataclass would take a property for the default of its field

        @property
        def name(self) -> str:
            """The algorithm's name, as users write it."""

        @property
        def summary(self) -> str:
            """One line that describes it in lists."""

        @property
        def seating(self) -> Seating:
            """Which agents share a seat, and what they observe."""

        @property
        def learns_from(self) -> str:
            """See `Trainer.learns_from`; "-": it does not learn."""

        @property
        def gives_log_probs(self) -> bool:
            """Whether it records the log-probabilities of the actions that it learns from."""

        @property
        def samples_actions(self) -> bool:
            """Whether its policy is a distribution to draw actions from; else it takes one action,
            of the highest value or from the actor, and only exploration is random."""

        @property
        def space_check(self) -> SpaceCheck | None:
            """Checks which spaces it can learn in; None: unknown."""

    @property
    def acts_while_learning(self) -> bool:
        """Whether copies of its trainers act while it learns."""
        return True

    def find_while_learning(self, given: WhileLearning) -> WhileLearning:
        """Returns whether simulations wait for an update.

        By default they wait if the algorithm is on-policy, as stale samples would bias it.

        Args:
            given: what the config says.
        """
        waits = self.learns_from == "newest" if given == "auto" else given == "wait"
        return "wait" if waits or not self.acts_while_learning else "serve"

    @property
    def asks_for_state(self) -> bool:
        """Whether the simulation is asked for its global state."""
        return self.seating.is_joint

    @property
    def has_weights(self) -> bool:
        """Whether its weights can be loaded by another server with this algorithm."""
        return self.learns

    def configured(self, config: ServerConfig | ServerPlan) -> Algorithm:
        """Returns the algorithm as a server configures it.

        Args:
            config: of the server.

        Raises:
            AlgorithmProblem: it cannot be made with these settings.
        """
        return self

    # --- settings -----------------------------------------------------------------------

    @abstractmethod
    def settings(self) -> dict[str, Any]:
        """Returns every setting that a user may give and that has a default, with its default."""

    def kinds(self) -> dict[str, Any]:
        """Returns the types of its declared settings, by name; see `read_as`."""
        return {}

    def meanings(self) -> Mapping[str, str]:
        """Returns the descriptions of its declared settings, by name."""
        return {}

    def model_settings(self) -> dict[str, Any]:
        """Returns every network setting that a user may give, with its default."""
        return {}

    def complete_settings(self, config: ServerConfig) -> dict[str, Any]:
        """Returns the settings for the server's plan: by default those that the user gave."""
        return dict(config.settings)

    @abstractmethod
    def find_config_problems(self, config: ServerConfig) -> Iterator[str]:
        """Yields a sentence for each entry of the config that makes no sense for the algorithm."""

    # --- agents -------------------------------------------------------------------------

    @abstractmethod
    def find_problems(self, plan: ServerPlan, others: Sequence[Algorithm] = ()) -> Iterator[str]:
        """Yields a sentence for each reason why it cannot act, or learn, for a plan's agents.

        Args:
            plan: the server, with the agents.
            others: algorithms to suggest instead, if they can learn for the agent.
        """

    def _find_agent_problems(self, plan: ServerPlan, others: Sequence[Algorithm]) -> Iterator[str]:
        """Yields a sentence for each kind of agent that the algorithm cannot learn for."""
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
        """Returns the other algorithms, first those that are most like this one: with or without
        a state, for teams or agents, and learning from the same kind of data."""

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
        """Returns the kinds of action that it can learn: any, discrete, or continuous; "" if
        unknown."""
        if self.space_check is None:
            return ""
        seen = Box((4,))
        discrete, continuous = (
            self.takes("", AgentPlan("", seen, space))
            for space in (Discrete(2), Box((1,), "float32", -1.0, 1.0))
        )
        return "any" if discrete and continuous else "discrete" if discrete else "continuous"

    def memory(self) -> str:
        """Returns the kind of recurrent network that it can have, "" for none."""
        if "use_lstm" in self.model_settings():
            return "LSTM"
        return str(self.settings().get("agent", "")).upper() if self.kinds() else ""

    def check_agent(self, agent_id: str, agent: AgentPlan) -> None:
        """Checks that the algorithm can learn in an agent's spaces.

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
        """Whether the members of a team learn differently than they would alone."""
        return True

    # --- the budget ---------------------------------------------------------------------

    def values(self, plan: ServerPlan) -> Mapping[str, Any]:
        """Returns the values that its declared settings have in a plan, by name."""
        return {}

    def find_milestones(self, plan: ServerPlan) -> Iterator[Milestone]:
        """Yields the events that have to happen for it to learn, with how much has to be played
        before each."""
        yield from ()

    def find_schedules(self, plan: ServerPlan) -> Iterator[Schedule]:
        """Yields the settings that are schedules over env steps."""
        yield from ()

    def find_batch_env_steps(self, plan: ServerPlan) -> int | None:
        """Returns the env steps between two updates, if a declared setting says so; else None."""
        return None

    def find_replay_size(self, plan: ServerPlan) -> ReplaySize | None:
        """Returns the size of its replay once it is full; None: it has none, or it is unknown."""
        return None
