"""Policies that are plain functions, from the simulation's observations to its actions.

Values are not flattened, normalised or stacked, as for networks. Each agent gets a new policy in
each episode, so that a policy's memory ends with its episode. Either all available actions are
equally likely (`uniform`), or a user's function chooses (`scripted`).
"""

from __future__ import annotations

import copy
import inspect
import zlib
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from muxrl.protocol.rows import leaves, row_of, stack
from muxrl.protocol.spaces import Box, Space, bounds
from muxrl.protocol.values import (
    Mismatch,
    available_actions,
    check_available,
    conform,
    sample_action,
)
from muxrl.servers.acting import Acted, Acting, Asked
from muxrl.servers.agents.action_forms import ActionForm
from muxrl.servers.agents.keys import OBS
from muxrl.servers.agents.masks import has_action_mask, none_available
from muxrl.servers.agents.parts import Input, Part, Seen
from muxrl.servers.agents.seat_actions import OwnAction
from muxrl.servers.agents.seating import Seating
from muxrl.servers.agents.seats import Seat
from muxrl.servers.config import ServerPlan
from muxrl.servers.episodes.blocks import Block
from muxrl.servers.gymnasium_spaces import spaces_of
from muxrl.servers.import_by_name import import_named
from muxrl.servers.setting_values import AlgorithmProblem
from muxrl.servers.trainers.acting import STATE, Kept, no_state

Policy = Callable[[Any], Any]
"""Maps an agent's observation to its action; called once for each step in which the agent acts."""
MakePolicy = Callable[[str, int], Policy]
"""Makes an agent's policy for one episode from the agent's id and a seed."""

EXAMPLE = "my_package.my_module:make_policy"

_BOUND_TOLERANCE = 1e-5
"""How far an action may exceed the bounds of a Box, which float32 cannot always represent."""


class PolicyFailed(RuntimeError):
    """A policy raised, or returned an invalid action; the message names its agent."""


class Raw(Input):
    """Observations as the simulation sends them, objects ``[E, S]``."""

    key = OBS

    def __init__(self, part: Part) -> None:
        self._agents = part.agents
        self._shown = [
            (number, kind.space, column, part.names.index(agent_id))
            for number, kind in enumerate(part.layout.observed)
            for column, agent_id in enumerate(kind.agents)
        ]
        """For each agent that observes: index and space of its kind, its column in the kind's
        rows, and its index in `agents`."""

    @staticmethod
    def space(seat: Seat) -> Space:
        return seat.own_space

    def read(self, seen: Seen, found: Mapping[str, Any]) -> np.ndarray:
        objects = np.empty((seen.num_episodes, len(self._agents)), object)
        for number, space, column, place in self._shown:
            member, is_masked = self._agents[place], has_action_mask(space)
            for row in range(len(objects)):
                shown = row_of(space, seen.observations[number], (row, column))
                if is_masked and not seen.is_final:
                    try:
                        available_actions(member.form.kind, shown)
                    except Mismatch:  # the mask forbids all actions of a choice
                        raise none_available(member.agent_id) from None
                objects[row, place] = shown
        return objects


class RawAction(OwnAction):
    """Actions in the agent's own action space."""

    is_sent = reads_log_probs = False

    @property
    def space(self) -> Space:
        return self._form.kind

    def write(self, form: ActionForm, actions: np.ndarray) -> Any:
        return stack(form.kind, actions.reshape(-1).tolist(), actions.shape)

    def read(self, form: ActionForm, rows: Any) -> np.ndarray:
        objects = np.empty(leaves(form.kind, rows)[0].shape[:2], object)
        for index in np.ndindex(*objects.shape):
            objects[index] = row_of(form.kind, rows, index)
        return objects


RAW = Seating(inputs=(Raw,), actions=RawAction, asks_apart=False)
"""A seat for each agent; nothing is shared, and agents are asked in their order."""
RAW_POOL = replace(RAW, is_joint=True)
"""As `RAW`, but groups are allowed, since some members of a pool use them."""


