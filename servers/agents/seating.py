"""How a server's agents are seated: who acts and learns as one, and what policies read.

An algorithm declares a `Seating`. The simplest is `Seating()`, with a seat and an observation for
each agent. The config asks it which agents can share a policy, the server asks it for its seats.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal

from muxrl.protocol.spaces import Box, DictSpace, Discrete, Space
from muxrl.servers.agents.action_forms import ActionForm, action_form
from muxrl.servers.agents.inputs import Alive, LastAction, Mask, Own, State
from muxrl.servers.agents.keys import ACTION_MASK, STATE
from muxrl.servers.agents.observing import Observing, Reader
from muxrl.servers.agents.parts import Input
from muxrl.servers.agents.seat_actions import OwnAction, SeatActions, TeamActions, TeamChoices
from muxrl.servers.agents.seats import Member, RewardRule, Seat
from muxrl.servers.agents.spaces import flat_size, split_mask, split_state, without_bounds
from muxrl.servers.config import AgentPlan, ServerPlan


@dataclass(frozen=True)
class PolicySignature:
    """What a network sees of a team, or of an agent without a team.

    Attributes:
        key: units with equal keys can share a policy. It leaves out bounds of observations, which
            make no difference to a network.
        text: the same in words, for messages.
    """

    key: object
    text: str


@dataclass(frozen=True)
class Seating:
    """What makes a seat, and what its policy reads and does.

    Attributes:
        unit: what becomes one seat with one policy: an agent, or a team, which is a group or an
            agent in no group. Teams are alike if they have equally many members, and pad
            observations and actions to the same sizes.
        inputs: what policies read. Without `Mask`, an action mask is flattened with the rest of
            the observation.
        actions: what policies do.
        reward: the reward of agents in a group: their own, or their team's. A team's is recorded
            at every step of the team, even for members that do not act or have departed.
        is_joint: whether the algorithm uses groups, and a global state that agents observe, which
            is then taken out of their own observations.
        shares_policies: whether agents that look alike to a network may share one.
        one_choice: whether several choices become one, with a value for each combination.
        is_scaled: whether policies choose real numbers in -1..1 if the bounds are known.
        asks_apart: whether each policy is asked separately; else agents are asked in their order.
        read_if: inputs that actors read only with a setting that is on: key, "settings" or
            "model" in a checkpoint's note, and the name of the setting.
    """

    unit: Literal["agent", "team"] = "agent"
    inputs: tuple[type[Input], ...] = (Own,)
    actions: type[SeatActions] = OwnAction
    reward: Literal["own", "team"] = "own"
    is_joint: bool = False
    shares_policies: bool = True
    one_choice: bool = False
    is_scaled: bool = True
    asks_apart: bool = True
    read_if: tuple[tuple[str, str, str], ...] = ()

    @property
    def forms_teams(self) -> bool:
        """Whether a group is one seat with one policy."""
        return self.unit == "team"

    @property
    def needs_groups(self) -> bool:
        """Whether agents in no group each learn alone. HAPPO's do: each has a policy, and only the
        policies of a group are updated one after another."""
        return self.forms_teams or (self.is_joint and not self.shares_policies)

    @property
    def follows_masks(self) -> bool:
        """Whether an action mask is taken out of the observation."""
        return Mask in self.inputs

    @property
    def reads_no_others(self) -> bool:
        """Whether policies act on, and learn from, a single agent's observations alone."""
        return not self.forms_teams and set(self.inputs) <= {Own, Mask}

    @property
    def _shares_state(self) -> bool:
        """Whether agents in a group see a common state."""
        return self.is_joint and State in self.inputs

    def complete_groups(
        self, groups: Mapping[str, tuple[str, ...]], agents: list[str]
    ) -> dict[str, tuple[str, ...]]:
        """Returns a user's groups, and a group of one for each agent outside of them, if needed."""
        if not self.forms_teams:
            return dict(groups)
        members = {member for group in groups.values() for member in group}
        alone = [a for a in agents if a not in members and a not in groups]
        return {**groups, **{agent: (agent,) for agent in alone}}

    def with_groups(self, plan: ServerPlan) -> ServerPlan:
        """Returns a plan whose groups are complete, and if they are units have a policy each."""
        groups = self.complete_groups(plan.groups, list(plan.agents))
        group_of = {member: group for group, members in groups.items() for member in members}
        agents = {a: replace(agent, group=group_of.get(a)) for a, agent in plan.agents.items()}
        for members in groups.values() if self.forms_teams else ():
            policy_id = agents[members[0]].policy_id
            agents |= {a: replace(agents[a], policy_id=policy_id) for a in members}
        return replace(plan, groups=groups, agents=agents)

    # --- what networks see --------------------------------------------------------------

    def signature(self, unit: str, plan: ServerPlan) -> PolicySignature:
        """Returns what a network sees of a unit: a team if `forms_teams`, else an agent.

        Args:
            unit: a group or an agent.
            plan: has all agents, but need not have policies.
        """
        if self.forms_teams:
            return self._team_signature(plan.groups[unit], plan)
        agent = plan.agents[unit]
        bounds = ""
        if isinstance(agent.action_space, Box):
            bounds = f" in {agent.action_space.low}..{agent.action_space.high}"
        key = repr((without_bounds(agent.observation_space), agent.action_space))
        text = f"observes {agent.observation_space}, acts {agent.action_space}{bounds}"
        if not self._shares_state:
            return PolicySignature(key, text)
        view = _view_of(agent, plan)
        state_size = state_sizes(plan, view)[view[0]]
        if state_size is None:
            state_size = sum(flat_size(self.own_space(plan.agents[a])) for a in view)
        text += f", {len(view)} in view, a state of {state_size}"
        return PolicySignature((key, len(view), state_size), text)

    def _team_signature(self, members: tuple[str, ...], plan: ServerPlan) -> PolicySignature:
        assert issubclass(self.actions, TeamActions)
        agents = [plan.agents[member] for member in members]
        obs_size = max(flat_size(self.own_space(agent)) for agent in agents)
        forms = {m: self.action_form(plan.agents[m]) for m in members}
        actions, actions_text = self.actions.signature(forms)
        state_size = state_sizes(plan, members)[members[0]]
        text = (
            f"{len(members)} member{'s' if len(members) > 1 else ''}, "
            f"observations of {obs_size}, {actions_text}"
        )
        if plan.state_size is None and state_size:  # the members observe it
            text += f", {state_text(state_size)}"
        if state_size is None:
            state_size = len(members) * obs_size
        has_masks = any(split_mask(self._without_state(agent))[1] for agent in agents)
        if has_masks and not self.actions.reads_masks:
            text += ", with action masks"
        has_masks |= self.actions.reads_masks
        return PolicySignature((len(members), obs_size, actions, state_size, has_masks), text)

    def _without_state(self, agent: AgentPlan) -> Space:
        space = agent.observation_space
        return split_state(space)[0] if self.is_joint else space

    def own_space(self, agent: AgentPlan) -> Space:
        """Returns the space of an agent's own observation, without parts read elsewhere."""
        space = self._without_state(agent)
        return split_mask(space)[0] if self.follows_masks else space

    def network_space(self, agent: AgentPlan) -> Space:
        """Returns the part of an agent's observation space that its network flattens."""
        own = self.own_space(agent)
        return Box((flat_size(own),)) if self.forms_teams else own

    def action_form(self, agent: AgentPlan) -> ActionForm:
        """Returns how an agent's actions become actions of its network."""
        form = action_form(agent.action_space, as_one_choice=self.one_choice)
        return form if self.is_scaled else replace(form, is_scaled=False)

    def find_mask_problem(self, agent_id: str, agent: AgentPlan) -> str | None:
        """Returns why an agent's mask does not fit its actions; None: it fits."""
        space = self._without_state(agent)
        if not self.follows_masks or not split_mask(space)[1]:
            return None
        assert isinstance(space, DictSpace)
        mask, actions = space.spaces[ACTION_MASK], agent.action_space
        num_actions = sum(action_form(actions).choices)
        if num_actions and flat_size(mask) == num_actions and not isinstance(mask, Discrete):
            return None
        expected = (
            f"{num_actions} numbers" if num_actions else "no mask for actions without choices"
        )
        return (
            f"agent {agent_id!r} observes the action mask {mask}, but acts {actions}; a mask has "
            "one number for each action (of several choices, one choice after another): expected "
            f"{expected}"
        )

    def unread(self, about: Mapping[str, Any]) -> frozenset[str]:
        """Returns the parts of an observation that no actor reads, given its checkpoint's note."""
        off = {key for key, where, name in self.read_if if about and not about[where].get(name)}
        return frozenset({STATE, *off})

    def find_problems(self, plan: ServerPlan) -> Iterator[str]:
        """Yields a sentence for each reason why the agents cannot learn together."""
        if not self._shares_state:
            return
        views = dict(plan.groups)
        if any(agent.group is None for agent in plan.agents.values()) and not self.forms_teams:
            views["(all agents)"] = tuple(plan.agents)
        for group, members in views.items():
            sizes, first = state_sizes(plan, members), members[0]
            other = next((m for m in members if sizes[m] != sizes[first]), None)
            if other is not None:
                yield (
                    f"group {group!r}: agent {first!r} observes {state_text(sizes[first])}, agent "
                    f"{other!r} {state_text(sizes[other])}; a team has one state, so give all "
                    "members the same 'state', or set use_global_state: false"
                )

    # --- seats --------------------------------------------------------------------------

    def make_seats(self, plan: ServerPlan, observing: Observing | None = None) -> dict[str, Seat]:
        """Returns a server's seats by id: one for each team, and one for each other agent.

        Args:
            plan: the server.
            observing: reads observations; None: as the plan says.
        """
        observing = observing or Observing(plan)
        in_teams = [member for group in plan.groups.values() for member in group]
        seated = in_teams if self.forms_teams else list(plan.agents)
        members = {agent_id: self.member(agent_id, plan, observing) for agent_id in seated}
        if not self.forms_teams:
            return {a: self._seat(a, (a,), members, plan, observing) for a in members}
        alone = {a: agent for a, agent in plan.agents.items() if a not in in_teams}
        seats = {
            g: self._seat(g, ours, members, plan, observing) for g, ours in plan.groups.items()
        }
        as_agents = replace(self, unit="agent", inputs=(Own,), actions=OwnAction, is_joint=False)
        return seats | as_agents.make_seats(replace(plan, agents=alone), observing)

    def member(self, agent_id: str, plan: ServerPlan, observing: Observing) -> Member:
        """Returns how one agent is read and written, in any seat."""
        agent = plan.agents[agent_id]
        sent, form = agent.observation_space, self.action_form(agent)
        if Own not in self.inputs:
            return Member(agent_id, sent, form, lambda value: value)
        own, state, read_state = self.own_space(agent), None, None
        if self.is_joint:
            state = split_state(sent)[1]
        if state is not None and plan.state_size is None and plan.use_global_state:
            read_state = observing.state_reader(agent_id, state)
        return Member(
            agent_id,
            observing.space(own),
            form,
            observing.reader(agent_id, own),
            observes_state=state is not None,
            is_masked=self.follows_masks and split_mask(self._without_state(agent))[1],
            read_state=read_state,
        )

    def _seat(
        self,
        unit: str,
        agent_ids: tuple[str, ...],
        members: Mapping[str, Member],
        plan: ServerPlan,
        observing: Observing,
    ) -> Seat:
        agents = tuple(members[agent_id] for agent_id in agent_ids)
        first = plan.agents[agent_ids[0]]
        own_space = agents[0].own_space
        if self.forms_teams:
            own_space = Box((len(agents), max(flat_size(one.own_space) for one in agents)))
        view: tuple[Member, ...] = ()
        if self._shares_state:
            view = tuple(members[agent_id] for agent_id in _view_of(first, plan))
        team = None if self.reward == "own" else unit if self.forms_teams else first.group
        reward: RewardRule = plan.team_reward if team else "own"
        read_state: Reader | None = None
        if State in self.inputs and plan.state_size is not None:
            read_state = observing.simulation_state_reader(plan.state_size)
        reads_as = None
        if self.reads_no_others and observing.reads_as:
            form, is_masked = agents[0].form, agents[0].is_masked
            reads_as = observing.reads_as, is_masked, form.is_one_choice, form.is_scaled
        return Seat(
            unit,
            first.policy_id if self.asks_apart else "",
            agents,
            plan.groups[team] if team else agent_ids,
            self.inputs,
            self.actions({one.agent_id: one.form for one in agents}),
            own_space,
            is_team=self.forms_teams,
            view=view,
            state_size=self._state_size(own_space, view, plan),
            read_state=read_state,
            reward=reward,
            allows_late=plan.late_members == "allow",
            frame_stack=observing.frame_stack if Own in self.inputs else 1,
            reads_as=reads_as,
        )

    def _state_size(
        self, own_space: Space, view: tuple[Member, ...], plan: ServerPlan
    ) -> int | None:
        if State not in self.inputs:
            return None
        if plan.state_size is not None or not view:
            return plan.state_size
        observed = state_sizes(plan, tuple(one.agent_id for one in view)).values()
        if found := [size for size in observed if size is not None]:
            return found[-1]
        size = flat_size(own_space)  # a team's is padded
        if not self.forms_teams:
            size = sum(flat_size(one.own_space) for one in view)
        return size + len(view) * (plan.late_members == "allow")


