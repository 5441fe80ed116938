"""Policies that are plain functions, from the simulation's observations to its actions.

Nothing is flattened, normalised or stacked between, as it is for networks. Each agent has a
new policy in each episode, so that what a policy remembers ends with its episode. Either all
available actions are equally likely (`uniform`), or a user's function decides (`scripted`).
"""

from __future__ import annotations

import inspect
import zlib
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

import numpy as np

from muxrl.protocol.rows import Lineup, row_of, stack
from muxrl.protocol.spaces import Box, bounds
from muxrl.protocol.values import (
    Mismatch,
    available_actions,
    check_available,
    conform,
    sample_action,
)
from muxrl.servers.agents.benches import Seen, parts_of
from muxrl.servers.agents.masks import has_action_mask, none_available
from muxrl.servers.agents.observing import Observing
from muxrl.servers.agents.seating import Seating
from muxrl.servers.agents.seats import Seat, SeatAction, SeatRecord, SeatRequest, StepView
from muxrl.servers.config import AgentPlan, ServerPlan
from muxrl.servers.episodes.episode import PendingStep
from muxrl.servers.episodes.rows import Chosen, EpisodeOfRows, RowStep
from muxrl.servers.gymnasium_spaces import spaces_of
from muxrl.servers.import_by_name import CannotImport, import_by_name
from muxrl.servers.setting_values import AlgorithmProblem
from muxrl.servers.trainers.acting import STATE, Kept, RowsOfBench
from muxrl.servers.trainers.interface import Acted

Policy = Callable[[Any], Any]
"""From an agent's observation to its action; called once for each step that the agent acts in."""
MakePolicy = Callable[[str, int], Policy]
"""From an agent's id and a seed to the agent's policy for one episode."""

EXAMPLE = "my_package.my_module:make_policy"

_BOUND_TOLERANCE = 1e-5
"""By how much an action may exceed a Box's bounds, which float32 cannot always represent."""


class PolicyFailed(RuntimeError):
    """A policy raised, or returned something that is no action; the sentence names its agent."""


class PlainSeat:
    """An agent whose policy gets observations as sent, and returns actions of its own space."""

    frame_stack = 1
    policy_id = ""
    """The same of all: nothing is shared, and they are asked in the order of the seats."""

    def __init__(self, agent_id: str, plan: AgentPlan) -> None:
        self.seat_id = agent_id
        self.members: tuple[str, ...] = (agent_id,)
        self.observation_space = plan.observation_space
        self.action_space = plan.action_space
        self.is_masked = has_action_mask(plan.observation_space)

    def observe(self, step_view: StepView, record: SeatRecord) -> Any:
        observed = step_view.observations.get(self.seat_id)
        if observed is not None and not step_view.is_final and not self.can_act(observed):
            raise none_available(self.seat_id)
        return observed

    def can_act(self, observation: Any) -> bool:
        """Returns whether a mask leaves each choice an action."""
        try:
            if self.is_masked:
                available_actions(self.action_space, observation)
        except Mismatch:
            return False
        return True

    def reward(self, rewards: Mapping[str, float]) -> float:
        return rewards.get(self.seat_id, 0.0)

    def act(self, action: Any, acting: Collection[str]) -> dict[str, Any]:
        return {self.seat_id: action}

    def read_logged(self, logged: Mapping[str, Any]) -> Any:
        return logged.get(self.seat_id)

    def read_log_prob(self, log_probs: Mapping[str, float]) -> float | None:
        return None

    @property
    def bench_class(self) -> type[PlainBench]:
        """Reads all of them."""
        return PlainBench


class PlainBench:
    """Agents that are shown their rows one by one; see `muxrl.servers.agents.benches.Bench`."""

    policy_id = ""
    reads_last_actions = False

    def __init__(self, seats: Sequence[PlainSeat], lineup: Lineup) -> None:
        self.seats = tuple(seats)
        names = [seat.seat_id for seat in seats]
        self._lineup = lineup
        self._places = lineup.places_of(names)
        self._acts = parts_of(names, lineup.acted)
        place_of = {name: i for i, name in enumerate(names)}
        self._shown = [
            (number, kind.space, column, place_of[agent_id])
            for number, kind in enumerate(lineup.observed)
            for column, agent_id in enumerate(kind.agents)
        ]
        """Where each is found in which rows, and among the seats."""

    def observe(self, seen: Seen) -> Any:
        found = np.empty((seen.num_episodes, len(self.seats)), object)
        for number, space, column, place in self._shown:
            can_act = self.seats[place].can_act
            for row in range(len(found)):
                shown = row_of(space, seen.observations[number], (row, column))
                if not can_act(shown):
                    return None
                found[row, place] = shown
        return found

    def rewards(self, rewards: np.ndarray) -> np.ndarray:
        return rewards[:, self._places]

    def write(self, actions: np.ndarray, into: Sequence[Any]) -> None:
        for part, where in self._acts:
            own = actions[:, where]
            space = self._lineup.acted[part.kind].space
            part.write(stack(space, own.reshape(-1).tolist(), own.shape), into)


class PlainSeating(Seating):
    """Every agent has a `PlainSeat`."""

    def make_seats(self, plan: ServerPlan, observing: Observing | None = None) -> dict[str, Seat]:
        return {agent_id: PlainSeat(agent_id, agent) for agent_id, agent in plan.agents.items()}


