"""An `EpisodeStore` without network and without an algorithm: its actions are scripted."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest

from muxrl.protocol.errors import ProtocolError
from muxrl.protocol.messages import (
    Aborted,
    AbortEpisode,
    Actions,
    Ended,
    EndEpisode,
    Started,
    StartEpisode,
    Step,
)
from muxrl.protocol.rows import Layout, rows_of
from muxrl.protocol.spaces import Box, Discrete, MultiDiscrete, Space
from muxrl.servers.agents.observing import Observing
from muxrl.servers.agents.seating import TEAMS, Seating
from muxrl.servers.agents.seats import Seat
from muxrl.servers.config import AgentPlan, LimitsConfig, ServerPlan
from muxrl.servers.episodes.batches import BatchRule
from muxrl.servers.episodes.blocks import Awaited, Block, Chosen
from muxrl.servers.episodes.feed import Feed
from muxrl.servers.episodes.reward_scale import RewardScale
from muxrl.servers.episodes.store import EpisodeStore
from muxrl.servers.episodes.trajectories import Chunk, Trajectory

SEES = Box((2,))
ACTS = Discrete(3)


def make_plan(
    agents: str | dict[str, Space] = "ab",
    groups: dict[str, tuple[str, ...]] | None = None,
    team_reward: Any = "sum",
    state_size: int | None = None,
    acts: Space | dict[str, Space] = ACTS,
    *,
    shares_policy: bool = True,
    **fields: Any,
) -> ServerPlan:
    """Returns the plan of a server for these agents; members of groups share the group's policy.

    Args:
        agents: their names, or their observation spaces by name.
        groups: by name, the members of each.
        team_reward: see `ServerConfig`.
        state_size: of the global state.
        acts: the action space of all agents, or by name those of some.
        shares_policy: whether agents in no group share one policy.
        fields: others of the plan, or of its limits.
    """
    sees = agents if isinstance(agents, dict) else dict.fromkeys(agents, SEES)
    does = acts if isinstance(acts, dict) else dict.fromkeys(sees, acts)
    groups = groups or {}
    group_of = {member: group for group, members in groups.items() for member in members}
    known = [field.name for field in dataclasses.fields(LimitsConfig)]
    limits = LimitsConfig(**{name: fields.pop(name) for name in known if name in fields})
    given = {"server_id": "scripted", "algorithm": "PPO", "while_learning": "wait"}
    return ServerPlan(
        agents={
            agent: AgentPlan(
                group_of.get(agent, "default" if shares_policy else agent),
                space,
                does.get(agent, ACTS),
                group_of.get(agent),
            )
            for agent, space in sees.items()
        },
        groups=groups,
        state_size=state_size,
        team_reward=team_reward,
        limits=limits,
        **{"host": "127.0.0.1", **given, **fields},
    )


def seat_of(agent: AgentPlan, seating: Seating | None = None) -> Seat:
    """Returns the seat of agent "a", which is alone on its server."""
    plan = dataclasses.replace(make_plan("a"), agents={"a": agent})
    return (seating or Seating()).make_seats(plan)["a"]


class KeptFeed(Feed):
    """A feed that keeps every batch put into it."""

    def __init__(self) -> None:
        super().__init__(max_ahead=0)
        self.batches: list[list[Chunk]] = []

    def put(self, batch: list[Chunk]) -> None:
        self.batches.append(batch)


class ScriptedStore:
    """A store, its clock, and a scripted algorithm that takes action ``t % 3``."""

    def __init__(
        self,
        plan: ServerPlan,
        batch_env_steps: int = 10**9,
        needs_whole_episodes: bool = False,
        max_sequence_steps: int | None = None,
        seating: Seating | None = None,
        reward_scales: Mapping[str, RewardScale] | None = None,
        *,
        cuts_after_frames: bool = False,
    ) -> None:
        self.plan = plan
        self.feed = KeptFeed()
        self.now = 0.0
        self.weights_seq_no = 0
        self.observing = Observing(plan)
        seats = (seating or TEAMS).make_seats(plan, self.observing)
        self.seats = seats
        self.store = EpisodeStore(
            plan,
            seats,
            self.feed,
            BatchRule(
                batch_env_steps,
                needs_whole_episodes,
                max_sequence_steps,
                cuts_after_frames=cuts_after_frames,
            ),
            reward_scales=reward_scales,
            observing=self.observing if self.observing.normalizes else None,
        )

    def start(self, episode_id: str = "e", **kwargs: Any) -> Started:
        reply = self.store.accept(StartEpisode(episode_id, **kwargs), self.now)
        assert isinstance(reply, Started)
        return reply

    def step(self, t: int, agents: str = "ab", episode_id: str = "e", **kwargs: Any) -> Actions:
        """Sends a step with the observations of these agents; returns the actions."""
        observations = {agent: seen(agent, t) for agent in agents}
        return self.send(Step(episode_id, t, **{"observations": observations, **kwargs}))

    def send(self, item: Step) -> Actions:
        """Sends a step; returns the actions."""
        outcome = self.store.accept(item, self.now)
        return self.act(outcome) if isinstance(outcome, Awaited) else answered(outcome)

    def act(self, awaited: Awaited) -> Actions:
        """Chooses the actions that a step waits for, in place of a trainer; returns them."""
        if not awaited.is_ready:
            awaited.blocks[0].finish(self.choose(awaited.blocks[0]), self.weights_seq_no)
        return awaited.answer()

    def choose(self, block: Block) -> list[Chosen]:
        """Returns an action for each seat of a step."""
        chosen = []
        for one in block.served.parts:
            seat = one.seats[0]
            lead = len(block), len(one.seats)
            t = np.asarray(block.t)[:, None] % 3
            actions: Any = np.broadcast_to(t, lead)
            if seat.seat_id in self.plan.groups:
                actions = np.broadcast_to(t[..., None], (*lead, len(seat.members)))
            if isinstance(seat.action_space, MultiDiscrete) and seat.seat_id in seat.members:
                actions = np.repeat(actions[..., None] % 2, len(seat.action_space.nvec), axis=-1)
            if isinstance(seat.action_space, Box):  # one-hot, as MADDPG's actions
                actions = np.eye(seat.action_space.shape[1], dtype=np.float32)[actions]
            chosen.append(Chosen(np.array(actions), {}))
        return chosen

    def end(self, t: int, episode_id: str = "e", **kwargs: Any) -> Ended:
        reply = self.store.accept(EndEpisode(episode_id, t, **kwargs), self.now)
        self.store.finish_frame()
        assert isinstance(reply, Ended)
        return reply

    def abort(self, episode_id: str = "e") -> Aborted | Ended:
        reply = self.store.accept(AbortEpisode(episode_id, "enough"), self.now)
        self.store.finish_frame()
        assert isinstance(reply, Aborted | Ended)
        return reply

    def refused(self, item: Any, kind: type[ProtocolError]) -> ProtocolError:
        """Returns the refusal of an item that cannot be accepted."""
        with pytest.raises(kind) as refusal:
            self.store.accept(item, self.now)
        return refusal.value

    def flags(self) -> dict[str, tuple[bool, bool]]:
        """Returns (terminated, truncated) of the only recorded episode, as "", and of its
        agents."""
        (chunk,) = self.chunks
        ends = {one.key: (one.is_terminated, one.is_truncated) for one in chunk.trajectories}
        return {"": (chunk.is_terminated, chunk.is_truncated), **ends}

    @property
    def chunks(self) -> list[Chunk]:
        """All delivered chunks, then those that wait until their batch is complete."""
        self.store._batches.keep_ended()
        return [chunk for batch in self.feed.batches for chunk in batch] + self.store.pending

    def trajectories(self, key: str) -> list[Trajectory]:
        """Returns the pieces of a seat's life, of all episodes."""
        return [one for chunk in self.chunks for one in chunk.trajectories if one.key == key]

    def recorded(self, seat_id: str, episode_id: str = "e") -> tuple[list[float], list[int], list]:
        """Returns the times a seat observed, its actions and its rewards, over all chunks."""
        times: list[float] = []
        actions: list[int] = []
        rewards: list[float] = []
        for one in self.trajectories(seat_id):
            if one.episode_id != episode_id:
                continue
            observed = [float(np.asarray(o)[1]) for o in one.observations]
            assert len(observed) == len(one) + 1
            if times:
                assert times.pop() == observed[0], "a chunk begins with what ended the last one"
            times += observed
            actions += [int(a) for a in one.actions]
            rewards += [float(r) for r in one.rewards]
        return times, actions, rewards


def open_store() -> ScriptedStore:
    """Returns a store for two agents, with the episode "e" started."""
    store = ScriptedStore(make_plan())
    store.start()
    return store


def seen(agent: str, t: int) -> np.ndarray:
    """Returns what an agent observes at `t`: a number of its own, and `t`."""
    return np.array([ord(agent[0]), t], np.float32)


def count(observing: Observing, observations: Mapping[str, Any], state: Any = None) -> None:
    """Counts a training step in the statistics of observations."""
    kinds = Layout(tuple(observations), observing._agents).observed
    states = None if state is None else np.asarray(state)[None]
    observing.add(kinds, rows_of(kinds, observations), states)


def each(rows: Any) -> list[Any]:
    """Returns recorded rows as a list."""
    if isinstance(rows, Mapping):
        columns = [each(part) for part in rows.values()]
        return [dict(zip(rows, row, strict=True)) for row in zip(*columns, strict=True)]
    return list(rows)


def answered(reply: object) -> Actions:
    assert isinstance(reply, Actions)
    return reply
