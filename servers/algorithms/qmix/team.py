"""A team: several agents that one QMIX module sees as one RLlib agent.

Centralised training needs all members of a team in one transition. RLlib records episodes by
agent, so a team *is* an agent here, whose id is the name of the group. This module is the only
place that knows the format of such an agent's observations and actions:

======================  ================================  =========================================
observation key         shape, dtype                      meaning
======================  ================================  =========================================
``obs``                 ``[n, obs_dim]`` float32          one row per member, zero-padded
``state``               ``[state_dim]`` float32           what the mixer may see while training
``action_mask``         ``[n, n_actions]`` float32        1 = the member may choose this action
``alive``               ``[n]`` float32                   1 = the member is asked to act now
``last_action``         ``[n]`` float32                   its previous action, -1 for none
======================  ================================  =========================================

A member that is dead, or not asked at this step, is *absent*: zero rows, ``alive`` 0, last action
-1, and a mask that allows action 0 only, which is not sent anywhere.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal

import numpy as np
from gymnasium import spaces
from ray.rllib.env.multi_agent_env import MultiAgentEnv

OBS = "obs"
STATE = "state"
ACTION_MASK = "action_mask"
ALIVE = "alive"
LAST_ACTION = "last_action"
TEAM_KEYS = (OBS, STATE, ACTION_MASK, ALIVE, LAST_ACTION)
ACTING_KEYS = (OBS, ACTION_MASK, LAST_ACTION)
"""What a member's decision rests on; the others are for the mixer."""

NO_ACTION = -1
"""The value of ``last_action`` before a member's first action."""

RewardRule = Literal["sum", "mean"]
TeamObservation = dict[str, np.ndarray]


class TeamProblem(ValueError):
    """A team cannot be formed, or its data do not fit its spaces. Fix the caller."""


