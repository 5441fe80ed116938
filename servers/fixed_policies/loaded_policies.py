"""The policies of a checkpoint as functions, without a server: what `muxrl.load_policy` returns."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from muxrl.protocol.rows import pick
from muxrl.protocol.spaces import Discrete
from muxrl.protocol.suggestions import listed
from muxrl.protocol.values import conform
from muxrl.servers.agents.keys import STATE
from muxrl.servers.agents.masks import observed_parts
from muxrl.servers.agents.seats import Seat
from muxrl.servers.agents.spaces import split_state
from muxrl.servers.alone import Alone, Look
from muxrl.servers.checkpoints.checkpoint import Checkpoint
from muxrl.servers.config import ServerPlan
from muxrl.servers.fixed_names import FIXED_NAMES, FROZEN
from muxrl.servers.fixed_policies.frozen import Critics, FrozenPolicies, open_policies, plan_of
from muxrl.servers.fixed_policies.pool import share_of
from muxrl.servers.setting_values import AlgorithmProblem
from muxrl.servers.trainers.entry import OWN, asked_of, drawn_observation
from muxrl.servers.trainers.lookup import find_trainer, registered


class NoFunction(AlgorithmProblem):
    """A server's policies cannot be given as functions of a single agent's observations.

    Args:
        reason: why.
        agents: the server's agents.
    """

    def __init__(self, reason: str, agents: Sequence[str]) -> None:
        super().__init__(reason)
        self.agents = agents


@dataclasses.dataclass
class _Saved:
    """A checkpoint's policies for a server's agents; its critics are loaded when needed."""

    policies: FrozenPolicies
    plan: ServerPlan
    inference: Any

    @functools.cached_property
    def critics(self) -> Critics:
        """See `FrozenPolicies.load_critics`."""
        return self.policies.load_critics(self.plan)


class LoadedPolicy:
    """The greedy policy of one agent, with the memory of one episode.

    Args:
        agent_id: the agent.
        saved: the policies of its checkpoint.
        seat: the agent's own, or its team's. The agent acts in it alone, without the others'
            observations.
    """

    def __init__(self, agent_id: str, saved: _Saved, seat: Seat) -> None:
        self._agent_id = agent_id
        self._saved = saved
        self._action_space = saved.plan.agents[agent_id].action_space
        self._seat = seat
        self._inference = saved.inference
        self._episode = Alone(saved.plan.agents, {seat.seat_id: seat})

    @property
    def server_id(self) -> str:
        """The server that had this policy."""
        return self._saved.plan.server_id

    def reset(self) -> None:
        """Begins an episode: forgets recurrent state, last action and frames."""
        self._episode.begin()

    @property
    def remembers(self) -> bool:
        """Whether an action may depend on more than the observation: recurrent state, frames."""
        policy_id = self._seat.policy_id
        if self._seat.frame_stack > 1:
            return True
        if hasattr(self._inference.acting(policy_id), "initial_state"):
            return bool(self._inference.initial_state(policy_id))
        drawn = asked_of([self._seat], [drawn_observation(self._seat)], self._saved.plan.agents)
        with self._inference.lock:
            return self._inference.answer(drawn).states is not None

    def __call__(self, observation: Any, is_asked: bool = True) -> Any:
        """Returns the action for an observation, both in the simulation's form.

        In a team with a GRU, call this with `is_asked` False and any observation when other members
        of the team act and this agent does not; it returns None then.

        Raises:
            Mismatch: the observation does not fit the agent's space.
            ValueMismatch: the observation's action mask forbids every action.
        """
        if not is_asked:
            if self._seat.is_team:
                self._episode.act(self._inference, self._episode.look({}, seat=self._seat))
            return None
        return self._episode.act(self._inference, self._look(observation))[self._agent_id]

    def reads(self, observation: Any) -> tuple[str, Any]:
        """Returns the policy's id, and its network's input for an observation.

        Raises:
            Mismatch, ValueMismatch: as for a call.
        """
        return self._seat.policy_id, pick(self._look(observation).block.observations[0], (0, 0))

    def probabilities(self, observation: Any) -> NDArray[np.float64]:
        """Returns how likely training drew each Discrete action here, ``[n]``; does not act.

        Raises:
            AlgorithmProblem: the policy draws no Discrete actions.
            Mismatch, ValueMismatch: as for a call.
        """
        found = None
        if isinstance(self._action_space, Discrete):
            found = self._inference.query("probabilities", self._look(observation).asked())
        if found is not None:
            return found
        raise AlgorithmProblem(
            f"the policy of agent {self._agent_id!r} gives no probabilities of its actions, "
            f"{self._action_space}; policies of {_able('probabilities')} do, if actions are "
            "Discrete, and policies of your own trainer with a method probabilities(rows)"
        )

    def value(self, observation: Any, state: Any = None) -> float:
        """Returns the return that the critic expects from here on; does not act.

        The return is discounted as in training, and in units of the rewards that were learned from:
        shaped, but not divided by their deviation.

        Args:
            observation: in the simulation's form.
            state: what a central critic reads besides: the simulation's global state, or, if it
                sends none, the observations of the other members of the team that act now, by
                agent.

        Raises:
            AlgorithmProblem: there is no critic, or it reads a state that is not given.
            Mismatch, ValueMismatch: as for a call.
        """
        found = self._value(observation, state)
        if found is None:
            raise AlgorithmProblem(
                f"no critic can value the observations of agent {self._agent_id!r}; critics of "
                f"{_able('value')} can (of off-policy ones, if actions are Discrete), and your own "
                "trainer with a method value(rows)"
            )
        policies, policy_id = self._saved.policies, self._seat.policy_id
        return float(found) * policies.reward_deviation(self._saved.plan, policy_id)

    def _value(self, observation: Any, state: Any) -> Any:
        if self._seat.is_team:
            return None  # its critic values a team's actions
        critics = self._saved.critics
        seat = critics.seats[self._agent_id]
        parts = observed_parts(seat.observation_space)
        others = self._others(parts[STATE].shape, state) if STATE in parts else {}
        seen = self._conforming({self._agent_id: observation, **others})
        before = self._episode.states(self._seat)
        trainer = critics.actors.learners[seat.policy_id]
        if before is not None and getattr(trainer, "critic_remembers", False):
            raise AlgorithmProblem(
                f"the critic of agent {self._agent_id!r} is recurrent, and acting does not update "
                "its memory, so it can value only the first step of an episode"
            )
        given = None if isinstance(state, Mapping) else state
        return critics.actors.query("value", self._episode.look(seen, given, seat).asked())

    def _others(self, shape: tuple[int, ...], state: Any) -> Mapping[str, Any]:
        """Returns the other agents' observations that a central critic reads, if it does.

        Raises:
            AlgorithmProblem: `state` is not what the critic reads.
        """
        plan = self._saved.plan
        agent, observed = plan.agents[self._agent_id], isinstance(state, Mapping)
        view = plan.agents if agent.group is None else plan.groups[agent.group]
        others = [other for other in view if other != self._agent_id]
        if self._saved.policies.state_size is not None:
            wanted, is_right = f"the global state, of shape {shape}", np.shape(state) == shape
        elif not others or split_state(agent.observation_space)[1] is not None:
            return {}
        else:
            wanted = f"the observations of {', '.join(others)}, if they act, as a dict, unstacked"
            is_right = observed and state.keys() <= set(others)
            is_right = is_right and self._seat.frame_stack == 1
        if not is_right:
            got = "nothing" if state is None else f"{type(state).__name__} of {np.shape(state)}"
            raise AlgorithmProblem(
                f"the critic of agent {self._agent_id!r} also reads {wanted}: pass this to "
                f"value(observation, state) as the state; got {got}"
            )
        return state if observed else {}

    def _conforming(self, observations: Mapping[str, Any]) -> dict[str, Any]:
        agents = self._saved.plan.agents
        return {a: conform(agents[a].observation_space, seen) for a, seen in observations.items()}

    def _look(self, observation: Any) -> Look:
        return self._episode.look(self._conforming({self._agent_id: observation}))


class MeanPolicy:
    """The mean of several policies of one agent: in each episode one is drawn, with equal odds.

    An opponent of the mean gets the mean of its results against each policy. So the mean is worth
    as much as the single policy that weighs each of them by how likely its own actions lead to a
    state (Kuhn 1953; Heinrich et al. 2015, "Fictitious Self-Play in Extensive-Form Games";
    OpenSpiel's `PolicyAggregator`). `ExactGame.table` computes that policy; it differs from the
    mean of the probabilities. Agents of one server that begin equally many episodes draw policies
    of the same moment.

    Args:
        members: the policies.
        seed: of the draws.
    """

    def __init__(self, members: Sequence[LoadedPolicy], seed: int = 0) -> None:
        self.members = tuple(members)
        self._seed, self._num_episodes = seed, 0
        self.reset()

    def reset(self) -> None:
        """Begins an episode: draws the policy that acts in it, and resets that policy."""
        episode = f"{self.members[-1].server_id}/{self._num_episodes}"
        self._num_episodes += 1
        self.drawn = self.members[int(share_of(self._seed, episode) * len(self.members))]
        self.drawn.reset()

    def __call__(self, observation: Any, is_asked: bool = True) -> Any:
        """Returns the action of the drawn policy; see `LoadedPolicy.__call__`."""
        return self.drawn(observation, is_asked)

    def probabilities(self, observation: Any) -> NDArray[np.float64]:
        """Returns the probabilities of the drawn policy; see `LoadedPolicy.probabilities`."""
        return self.drawn.probabilities(observation)

    def value(self, observation: Any, state: Any = None) -> float:
        """Returns the value of the drawn policy; see `LoadedPolicy.value`."""
        return self.drawn.value(observation, state)


def _able(method: str) -> str:
    """Returns the names of muxrl's own trainers that have a method, for a refusal."""
    own = (find_trainer(name) for name, path in registered().items() if path.startswith(OWN))
    able = [one.name for one in own if one and hasattr(one.make, method)]
    return listed(able, len(able))


def load_checkpoint(path: Path) -> dict[str, LoadedPolicy]:
    """Returns the policy of each agent in a server's checkpoint, also of a FROZEN server's.

    RLlib's counts in a checkpoint are a pickle, whose code runs: load only what you trust.

    Raises:
        NoFunction: the policies act for a whole team at once, or have no network.
        AlgorithmProblem: the checkpoint cannot be read.
    """
    checkpoint = Checkpoint.open(path)
    plan = plan_of(checkpoint.about)
    if plan.algorithm == FROZEN:
        return load_policies(plan, **checkpoint.about["settings"])
    if plan.algorithm in FIXED_NAMES:
        raise NoFunction(
            f"server {plan.server_id!r} is {plan.algorithm}, whose policies are no functions of an "
            "agent's observation; policies that have learned are, and FROZEN ones",
            list(plan.agents),
        )
    return _policies_of(checkpoint, plan, {})


def load_policies(
    plan: ServerPlan, checkpoint: str, policies: Mapping[str, str], **_: Any
) -> dict[str, LoadedPolicy]:
    """Returns policies for a server's agents, as a FROZEN server with these settings has them.

    Raises:
        NoFunction: the policies cannot be loaded, or act for a whole team at once.
    """
    try:
        return _policies_of(Checkpoint.open(Path(checkpoint)), plan, policies)
    except AlgorithmProblem as problem:
        raise NoFunction(f"server {plan.server_id!r}: {problem}", list(plan.agents)) from problem


def _policies_of(
    checkpoint: Checkpoint, plan: ServerPlan, names: Mapping[str, str]
) -> dict[str, LoadedPolicy]:
    policies = open_policies(checkpoint, names)
    # A member acts alone here, and what a mixer or critic reads does not matter.
    alone = dataclasses.replace(plan, late_members="allow", state_size=None)
    saved = _Saved(policies, plan, policies.make_inference(alone))
    seats = policies.make_seats(alone, policies.observing(alone))
    teams = {seat.policy_id for seat in seats.values() if len(seat.agents) > 1}
    if any(not hasattr(saved.inference.acting(policy_id), "network") for policy_id in teams):
        raise NoFunction(
            f"{checkpoint.algorithm} acts for a whole team at once, so there are no policies of "
            "single agents; a FROZEN server can act for the team",
            list(plan.agents),
        )
    seat_of = {member: seat for seat in seats.values() for member in seat.members}
    seat_of |= {agent_id: seat for agent_id, seat in seats.items() if agent_id in plan.agents}
    return {a: LoadedPolicy(a, saved, seat_of[a]) for a in plan.agents}
