"""The open episodes of a simulation that steps many copies of itself at once.

In each step all copies go to a server as one array for each kind of space (`StepRows`), and its
actions come back likewise: what a step costs hardly depends on how many copies there are. Episodes
begin and end one by one, as everywhere else.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from muxrl.client.adapters.vector_simulation import Rows
from muxrl.client.errors import EpisodeMisuse
from muxrl.client.joint_episode import JointEpisode
from muxrl.client.multiplexer import MultiplexingClient
from muxrl.client.outbox import Outbox
from muxrl.protocol.errors import MalformedMessage
from muxrl.protocol.messages import ActionRows, Mode, Refused, StepRows
from muxrl.protocol.rows import Lineup, each_array, empty, put
from muxrl.protocol.spaces import DictSpace, Space, TupleSpace, leaf_type


@dataclass(frozen=True)
class _Side:
    """What one server has of every copy."""

    lineup: Lineup
    is_all: bool
    """Whether these are all agents of the server, in its order."""
    columns: NDArray[np.int64]
    """Of its agents among all."""
    state_size: int | None


class VectorEpisodes:
    """An episode of each copy that has one, on all servers.

    All agents act in each step of an episode. ``N`` is the number of copies.

    Args:
        client: of the servers.
        agents: who acts in a copy.
        num_copies: N.
        mode: "train", or "eval": measured, never trained on.
        should_explore: None: in mode "train" only; a dict: by server id.

    Raises:
        AssignmentError: an agent belongs to no server.
    """

    def __init__(
        self,
        client: MultiplexingClient,
        agents: Sequence[str],
        num_copies: int,
        *,
        mode: Mode = "train",
        should_explore: bool | Mapping[str, bool] | None = None,
    ) -> None:
        client.check_agents(agents)
        self._client = client
        self._agents = tuple(agents)
        self._mode: Mode = mode
        self._should_explore = should_explore
        self.open: list[JointEpisode | None] = [None] * num_copies
        """The episode of each copy."""
        self.is_open: NDArray[np.bool_] = np.zeros(num_copies, bool)
        """Which copies have one."""
        self._ids = [""] * num_copies
        self.num_steps: NDArray[np.int64] = np.zeros(num_copies, np.int64)
        """Env steps of each episode so far."""
        self._rewards = np.zeros((num_copies, len(agents)))
        self._returns = np.zeros((num_copies, len(agents)))
        self._asked: NDArray[np.int64] = np.zeros(0, np.int64)
        """Copies whose steps were sent last."""
        self._sides: dict[str, _Side] = {}
        self._idle: list[str] = []
        """Servers that have none of the agents, and are told that the episodes are still played."""
        self.actions: dict[str, Rows] = {}
        """By agent id ``[N, ...]``: the last ones of each copy. The arrays are new in each step."""
        place_of = {agent_id: place for place, agent_id in enumerate(agents)}
        for server_id, spec in client.specs.items():
            mine = tuple(agent_id for agent_id in spec.agents if agent_id in place_of)
            if not mine:
                self._idle.append(server_id)
                continue
            columns = np.array([place_of[agent_id] for agent_id in mine])
            lineup = Lineup(mine, spec.agents)
            is_all = len(mine) == len(spec.agents)
            self._sides[server_id] = _Side(lineup, is_all, columns, spec.state_size)
            for kind in lineup.acted:
                rows = each_array(np.zeros_like, empty(kind.space, (num_copies, len(kind.agents))))
                for place, agent_id in enumerate(kind.agents):
                    self.actions[agent_id] = _column(kind.space, rows, place, num_copies)

    @property
    def num_open(self) -> int:
        """How many copies have an episode."""
        return int(np.count_nonzero(self.is_open))

    def episode_at(self, row: int) -> JointEpisode:
        """Returns the episode whose step was sent last in that row."""
        episode = self.open[self._asked[row]]
        assert episode is not None
        return episode

    def begin(self, copy: int, outbox: Outbox, seed: int | None = None) -> JointEpisode:
        """Opens the next episode of a copy, and adds its starts."""
        episode = self._client.new_episode(
            self._mode, should_explore=self._should_explore, seed=seed
        )
        self.open[copy], self.is_open[copy] = episode, True
        self._ids[copy] = episode.episode_id
        self.num_steps[copy] = 0
        self._rewards[copy] = self._returns[copy] = 0.0
        outbox.add(episode, episode.start())
        return episode

    def observe(
        self,
        observations: Mapping[str, Rows],
        outbox: Outbox,
        state: Rows | None = None,
        copies: NDArray[np.int64] | None = None,
    ) -> None:
        """Adds the next step of copies that have an episode.

        Args:
            observations: by agent id ``[N, ...]``; what other copies observe is not looked at.
            outbox: nothing else may add rows to it.
            state: float32 ``[N, state_size]``, for servers that ask for the global state.
            copies: whose; None: of all that have an episode.

        Raises:
            EpisodeMisuse: an agent is missing, or its array is of another shape or type.
        """
        asked = np.flatnonzero(self.is_open) if copies is None else copies
        self._asked = asked
        if not len(asked):
            return
        num_copies = len(self.open)
        is_whole = len(asked) == num_copies
        where = slice(None) if is_whole else asked
        ids = list(self._ids) if is_whole else [self._ids[copy] for copy in asked.tolist()]
        t = self.num_steps[asked]
        if self._idle:
            for episode in filter(None, self.open):
                outbox.add(episode, episode.keep_alive(self._idle))
        for server_id, side in self._sides.items():
            rows = StepRows(
                episode_ids=ids,
                t=t,
                observations=[
                    _joined(
                        kind.space, [observations.get(a) for a in kind.agents], kind.agents,
                        num_copies, where,
                    )
                    for kind in side.lineup.observed
                ],
                agents=[] if side.is_all else list(side.lineup.agents),
                rewards=np.ascontiguousarray(self._rewards[where][:, side.columns]),
            )  # fmt: skip
            if side.state_size is not None:
                shape = (num_copies, side.state_size)
                if not isinstance(state, np.ndarray) or state.shape != shape:
                    expected = _told(shape, "float32")
                    raise EpisodeMisuse(f"the state has to be {expected}{_got(state)}")
                rows.state = np.ascontiguousarray(state[where], np.float32)
            outbox.add_rows(self, server_id, rows)

    def hear_rows(self, server_id: str, reply: ActionRows) -> dict[int, Refused]:
        """Takes in a server's actions for the steps that were sent last.

        Returns:
            By row, what it refused.

        Raises:
            MalformedMessage: they are not those asked for.
        """
        side = self._sides[server_id]
        num_rows = len(self._asked)
        is_whole = num_rows == len(self.open)
        if not reply.replies:
            if len(reply.actions) != len(side.lineup.acted):
                raise MalformedMessage("it has rows of another number of kinds of actions")
            for kind, rows in zip(side.lineup.acted, reply.actions, strict=True):
                for place, agent_id in enumerate(kind.agents):
                    mine = _column(kind.space, rows, place, num_rows)
                    if is_whole:
                        self.actions[agent_id] = mine
                    else:
                        self.actions[agent_id] = each_array(np.copy, self.actions[agent_id])
                        put(self.actions[agent_id], self._asked, mine)
            return {}
        if len(reply.replies) != num_rows:
            raise MalformedMessage(f"{len(reply.replies)} replies came to {num_rows} steps")
        refused: dict[int, Refused] = {}
        for agent_id in side.lineup.agents:
            self.actions[agent_id] = each_array(np.copy, self.actions[agent_id])
        for row, (copy, one) in enumerate(zip(self._asked.tolist(), reply.replies, strict=True)):
            if isinstance(one, Refused):
                refused[row] = one
                continue
            for agent_id in side.lineup.agents:
                try:
                    put(self.actions[agent_id], copy, one.actions[agent_id])
                except (KeyError, ValueError, TypeError) as error:
                    raise MalformedMessage(f"no action of agent {agent_id!r}: {error}") from None
        return refused

    def log(self, rewards: Mapping[str, NDArray[Any]]) -> None:
        """Keeps what followed from the last actions of the copies that have an episode.

        Args:
            rewards: by agent id float ``[N]``; those of other copies are not looked at. An agent
                that is left out has 0.

        Raises:
            EpisodeMisuse: rewards are of another shape, or of an unknown agent.
        """
        num_copies = len(self.open)
        self._rewards = np.zeros_like(self._rewards)
        for place, agent_id in enumerate(self._agents):
            if agent_id not in rewards:
                continue
            mine = np.asarray(rewards[agent_id])
            if mine.shape != (num_copies,) or mine.dtype.kind not in "fiub":
                raise EpisodeMisuse(
                    f"rewards of agent {agent_id!r} have to be {_told((num_copies,), 'float64')}"
                    f"{_got(mine)}"
                )
            self._rewards[:, place] = mine
        if unknown := rewards.keys() - set(self._agents):
            raise EpisodeMisuse(f"rewards of {sorted(unknown)}, who are not among the agents")
        self._rewards[~self.is_open] = 0.0
        self._returns += self._rewards
        self.num_steps += self.is_open

    def end(
        self,
        copy: int,
        outbox: Outbox,
        *,
        is_truncated: bool,
        final_observations: Mapping[str, Any],
        state: Any = None,
        metrics: Mapping[str, Any] | None = None,
    ) -> JointEpisode:
        """Closes the episode of a copy after what was logged last, and adds its ends.

        Args:
            copy: which.
            outbox: where they are added.
            is_truncated: or else its agents are terminated.
            final_observations: the last ones, by agent id; needed if truncated.
            state: float32 ``[state_size]``, likewise.
            metrics: what only the simulation knows of the episode.
        """
        episode = self.open[copy]
        assert episode is not None
        rewards = dict(zip(self._agents, self._rewards[copy].tolist(), strict=True))
        returns = dict(zip(self._agents, self._returns[copy].tolist(), strict=True))
        episode.played(self._sides, int(self.num_steps[copy]), rewards, returns)
        items = episode.end(
            final_observations,
            is_truncated=is_truncated,
            state=state if is_truncated else None,
            metrics=metrics,
        )
        outbox.add(episode, items)
        self.leave(copy)
        return episode

    def leave(self, copy: int) -> None:
        """Leaves an episode that is closed already."""
        self.open[copy], self.is_open[copy] = None, False


def _joined(
    space: Space, values: Sequence[Rows], agents: Sequence[str], num_copies: int, where: Any
) -> Any:
    """Returns what agents of a kind observe, ``[E, A, ...]``."""
    if isinstance(space, DictSpace):
        for agent_id, one in zip(agents, values, strict=True):
            if not isinstance(one, Mapping) or one.keys() != space.spaces.keys():
                raise _misfit(agent_id, f"a dict of {list(space.spaces)}", one)
        return {
            key: _joined(sub, [one[key] for one in values], agents, num_copies, where)
            for key, sub in space.spaces.items()
        }
    if isinstance(space, TupleSpace):
        for agent_id, one in zip(agents, values, strict=True):
            if not isinstance(one, tuple | list) or len(one) != len(space.spaces):
                raise _misfit(agent_id, f"a tuple of {len(space.spaces)} arrays", one)
        return [
            _joined(sub, [one[i] for one in values], agents, num_copies, where)
            for i, sub in enumerate(space.spaces)
        ]
    dtype, shape = leaf_type(space)
    joined = np.empty((num_copies, len(agents), *shape), dtype)
    for place, (agent_id, one) in enumerate(zip(agents, values, strict=True)):
        mine = one if isinstance(one, np.ndarray) else np.asarray(one)
        is_same_kind = mine.dtype.kind == dtype.kind == "f" or (
            mine.dtype.kind in "iub" and np.can_cast(mine.dtype, dtype)
        )
        if mine.shape != (num_copies, *shape) or not is_same_kind:
            raise _misfit(agent_id, _told((num_copies, *shape), dtype.name), one)
        joined[:, place] = mine
    return joined[where]


def _misfit(agent_id: str, expected: str, got: Any) -> EpisodeMisuse:
    return EpisodeMisuse(
        f"observations of agent {agent_id!r} in all copies have to be {expected}{_got(got)}"
    )


def _told(shape: tuple[int, ...], dtype: str) -> str:
    return f"an array of {dtype}, shape {shape}"


def _got(value: Any) -> str:
    if isinstance(value, np.ndarray):
        return f", got {value.dtype} of shape {value.shape}"
    return f", got {'none' if value is None else type(value).__name__}"


def _column(space: Space, rows: Any, place: int, num_rows: int) -> Rows:
    """Returns one agent's actions.

    Raises:
        MalformedMessage: there is none for each episode.
    """
    if isinstance(space, DictSpace):
        return {key: _column(s, rows[key], place, num_rows) for key, s in space.spaces.items()}
    if isinstance(space, TupleSpace):
        return tuple(
            _column(s, r, place, num_rows) for s, r in zip(space.spaces, rows, strict=True)
        )
    _, shape = leaf_type(space)
    if not isinstance(rows, np.ndarray) or rows.ndim < 2 or rows.shape[1] <= place:
        raise MalformedMessage("actions of an agent are missing")
    if (len(rows), *rows.shape[2:]) != (num_rows, *shape):
        raise MalformedMessage(f"actions have the shape {rows.shape}")
    return rows[:, place]