@dataclass(frozen=True)
class TeamSpec:
    """The members of one team, in the order of their rows, and their spaces.

    Members may differ in the size of their observations and in their number of actions: smaller
    observations are padded with zeros, missing actions are masked out.

    Args:
        members: agent ids, in the order of the rows of ``obs``.
        observation_spaces: each member's space, a one-dimensional ``Box``.
        action_spaces: each member's space, a ``Discrete`` starting at 0.
        state_size: length of the global state; None if there is none, and the members' padded
            observations in a row stand for it.

    Raises:
        TeamProblem: no members, a member twice, a space missing or of another kind.
    """

    members: tuple[str, ...]
    observation_spaces: Mapping[str, spaces.Space]
    action_spaces: Mapping[str, spaces.Space]
    state_size: int | None = None

    def __post_init__(self) -> None:
        if not self.members:
            raise TeamProblem("a team needs at least one member")
        if len(set(self.members)) != len(self.members):
            raise TeamProblem(f"team {list(self.members)} names a member twice")
        if self.state_size is not None and self.state_size < 1:
            raise TeamProblem(f"state_size is {self.state_size}: give its length, or None")
        for member in self.members:
            check_member_spaces(
                member, self.observation_spaces.get(member), self.action_spaces.get(member)
            )

    @property
    def num_members(self) -> int:
        return len(self.members)

    @cached_property
    def obs_dim(self) -> int:
        """Length of the longest member observation."""
        return max(self._obs_shapes[m][0] for m in self.members)

    @cached_property
    def num_actions(self) -> int:
        """Number of actions of the member that has most."""
        return max(int(self.action_spaces[m].n) for m in self.members)  # type: ignore[attr-defined]

    @cached_property
    def state_dim(self) -> int:
        return self.state_size or self.num_members * self.obs_dim

    @cached_property
    def observation_space(self) -> spaces.Dict:
        """What `observe` returns."""
        n = self.num_members

        def box(low: float, high: float, *shape: int) -> spaces.Box:
            return spaces.Box(low, high, shape, np.float32)

        return spaces.Dict(
            {
                OBS: box(-np.inf, np.inf, n, self.obs_dim),
                STATE: box(-np.inf, np.inf, self.state_dim),
                ACTION_MASK: box(0.0, 1.0, n, self.num_actions),
                ALIVE: box(0.0, 1.0, n),
                LAST_ACTION: box(NO_ACTION, self.num_actions - 1, n),
            }
        )

    @cached_property
    def action_space(self) -> spaces.MultiDiscrete:
        """One action per member, absent ones too; what `split` takes apart."""
        return spaces.MultiDiscrete([self.num_actions] * self.num_members)

    @cached_property
    def _rows(self) -> dict[str, int]:
        return {member: row for row, member in enumerate(self.members)}

    @cached_property
    def _obs_shapes(self) -> dict[str, tuple[int, ...]]:
        return {m: self.observation_spaces[m].shape for m in self.members}  # type: ignore[misc]

    @cached_property
    def _member_masks(self) -> np.ndarray:
        """[n, n_actions]: the actions each member has at all."""
        sizes = [int(self.action_spaces[m].n) for m in self.members]  # type: ignore[attr-defined]
        return _read_only(
            (np.arange(self.num_actions) < np.array(sizes)[:, None]).astype(np.float32)
        )

    @cached_property
    def _are_alike(self) -> bool:
        """Whether no member's observation is padded."""
        return len(set(self._obs_shapes.values())) == 1

    @cached_property
    def _all_alive(self) -> np.ndarray:
        return _read_only(np.ones(self.num_members, np.float32))

    @cached_property
    def _no_last_action(self) -> np.ndarray:
        return _read_only(np.full(self.num_members, NO_ACTION, np.float32))

    @cached_property
    def _absent_masks(self) -> np.ndarray:
        mask = np.zeros((self.num_members, self.num_actions), np.float32)
        mask[:, 0] = 1.0
        return mask

    def observe(
        self,
        observations: Mapping[str, Any],
        action_masks: Mapping[str, Any] | None = None,
        state: Any | None = None,
        last_actions: Mapping[str, int] | None = None,
    ) -> TeamObservation:
        """Build the team's observation; it is on the step path (about 10 µs for 3 members).

        Args:
            observations: the members that are asked to act now, ``[obs size]`` each. Agents of
                other teams are ignored.
            action_masks: ``[n actions of that member]`` for some or all of them; a member that
                is not in it may choose any of its actions.
            state: ``[state_size]``, required if and only if the team was given a `state_size`.
            last_actions: each member's previous action, if it has had one.

        Returns:
            A new dict of float32 arrays, not to be written to, as `observation_space` says.

        Raises:
            TeamProblem: a wrong shape, or a member that may not choose any action.
        """
        if action_masks is None and self._are_alike and len(observations) >= self.num_members:
            whole = self._observe_all(observations, state, last_actions)
            if whole is not None:
                return whole
        n = self.num_members
        obs = np.zeros((n, self.obs_dim), np.float32)
        mask = self._absent_masks.copy()
        alive = np.zeros(n, np.float32)
        last = np.full(n, NO_ACTION, np.float32)
        shapes = self._obs_shapes
        for row, member in enumerate(self.members):
            value = observations.get(member)
            if value is None:
                continue
            value = np.asarray(value)
            if value.shape != shapes[member]:
                raise TeamProblem(
                    f"agent {member!r} observed the shape {list(value.shape)}, its space says "
                    f"{list(shapes[member])}"
                )
            obs[row, : value.shape[0]] = value
            alive[row] = 1.0
            given = action_masks.get(member) if action_masks is not None else None
            mask[row] = self._member_masks[row] if given is None else self._padded(member, given)
            if last_actions is not None:
                last[row] = last_actions.get(member, NO_ACTION)
        return {
            OBS: obs,
            STATE: self._state(state, obs),
            ACTION_MASK: mask,
            ALIVE: alive,
            LAST_ACTION: last,
        }

    def _observe_all(
        self,
        observations: Mapping[str, Any],
        state: Any | None,
        last_actions: Mapping[str, int] | None,
    ) -> TeamObservation | None:
        """The usual case, in a third of the time: everybody is here and they are alike.

        What is always the same is one read-only array for all steps. None if it is another case,
        or something is wrong with it.
        """
        try:
            rows = [observations[member] for member in self.members]
            obs = np.array(rows, np.float32)
        except (KeyError, ValueError):
            return None
        if obs.shape != (self.num_members, self.obs_dim):
            return None
        last = self._no_last_action
        if last_actions:
            last = np.array([last_actions.get(m, NO_ACTION) for m in self.members], np.float32)
        return {
            OBS: obs,
            STATE: self._state(state, obs),
            ACTION_MASK: self._member_masks,
            ALIVE: self._all_alive,
            LAST_ACTION: last,
        }

    def split(
        self, team_action: np.ndarray | Iterable[int], acting: Iterable[str]
    ) -> dict[str, int]:
        """Take a team action ``[n]`` apart, for the members that act now."""
        actions = np.asarray(team_action).tolist()
        if len(actions) != self.num_members:
            raise TeamProblem(
                f"{len(actions)} actions came for the {self.num_members} members "
                f"{list(self.members)}"
            )
        return {member: int(actions[self._rows[member]]) for member in acting}

    def _padded(self, member: str, mask: Any) -> np.ndarray:
        mask = np.asarray(mask)
        n = int(self.action_spaces[member].n)  # type: ignore[attr-defined]
        if mask.shape != (n,):
            raise TeamProblem(
                f"the action mask of agent {member!r} has the shape {list(mask.shape)}, "
                f"it has {n} actions"
            )
        if not mask.any():
            raise TeamProblem(
                f"the action mask of agent {member!r} forbids every action; leave an agent that "
                "cannot act out of the observations, or give it an action that does nothing"
            )
        padded = np.zeros(self.num_actions, np.float32)
        padded[:n] = mask != 0
        return padded

    def _state(self, state: Any | None, obs: np.ndarray) -> np.ndarray:
        if self.state_size is None:
            if state is not None:
                raise TeamProblem(
                    f"team {list(self.members)} was sent a state but has no state_size; set it"
                )
            return obs.reshape(-1)
        if state is None:
            raise TeamProblem(
                f"team {list(self.members)} needs a state of {self.state_size} numbers at every "
                "step and got none"
            )
        value = np.array(state, np.float32)
        if value.shape != (self.state_size,):
            raise TeamProblem(
                f"the state has the shape {list(value.shape)}, state_size is {self.state_size}"
            )
        return value