class PlainActing(Acting):
    """Asks the policy of each agent.

    Args:
        plan: the server.
        make: makes a policy at an agent's first step in an episode, from the agent's id and a seed.
    """

    def __init__(self, plan: ServerPlan, make: MakePolicy) -> None:
        self.weights_seq_no = 0
        self._agents = plan.agents
        self._make = make
        self._seed = plan.seed
        self._rng = np.random.default_rng((plan.seed, 0))
        self._evaluation_rng = np.random.default_rng((plan.seed, 1))

    def answer(self, asked: Asked) -> Acted:
        observations = asked.observations()
        agents, states = asked.agents(), asked.states(no_state)[STATE]
        rows = asked.episodes()
        actions, policies = np.empty(len(rows), object), np.empty(len(rows), object)
        is_logged = asked.are_logged(actions.shape)
        for i, (block, row) in enumerate(rows):
            t = int(block.t[row])
            action, policy = self._ask(agents[i], observations[i], states[i], t, block, row)
            # The policy is called even if an action was logged: it may need to see every step.
            if not is_logged[i]:
                actions[i] = self._checked(agents[i], observations[i], action, t)
            policies[i] = Kept(policy)
        asked.put_logged(actions)
        return Acted(actions, {}, {STATE: policies})

    def _ask(
        self, agent_id: str, observation: Any, state: Kept | None, t: int, block: Block, row: int
    ) -> tuple[Any, Policy]:
        """Returns an agent's action, and its policy, which is made at the agent's first step.

        In an evaluation episode with a seed, the policy is the same in every condition.
        """
        if state is None:
            of_episode = None if block.mode.is_training else block.seed_of(row)
            if of_episode is not None:
                text = f"{self._seed}/{of_episode}/{agent_id}/{t}"
                seed = zlib.crc32(text.encode()) >> 1
            else:
                seeds = self._rng if block.mode.is_training else self._evaluation_rng
                seed = int(seeds.integers(2**31))
            policy = self._make(agent_id, seed)
        else:
            policy = state.value
        try:
            return policy(observation), policy
        except Exception as error:  # the policy is the user's
            raise PolicyFailed(
                f"the policy of agent {agent_id!r} raised {type(error).__name__}: {error}, at t={t}"
            ) from error

    def _checked(self, agent_id: str, observation: Any, action: Any, t: int) -> Any:
        space = self._agents[agent_id].action_space
        try:
            action = conform(space, action)
            check_available(space, observation, action)
            if isinstance(space, Box):
                low, high = bounds(space)
                if (action < low - _BOUND_TOLERANCE).any() or (
                    action > high + _BOUND_TOLERANCE
                ).any():
                    raise ValueError(f"{action} is outside the bounds {low} to {high}")
        except ValueError as error:
            raise PolicyFailed(
                f"the policy of agent {agent_id!r} returned no action of its space at t={t}: "
                f"{error}"
            ) from None
        return action


def uniform(plan: ServerPlan) -> MakePolicy:
    """Returns a function that makes the random policies of a server's agents."""

    def make(agent_id: str, seed: int) -> Policy:
        space, rng = plan.agents[agent_id].action_space, np.random.default_rng(seed)
        return lambda observation: sample_action(space, observation, rng)

    return make


def scripted(plan: ServerPlan, settings: Mapping[str, Any]) -> MakePolicy:
    """Returns a function that makes a user's own policies for a server's agents.

    ``settings.policy`` names a callable that makes a policy for one agent in one episode,

        make(agent_id, observation_space, action_space, seed, **kwargs) -> policy
        policy(observation) -> action

    with Gymnasium's spaces, a new seed for every episode, and ``settings.kwargs``. The policy is
    called once for each step in which its agent acts, with the observation as the simulation sent
    it (a Dict observation with its ``action_mask``), and returns an action of the action space. It
    lives as long as the episode. Many episodes may be open at a time, each with its own policies.

    Raises:
        AlgorithmProblem: see `find_script`; or the callable raised for an agent, or returned
            something that is not callable.
    """
    path, kwargs = settings["policy"], dict(settings["kwargs"])
    script = find_script(path)
    spaces = {agent_id: spaces_of(agent) for agent_id, agent in plan.agents.items()}

    def make(agent_id: str, seed: int) -> Policy:
        try:
            policy = script(agent_id, *spaces[agent_id], seed, **kwargs)
        except Exception as error:  # the user's code may raise anything
            raise AlgorithmProblem(
                f"policy {path!r} could not be made for agent {agent_id!r}: "
                f"{type(error).__name__}: {error}; it is called with (agent_id, "
                "observation_space, action_space, seed, **kwargs)"
            ) from error
        if not callable(policy):
            raise AlgorithmProblem(
                f"policy {path!r} made {_kind_of(policy)} for agent {agent_id!r}; expected "
                "a function of an observation that returns an action"
            )
        # A copy, since the policy may write into it, and values of a message are read-only.
        return lambda observation: policy(copy.deepcopy(observation))

    return make


def find_script(path: str) -> Callable[..., Any]:
    """Returns the callable at "package.module:callable".

    Raises:
        AlgorithmProblem: it cannot be imported, or is not callable.
    """
    if not isinstance(path, str) or not path:
        raise AlgorithmProblem(
            f"SCRIPTED needs the setting 'policy', an import path such as {EXAMPLE!r}"
        )
    found = import_named("policy", path, EXAMPLE)
    if not callable(found) or inspect.ismodule(found):
        raise AlgorithmProblem(f"policy {path!r} is {_kind_of(found)}, which cannot be called")
    return found


def _kind_of(value: Any) -> str:
    return "None" if value is None else f"an object of {type(value).__name__}"
