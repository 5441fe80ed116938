"""Teams in plain RLlib: an environment whose agents are teams of another environment's agents.

On a policy server `TeamSeat` does the same for simulations elsewhere. In both, a team's
observation has the format of `TeamSpec`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import numpy as np
from gymnasium import spaces
from ray.rllib.env.multi_agent_env import MultiAgentEnv

from muxrl.servers.agents.teams import (
    ACTION_MASK,
    STATE,
    RewardRule,
    TeamProblem,
    TeamSpec,
    team_reward,
)


class _Team:
    """The state of one team during an episode."""

    def __init__(self, spec: TeamSpec, readers: dict[str, MemberReader]) -> None:
        self.spec = spec
        self.readers = readers
        self.start()

    def start(self) -> None:
        self.acting: list[str] = []
        self.last_actions: dict[str, int] = {}
        self.departed: set[str] = set()
        self.is_done = False
        self.state: np.ndarray | None = None


class TeamEnv(MultiAgentEnv):
    """Makes teams out of a `MultiAgentEnv`'s agents, for RLlib's own env runners.

    It replaces ``MultiAgentEnv.with_agent_groups`` of RLlib's old QMIX and reads the same
    observations: a ``Dict`` of the member's own observation, under any key, with or without an
    ``action_mask`` and a global ``state`` (RLlib's ``ENV_STATE``). An observation that is not a
    one-dimensional ``Box`` is flattened, integers one-hot. Agents in no group pass through.

    A team is terminated once all of its members are, and truncated once none is left and at least
    one was truncated. ``__all__`` is passed on without flags of agents: RLlib takes an episode in
    which every agent is flagged for terminated and would not bootstrap. So in a step after which
    nobody is left, truncations become ``__all__``, even if `env` did not set it; agents that
    terminate in that step keep their flag. A reward for a team that has ended is dropped, because
    RLlib has no place for it.

    Args:
        env: the environment to wrap.
        groups: ids of the teams, and of their members in order.
        reward: how a team's reward is made of its members'; see `team_reward`.
        state: returns the global state of `env`, ``[state_size]``. None: the state that the
            members observe or, if they observe none, their observations side by side.
        state_size: its length.
        marks_departed: see `TeamSpec`; for teams without a state whose members come late and leave.

    Raises:
        TeamProblem: an unknown agent, an agent in two groups, spaces that cannot form a team, or
            a state that only some of its members observe.
    """

    def __init__(
        self,
        env: MultiAgentEnv,
        groups: Mapping[str, Iterable[str]],
        *,
        reward: RewardRule = "sum",
        state: Callable[[MultiAgentEnv], Any] | None = None,
        state_size: int | None = None,
        marks_departed: bool = False,
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
            readers = {m: MemberReader(env.get_observation_space(m)) for m in members}
            spec = TeamSpec(
                members,
                {m: reader.space for m, reader in readers.items()},
                {m: env.get_action_space(m) for m in members},
                observed_state_size(team_id, readers) if state_size is None else state_size,
                marks_departed,
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
        self._open: set[str] = set()
        """Agents and teams of this episode that RLlib has seen, but not yet ended."""
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
        out_observations, out_infos = self._observe(observations, infos or {}, ended=False)
        self._open = set(out_observations)
        return out_observations, out_infos

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
            team.departed |= {m for m in members if terminateds.get(m)}
            truncated = {m for m in members if truncateds.get(m) and m not in team.departed}
            if not all_truncated:
                team.departed |= truncated
            if not all_terminated and team.departed.issuperset(members):
                (out_truncateds if truncated else out_terminateds)[team_id] = True
                # A truncated member is still observed, so its value is bootstrapped.
                team.departed -= truncated
                just_done.add(team_id)
        ended = all_terminated or all_truncated
        out_observations, out_infos = self._observe(observations, infos, ended, just_done)
        for team_id in just_done:
            self._teams[team_id].is_done = True
        self.agents = [
            a for a in self.possible_agents if a not in self._teams or not self._teams[a].is_done
        ]
        flagged = {a for flags in (out_terminateds, out_truncateds) for a in flags if flags[a]}
        # With a truncated `__all__`, RLlib needs observations of terminated agents, too.
        if any(out_truncateds.values()) and self._open <= flagged & out_observations.keys():
            out_truncateds = {"__all__": True}
        self._open = (self._open | out_observations.keys()) - flagged
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
                if m in observations and m not in team.departed
            }
            team.acting = list(present)
            # A team none of whose members acts now waits; its rewards add up meanwhile.
            if not present and not ended and team_id not in just_done:
                continue
            masks: dict[str, Any] = {}
            for member, value in present.items():
                reader = team.readers[member]
                is_final = ended or team_id in just_done  # nobody acts, and no mask is needed
                if reader.has_mask and (np.any(value[ACTION_MASK]) or not is_final):
                    masks[member] = value[ACTION_MASK]
                if reader.state_space is not None:  # all members observe the same one
                    team.state = reader.read_state(value)
                present[member] = reader.read(value)
            state = team.state if self._read_state is None else self._read_state(self.env)
            out[team_id] = team.spec.observe(
                present, masks or None, state, team.last_actions, team.departed
            )
            out_infos[team_id] = {m: infos[m] for m in team.spec.members if m in infos}
        return out, out_infos


class MemberReader:
    """Splits a member's observation: its own part, its action mask, the global state.

    Attributes:
        space: of the member's own observation, flat.
        has_mask: whether there is an ``action_mask``.
        state_space: of the global ``state``; None if there is none.

    Args:
        space: of the whole observation.
    """

    def __init__(self, space: spaces.Space) -> None:
        self.has_mask = False
        self.state_space: spaces.Space | None = None
        self._keys: list[str] | None = None
        if isinstance(space, spaces.Dict):
            own = [key for key in space.spaces if key not in (ACTION_MASK, STATE)]
            self.has_mask = ACTION_MASK in space.spaces
            # Without any other key, the "state" is the agent's own observation.
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
        """Returns the member's own observation, flat."""
        if self._keys is not None:
            value = (
                value[self._keys[0]]
                if len(self._keys) == 1
                else {key: value[key] for key in self._keys}
            )
        return value if self.space is self._space else spaces.flatten(self._space, value)

    def read_state(self, value: Any) -> np.ndarray:
        """Returns the global state, flat, float32."""
        assert self.state_space is not None
        return np.asarray(spaces.flatten(self.state_space, value[STATE]), np.float32)


def _flat_space(space: spaces.Space) -> spaces.Space:
    if isinstance(space, spaces.Box) and len(space.shape) == 1:
        return space
    return spaces.flatten_space(space) if space.is_np_flattenable else space


def observed_state_size(team_id: str, readers: Mapping[str, MemberReader]) -> int | None:
    """Returns the length of the state that all members of a team observe, None for none.

    Raises:
        TeamProblem: some observe another length, or none.
    """
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