def _read_only(array: np.ndarray) -> np.ndarray:
    array.setflags(write=False)
    return array


def check_member_spaces(
    member: str, observation_space: spaces.Space | None, action_space: spaces.Space | None
) -> None:
    """Whether an agent can be a member of a team.

    Raises:
        TeamProblem: with the reason and what to do instead.
    """
    for kind, space in (("observation", observation_space), ("action", action_space)):
        if space is None:
            raise TeamProblem(f"agent {member!r} of the team has no {kind} space")
    if not isinstance(observation_space, spaces.Box) or len(observation_space.shape) != 1:
        raise TeamProblem(
            f"a team cannot read the observation space {observation_space} of agent {member!r}: "
            "it takes a one-dimensional Box; flatten the observation first"
        )
    if not isinstance(action_space, spaces.Discrete) or action_space.start != 0:
        raise TeamProblem(
            f"a team cannot do the action space {action_space} of agent {member!r}: it learns "
            "one value per discrete action, counted from 0; use PPO or A2C"
        )


def team_reward(rewards: Mapping[str, float], how: RewardRule, n: int) -> float:
    """One reward for the team from those of its members.

    Args:
        rewards: the members' rewards at this step; a member without one counts as 0.
        how: ``"sum"``, or ``"mean"``: the sum divided by `n`, so that an episode's return does
            not grow with the size of the team.
        n: the number of members, absent ones included.
    """
    total = float(sum(rewards.values()))
    if how == "sum":
        return total
    if how == "mean":
        return total / n
    raise TeamProblem(f"unknown team reward {how!r}: it is 'sum' or 'mean'")


class _Team:
    """What `TeamEnv` remembers of one team during an episode."""

    def __init__(self, spec: TeamSpec, readers: dict[str, _Reader]) -> None:
        self.spec = spec
        self.readers = readers
        self.start()

    def start(self) -> None:
        self.acting: list[str] = []
        self.last_actions: dict[str, int] = {}
        self.left: set[str] = set()
        self.is_done = False
        self.state: np.ndarray | None = None


