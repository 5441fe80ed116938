"""Checks messages against what their server declared, before anything of them is recorded.

A step is checked as a whole, so that a refusal leaves the episode as it was, and the client can
correct the step and send the same `t` again.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping
from typing import Any

import msgspec
import numpy as np

from muxrl.protocol.errors import UnsoundValue, ValueMismatch
from muxrl.protocol.message_sizes import AgentSpaces
from muxrl.protocol.messages import MIN_LOG_PROB, EndEpisode, Step
from muxrl.protocol.spaces import Box, Discrete, Space
from muxrl.protocol.suggestions import did_you_mean
from muxrl.protocol.values import Mismatch, Unsound, check_available, conform, number, within

AgentIds = set[str] | frozenset[str]

NO_IDS: AgentIds = frozenset()
_NONE: Mapping[str, Any] = {}
Returns = Callable[[], Mapping[str, float]]
"""Returns the sum of each agent's rewards so far; called only if a reward is not small."""

MAX_RETURN = float(np.finfo(np.float32).max)
"""Largest absolute return of an agent in an episode, since learners compute in float32. Sums over
agents and episodes stay finite, too, as they are float64."""
SMALL_REWARD = 1e18
"""With smaller rewards no episode comes near `MAX_RETURN`, however many steps it has."""

_NAMED = 10
"""Most members of a group to name in a message."""


class CheckedStep(msgspec.Struct, frozen=True, gc=False):
    """A step or an end whose values are as declared; dicts and sets are by agent."""

    observations: Mapping[str, Any]
    """Observations of the agents that act next; empty at the end of an episode."""
    final_observations: Mapping[str, Any]
    logged_actions: Mapping[str, Any]
    logged_log_probs: Mapping[str, float]
    rewards: Mapping[str, float]
    late_rewards: Mapping[str, float]
    """Rewards that are credited to no action."""
    terminated: AgentIds
    """Agents that terminate now."""
    truncated: AgentIds
    """Agents that are truncated now, and have not terminated."""
    state: Any
    """The global state, float32 ``[state_size]``, if the server reads it."""