MASKED_AGENTS = Seating(inputs=(Own, Mask))
"""A seat for each agent, with its mask taken out."""
TEAMS = Seating(
    unit="team",
    inputs=(Own, State, Mask, Alive, LastAction),
    actions=TeamChoices,
    reward="team",
    is_joint=True,
    one_choice=True,
)
"""Teams that learn a value for each action of each member."""


def _view_of(agent: AgentPlan, plan: ServerPlan) -> tuple[str, ...]:
    """Returns the agents whose state an agent sees: its group's, or all agents of the server."""
    return tuple(plan.agents) if agent.group is None else plan.groups[agent.group]


def state_sizes(plan: ServerPlan, members: tuple[str, ...]) -> dict[str, int | None]:
    """Returns the length of the state that each member brings to a mixer or critic; None for none.

    The state is the simulation's, if it sends one, else the one that the member observes.
    """
    if not plan.use_global_state:
        return dict.fromkeys(members)
    if plan.state_size is not None:
        return dict.fromkeys(members, plan.state_size)
    states = {m: split_state(plan.agents[m].observation_space)[1] for m in members}
    return {m: None if state is None else flat_size(state) for m, state in states.items()}


def state_text(size: int | None) -> str:
    """Returns words for a state of this length, for messages."""
    return "no state" if size is None else f"a state of {size} numbers"