class TeamEnv(MultiAgentEnv):
    """Make teams out of a `MultiAgentEnv`'s agents, for use with RLlib's own env runners.

    It takes the place of ``MultiAgentEnv.with_agent_groups`` of RLlib's old QMIX, and reads the
    observations that it read: a ``Dict`` with an ``action_mask``, a global ``state`` (RLlib's
    ``ENV_STATE``), both or neither beside the member's own observation, whatever its key. What is
    not a one-dimensional ``Box`` is flattened, integers one-hot. Agents in no group pass through.

    The end of a team: terminated once all of its members are terminated; truncated once none is
    left and at least one was truncated. ``__all__`` is passed on alone, because an episode in
    which every agent is also flagged is taken for terminated, and would not bootstrap. A reward
    that comes for a team after its end is dropped; RLlib has no place for it.

    Args:
        env: the environment to wrap.
        groups: ids of the teams, and of their members in order.
        reward: how a team's reward is made of its members', see `team_reward`.
        state: returns the global state of `env`, ``[state_size]``. None: it is the one that the
            members observe, if they do, or else their observations side by side.
        state_size: its length.

    Raises:
        TeamProblem: an unknown agent, one in two groups, spaces that cannot form a team, or a
            state that some of its members observe and others do not.
    """

    def __init__(
        self,
        env: MultiAgentEnv,
        groups: Mapping[str, Iterable[str]],
        *,
        reward: RewardRule = "sum",
        state: Callable[[MultiAgentEnv], Any] | None = None,
        state_size: int | None = None,
    ) -> None:
        if (state is None) != (state_size is None):
            raise TeamProblem("give both of state and state_size, or neither")
        self.env = env
        self._reward_rule: RewardRule = reward
        self._read_state = state
        self._team_of: dict[str, str] = {}
        self._teams: dict[str, _Team] = {}
        for team_id, members in groups.items():
            members = tuple(members)
            for member in members:
                if member not in env.possible_agents:
                    raise TeamProblem(
                        f"group {team_id!r} names agent {member!r}; the environment has "
                        f"{sorted(map(str, env.possible_agents))}"
                    )
                if member in self._team_of:
                    raise TeamProblem(
                        f"agent {member!r} is in the groups {self._team_of[member]!r} and "
                        f"{team_id!r}"
                    )
                self._team_of[member] = team_id
            readers = {m: _Reader(env.get_observation_space(m)) for m in members}
            spec = TeamSpec(
                members,
                {m: reader.space for m, reader in readers.items()},
                {m: env.get_action_space(m) for m in members},
                _observed_state_size(team_id, readers) if state_size is None else state_size,
            )
            self._teams[team_id] = _Team(spec, readers)
        alone = [a for a in env.possible_agents if a not in self._team_of]
        self.possible_agents = [*self._teams, *alone]
        self.agents = list(self.possible_agents)
        self.observation_spaces = {a: env.get_observation_space(a) for a in alone}
        self.action_spaces = {a: env.get_action_space(a) for a in alone}
        for team_id, team in self._teams.items():
            self.observation_spaces[team_id] = team.spec.observation_space
            self.action_spaces[team_id] = team.spec.action_space
        super().__init__()

    def team(self, team_id: str) -> TeamSpec:
        """The spaces and the format of one team."""
        return self._teams[team_id].spec

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[dict[str, Any], dict[str, Any]]:
        observations, infos = self.env.reset(seed=seed, options=options)
        for team in self._teams.values():
            team.start()
        self.agents = list(self.possible_agents)
        return self._observe(observations, infos or {}, ended=False)

    def step(
        self, action_dict: dict[str, Any]
    ) -> tuple[dict[str, Any], dict[str, float], dict[str, bool], dict[str, bool], dict[str, Any]]:
        actions: dict[str, Any] = {}
        for agent, action in action_dict.items():
            team = self._teams.get(agent)
            if team is None:
                actions[agent] = action
                continue
            chosen = team.spec.split(action, team.acting)
            team.last_actions.update(chosen)
            actions.update(chosen)
        observations, rewards, terminateds, truncateds, infos = self.env.step(actions)

        all_terminated = bool(terminateds.get("__all__", False))
        all_truncated = bool(truncateds.get("__all__", False)) and not all_terminated
        out_rewards = {a: r for a, r in rewards.items() if a not in self._team_of}
        out_terminateds = {"__all__": all_terminated}
        out_truncateds = {"__all__": all_truncated}
        if not (all_terminated or all_truncated):
            for flags, out in ((terminateds, out_terminateds), (truncateds, out_truncateds)):
                out.update((a, f) for a, f in flags.items() if a not in self._team_of)
        just_done = set()
        for team_id, team in self._teams.items():
            if team.is_done:
                continue
            members = team.spec.members
            out_rewards[team_id] = team_reward(
                {m: rewards[m] for m in members if m in rewards},
                self._reward_rule,
                team.spec.num_members,
            )
            truncated = {m for m in members if truncateds.get(m) and m not in team.left}
            if not all_truncated:
                team.left |= truncated
            team.left |= {m for m in members if terminateds.get(m)}
            if not all_terminated and team.left.issuperset(members):
                (out_truncateds if truncated else out_terminateds)[team_id] = True
                # Who was truncated is still there to be seen: its value is bootstrapped.
                team.left -= truncated
                just_done.add(team_id)
        ended = all_terminated or all_truncated
        out_observations, out_infos = self._observe(observations, infos, ended, just_done)
        for team_id in just_done:
            self._teams[team_id].is_done = True
        self.agents = [
            a for a in self.possible_agents if a not in self._teams or not self._teams[a].is_done
        ]
        return out_observations, out_rewards, out_terminateds, out_truncateds, out_infos

    def render(self) -> Any:
        return self.env.render()

    def close(self) -> None:
        self.env.close()

    def _observe(
        self,
        observations: Mapping[str, Any],
        infos: Mapping[str, Any],
        ended: bool,
        just_done: set[str] | frozenset[str] = frozenset(),
    ) -> tuple[dict[str, Any], dict[str, Any]]:
        out = {a: o for a, o in observations.items() if a not in self._team_of}
        out_infos = {a: i for a, i in infos.items() if a not in self._team_of}
        for team_id, team in self._teams.items():
            if team.is_done:
                continue
            present = {
                m: observations[m]
                for m in team.spec.members
                if m in observations and m not in team.left
            }
            team.acting = list(present)
            # A team none of whose members is asked now waits; its rewards add up meanwhile.
            if not present and not ended and team_id not in just_done:
                continue
            masks: dict[str, Any] = {}
            for member, value in present.items():
                reader = team.readers[member]
                if reader.has_mask:
                    masks[member] = value[ACTION_MASK]
                if reader.state_space is not None:  # the same in all of them
                    team.state = reader.read_state(value)
                present[member] = reader.read(value)
            state = team.state if self._read_state is None else self._read_state(self.env)
            out[team_id] = team.spec.observe(present, masks or None, state, team.last_actions)
            out_infos[team_id] = {m: infos[m] for m in team.spec.members if m in infos}
        return out, out_infos