class StepCheck:
    """Checks the messages of a server's episodes, or of a gateway's.

    Attributes:
        agents, state_size: see below.
        max_reward, max_observation: the limits below, infinity if there is none.

    Args:
        agents: by id, with their spaces.
        state_size: length of the global state that the server reads; None: it reads none.
        needs_state: whether each step must have the state; else it is checked only if it comes.
        max_abs_reward: largest absolute reward of an agent in a step; None: any finite one.
        max_abs_observation: of a number in an observation or a state, likewise.
        agents_return: whether an agent that is done may observe again, as a new life.
    """

    def __init__(
        self,
        agents: Mapping[str, AgentSpaces],
        state_size: int | None,
        *,
        needs_state: bool = True,
        max_abs_reward: float | None = None,
        max_abs_observation: float | None = None,
        agents_return: bool = False,
    ) -> None:
        self.max_reward = math.inf if max_abs_reward is None else max_abs_reward
        self.max_observation = math.inf if max_abs_observation is None else max_abs_observation
        self.agents, self.state_size = agents, state_size
        self._agents_return = agents_return
        self._observation_spaces = {a: agent.observation_space for a, agent in agents.items()}
        self._action_spaces = {a: agent.action_space for a, agent in agents.items()}
        self._vectors = {
            a: (space.shape, np.dtype(space.dtype))
            for a, space in self._observation_spaces.items()
            if isinstance(space, Box) and len(space.shape) == 1 and space.dtype.startswith("float")
        }
        self._state_space: Space | None = None if state_size is None else Box((state_size,))
        self._needs_state = needs_state

    def step(self, message: Step, agents_done: AgentIds, returns: Returns) -> CheckedStep:
        """Returns the checked values of a step.

        Args:
            message: the step.
            agents_done: agents that ended at an earlier step.
            returns: returns the sums of rewards in the episode.

        Raises:
            ValueMismatch: a value does not fit its space, an agent is unknown, or an agent that is
                done observes again.
        """
        observations = self._observations(message.observations, "observation")
        # Most steps have none of the following, and simulations wait for this check.
        finals, logged, log_probs, late = _NONE, _NONE, _NONE, _NONE
        if message.final_observations:
            finals = self._observations(message.final_observations, "final observation")
        if message.logged_actions:
            logged = self._logged_actions(message.logged_actions, observations)
        if message.logged_log_probs:
            log_probs = self._log_probs(message.logged_log_probs, logged)
        rewards = self._rewards(message.rewards, returns)
        terminated, truncated, done = NO_IDS, NO_IDS, agents_done
        if message.terminations or message.truncations:
            terminated, truncated = self._ended(message)
            done = agents_done | terminated | truncated
        if message.late_rewards:
            late = self._late_rewards(message.late_rewards, rewards, returns, done)
        if done and not self._agents_return and (back := observations.keys() & done):
            agent_id = min(back)
            raise ValueMismatch(
                f"agent {agent_id!r} is done in this episode and cannot observe again; an agent "
                "that returns needs a new agent id, a new episode, or simulation.respawn",
                agent_id=agent_id,
                expected="observations of agents that are not done",
                got=f"an observation of {agent_id!r}",
            )
        state = None
        if self._state_space is not None and (self._needs_state or message.state is not None):
            state = self._state(message.state)
        return CheckedStep(
            observations,
            finals,
            logged,
            log_probs,
            rewards,
            late,
            terminated,
            truncated,
            state,
        )

    def end(self, message: EndEpisode, agents_done: AgentIds, returns: Returns) -> CheckedStep:
        """Returns the checked values of an end; all agents that are not done end with it.

        Raises:
            ValueMismatch: as for `step`.
        """
        finals = self._observations(message.final_observations, "final observation")
        rewards = self._rewards(message.rewards, returns)
        terminated, truncated = self._ended(message)
        done = agents_done | terminated | truncated
        late = self._late_rewards(message.late_rewards, rewards, returns, done)
        rest = self.agents.keys() - done
        if message.is_truncated:
            truncated |= rest
        else:
            terminated |= rest
        state = None
        if self._state_space is not None:
            # It is needed only for a value that is bootstrapped from a final observation.
            is_needed = self._needs_state and message.t > 0 and finals and truncated
            if message.state is not None or is_needed:
                state = self._state(message.state)
            elif self._needs_state:
                finals = {}
        return CheckedStep({}, finals, {}, {}, rewards, late, terminated, truncated, state)

    def _observations(self, values: Mapping[str, Any], what: str) -> dict[str, Any]:
        spaces, vectors = self._observation_spaces, self._vectors
        conformed = {}
        for agent_id, value in values.items():
            if (
                type(value) is np.ndarray
                and (value.shape, value.dtype) == vectors.get(agent_id)
                and within(value, self.max_observation)
            ):  # the usual case: the same as `conform`, in half the time
                conformed[agent_id] = value
                continue
            space = spaces.get(agent_id)
            if space is None:
                raise self._unknown_agent(agent_id, what)
            try:
                conformed[agent_id] = conform(space, value, "", self.max_observation)
            except Mismatch as error:
                raise mismatch(what, error, agent_id) from None
        return conformed

    def _logged_actions(
        self, logged: Mapping[str, Any], observations: Mapping[str, Any]
    ) -> dict[str, Any]:
        conformed = {}
        for agent_id, value in logged.items():
            if agent_id not in observations:
                raise ValueMismatch(
                    f"an action of agent {agent_id!r} was logged without its observation",
                    agent_id=agent_id,
                )
            space = self._action_spaces[agent_id]
            try:
                conformed[agent_id] = conform(space, value)
                check_available(space, observations[agent_id], conformed[agent_id])
            except Mismatch as error:
                raise mismatch("logged action", error, agent_id) from None
        return conformed

    def _log_probs(
        self, given: Mapping[str, Any], logged_actions: Collection[str]
    ) -> dict[str, float]:
        log_probs = {a: _plain(a, "log-probability", value) for a, value in given.items()}
        for agent_id, log_prob in log_probs.items():
            if agent_id not in logged_actions:
                raise ValueMismatch(
                    f"the log-probability of an action of agent {agent_id!r} came without the "
                    "logged action",
                    agent_id=agent_id,
                    expected=f"logged_actions[{agent_id!r}]",
                    got="none",
                )
            low, high = log_prob_range(self._action_spaces[agent_id])
            if not low <= log_prob <= high:
                hint = "; is it a probability? send its logarithm" if log_prob > 0 else ""
                raise ValueMismatch(
                    f"the log-probability of agent {agent_id!r}'s logged action is "
                    f"{log_prob}{hint}",
                    agent_id=agent_id,
                    expected=f"{low:g} to 0" if low == MIN_LOG_PROB else "a finite number",
                    got=str(log_prob),
                )
        return log_probs

    def _rewards(self, given: Mapping[str, Any], returns: Returns) -> dict[str, float]:
        rewards = {}
        agents, most = self.agents, self.max_reward
        small = min(most, SMALL_REWARD)
        for agent_id, reward in given.items():
            if agent_id not in agents:
                raise self._unknown_agent(agent_id, "reward")
            if type(reward) is not float:
                reward = _plain(agent_id, "reward", reward)
            rewards[agent_id] = reward
            if -small <= reward <= small:  # false for NaN
                continue
            total = returns().get(agent_id, 0.0) + reward
            if -most <= reward <= most and abs(total) <= MAX_RETURN:
                continue
            if not math.isfinite(reward):
                reason, expected, got = str(reward), "a finite number", str(reward)
            elif not -most <= reward <= most:
                reason = (
                    f"{reward:g}, larger than limits.max_abs_reward, {most:g}; is it a mistake, or "
                    "should rewards be scaled down?"
                )
                expected, got = f"{-most:g} to {most:g}", f"{reward:g}"
            else:
                reason = (
                    f"{reward}, which makes its return {total}; learners compute in float32, which "
                    f"ends at {MAX_RETURN:.2g}"
                )
                expected = f"a return of at most {MAX_RETURN:.2g}, up or down"
                got = f"a return of {total}"
            raise UnsoundValue(
                f"the reward of agent {agent_id!r} is {reason}",
                agent_id=agent_id,
                expected=expected,
                got=got,
            )
        return rewards

    def _late_rewards(
        self,
        given: Mapping[str, Any],
        rewards: Mapping[str, float],
        returns: Returns,
        done: AgentIds,
    ) -> dict[str, float]:
        def so_far() -> dict[str, float]:
            before = returns()
            return {a: before.get(a, 0.0) + rewards.get(a, 0.0) for a in given}

        late = self._rewards(given, so_far)
        if alive := given.keys() - done:
            agent_id = min(alive)
            raise ValueMismatch(
                f"a late reward came of agent {agent_id!r}, which is not done in this episode; "
                "send the reward of an agent that still acts in 'rewards'",
                agent_id=agent_id,
                expected="late_rewards of agents that are done",
                got=f"one of {agent_id!r}",
            )
        return late

    def _ended(self, message: Step | EndEpisode) -> tuple[AgentIds, AgentIds]:
        """Returns the agents that a message terminates, and those that it only truncates."""
        terminated = {agent_id for agent_id, is_set in message.terminations.items() if is_set}
        truncated = {agent_id for agent_id, is_set in message.truncations.items() if is_set}
        for agent_id in terminated | truncated:
            if agent_id not in self.agents:
                raise self._unknown_agent(agent_id, "termination or truncation")
        # Gymnasium's TimeLimit sets both if an episode ends by itself at the limit.
        return terminated, truncated - terminated

    def _state(self, state: Any) -> Any:
        assert self._state_space is not None
        try:
            return conform(self._state_space, state, "", self.max_observation)
        except Mismatch as error:
            raise mismatch("the global state of the simulation", error) from None

    def _unknown_agent(self, agent_id: str, what: str) -> ValueMismatch:
        # A gateway's groups have the name of their server before their own.
        members = [
            name
            for name, agent in self.agents.items()
            if agent.group is not None and agent_id in (agent.group, agent.group.partition("/")[2])
        ]
        if members:
            hint = f"; it is a group: name its members, {', '.join(members[:_NAMED])}"
        else:
            hint = did_you_mean(agent_id, self.agents)
        return ValueMismatch(
            f"there is no agent {agent_id!r} here, but its {what} came{hint}",
            agent_id=agent_id,
            expected=f"one of {list(self.agents)}",
            got=repr(agent_id),
        )


def log_prob_range(space: Space) -> tuple[float, float]:
    """Returns the lowest and highest log-probability of an action; for a Box its log-density."""
    most = float(np.finfo(float).max)
    if isinstance(space, Box):
        return -most, most
    return (MIN_LOG_PROB if isinstance(space, Discrete) else -most), 0.0


def _plain(agent_id: str, what: str, value: Any) -> float:
    """Returns a value as a number; NaN and infinity are left to the caller."""
    try:
        return value if isinstance(value, float) else number(value)
    except Mismatch as error:
        raise mismatch(what, error, agent_id) from None


def mismatch(
    what: str, error: Mismatch, agent_id: str | None = None, *, may_be_unsound: bool = True
) -> ValueMismatch:
    """Returns the refusal of a value; an `UnsoundValue` if it may be a simulation's slip."""
    kind = UnsoundValue if may_be_unsound and isinstance(error, Unsound) else ValueMismatch
    whose = "" if agent_id is None else f" of agent {agent_id!r}"
    expected, got = error.expected, error.got
    return kind(f"{what}{whose}: {error}", agent_id=agent_id, expected=expected, got=got)