class PoolSeating(PlainSeating):
    """The same; groups mean something to some members of a pool."""

    is_joint = True


class PlainActing:
    """Asks each agent's policy; see `muxrl.servers.training.policies.Acting`.

    Args:
        plan: the server.
        make: makes a policy at an agent's first step in an episode, from the plan, the agent's id
            and a seed.
    """

    def __init__(self, plan: ServerPlan, make: MakePolicy) -> None:
        self.weights_seq_no = 0
        self._agents = plan.agents
        self._make = make
        # Evaluation draws from its own generator, so that it does not change what training draws.
        self._seed = plan.seed
        self._training_seeds = np.random.default_rng((plan.seed, 0))
        self._evaluation_seeds = np.random.default_rng((plan.seed, 1))

    def get_random_state(self) -> dict[str, Any]:
        return {
            "training": self._training_seeds.bit_generator.state,
            "evaluation": self._evaluation_seeds.bit_generator.state,
        }

    def set_random_state(self, state: Mapping[str, Any]) -> None:
        self._training_seeds.bit_generator.state = state["training"]
        self._evaluation_seeds.bit_generator.state = state["evaluation"]

    def act(self, steps: Sequence[PendingStep]) -> tuple[list[list[SeatAction]], int]:
        return [
            [self._act(request, step) for request in step.requests] for step in steps
        ], self.weights_seq_no

    def act_rows(self, steps: Sequence[RowStep]) -> list[tuple[list[Chosen], int]]:
        """See `muxrl.servers.training.policies.ActingOnRows`."""
        chosen = []
        for step in steps:
            asked = RowsOfBench(step, 0)
            num_seats = len(asked.agents) // len(step.t)
            times = np.repeat(step.t, num_seats).tolist()
            episodes = [episode for episode in step.episodes for _ in range(num_seats)]
            actions, policies = np.empty(len(times), object), []
            for i, one in enumerate(
                zip(asked.agents, asked.observations, asked.states, times, episodes, strict=True)
            ):
                action, policy = self._ask(*one)
                actions[i] = self._checked(one[0], one[1], action, one[3])
                policies.append(policy)
            acted = Acted(actions, states=policies)
            chosen.append(([asked.chosen(acted, slice(None))], self.weights_seq_no))
        return chosen

    def _act(self, request: SeatRequest, step: PendingStep) -> SeatAction:
        agent_id, observation = request.seat.seat_id, request.observation
        action, policy = self._ask(
            agent_id, observation, request.module_state, step.t, step.episode
        )
        # The policy is called even if the action was logged: it may have to see every step.
        if request.logged_action is not None:
            action = request.logged_action
        else:
            action = self._checked(agent_id, observation, action, step.t)
        return SeatAction(action, module_state={STATE: Kept(policy)})

    def _ask(
        self, agent_id: str, observation: Any, state: Any, t: int, episode: EpisodeOfRows
    ) -> tuple[Any, Policy]:
        """Returns an agent's action, and its policy, which is made at its first step.

        In an evaluation's episode that has a seed it is the same in every condition.
        """
        if state is None:
            if not episode.is_training and episode.seed is not None:
                text = f"{self._seed}/{episode.seed}/{agent_id}/{t}"
                seed = zlib.crc32(text.encode()) >> 1
            else:
                seeds = self._training_seeds if episode.is_training else self._evaluation_seeds
                seed = int(seeds.integers(2**31))
            policy = self._make(agent_id, seed)
        else:
            policy = state[STATE].value
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
                f"the policy of agent {agent_id!r} gave no action of its space at t={t}: {error}"
            ) from None
        return action


def uniform(plan: ServerPlan) -> MakePolicy:
    """Returns what makes the random policies of a server's agents."""

    def make(agent_id: str, seed: int) -> Policy:
        space, rng = plan.agents[agent_id].action_space, np.random.default_rng(seed)
        return lambda observation: sample_action(space, observation, rng)

    return make


def scripted(plan: ServerPlan, settings: Mapping[str, Any]) -> MakePolicy:
    """Returns what makes a user's own policies for a server's agents.

    ``settings.policy`` names a callable that makes a policy for one agent in one episode,

        make(agent_id, observation_space, action_space, seed, **kwargs) -> policy
        policy(observation) -> action

    with Gymnasium's spaces, a new seed for every episode, and ``settings.kwargs``. The policy is
    called once for each step at which its agent acts, with the observation as the simulation sent
    it (a Dict observation with its ``action_mask``), and returns an action of the action space. It
    lives as long as the episode. Many episodes may be open at a time, each with its own policies.

    Raises:
        AlgorithmProblem: see `find_script`; or, for one agent, the callable raised, or what it
            returned is not callable.
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
                "something to call with an observation, that returns an action"
            )
        return policy

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
    try:
        found = import_by_name(path, EXAMPLE)
    except CannotImport as error:
        raise AlgorithmProblem(f"policy {error}") from error
    if not callable(found) or inspect.ismodule(found):
        raise AlgorithmProblem(f"policy {path!r} is {_kind_of(found)}, nothing that can be called")
    return found


def _kind_of(value: Any) -> str:
    return "None" if value is None else f"an object of {type(value).__name__}"