class _Reader:
    """Takes a member's observation apart: what is its own, its mask, the state."""

    def __init__(self, space: spaces.Space) -> None:
        self.has_mask = False
        self.state_space: spaces.Space | None = None
        self._keys: list[str] | None = None
        if isinstance(space, spaces.Dict):
            own = [key for key in space.spaces if key not in (ACTION_MASK, STATE)]
            self.has_mask = ACTION_MASK in space.spaces
            # A state alone is what the agent sees, whatever it is called.
            if own:
                self.state_space = space.spaces.get(STATE)
            elif STATE in space.spaces:
                own = [STATE]
            self._keys = own
            space = (
                space.spaces[own[0]]
                if len(own) == 1
                else spaces.Dict({key: space.spaces[key] for key in own})
            )
        self._space = space
        self.space: spaces.Space = _flat_space(space)

    def read(self, value: Any) -> Any:
        """The member's own observation, flat."""
        if self._keys is not None:
            value = (
                value[self._keys[0]]
                if len(self._keys) == 1
                else {key: value[key] for key in self._keys}
            )
        return value if self.space is self._space else spaces.flatten(self._space, value)

    def read_state(self, value: Any) -> np.ndarray:
        """The global state in it, flat."""
        assert self.state_space is not None
        return np.asarray(spaces.flatten(self.state_space, value[STATE]), np.float32)


def _flat_space(space: spaces.Space) -> spaces.Space:
    if isinstance(space, spaces.Box) and len(space.shape) == 1:
        return space
    return spaces.flatten_space(space) if space.is_np_flattenable else space


def _observed_state_size(team_id: str, readers: Mapping[str, _Reader]) -> int | None:
    sizes = {
        member: None if reader.state_space is None else int(spaces.flatdim(reader.state_space))
        for member, reader in readers.items()
    }
    first = next(iter(sizes))
    for member, size in sizes.items():
        if size != sizes[first]:
            raise TeamProblem(
                f"group {team_id!r} has one state, but agent {first!r} observes {sizes[first]} "
                f"numbers of it and agent {member!r} {size}; give all members the same 'state', "
                "or none"
            )
    return sizes[first]
