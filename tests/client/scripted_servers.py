"""Transports that answer by a script and log every call, in one order over all servers."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np
from msgspec.structs import replace

from muxrl.client import MultiplexingClient
from muxrl.client.adapters.simulation import StepResult
from muxrl.client.env_loop import EnvLoop, EpisodeResult
from muxrl.client.errors import ServerUnavailable
from muxrl.client.transport import Transport
from muxrl.protocol import PROTOCOL_VERSION
from muxrl.protocol.messages import (
    Aborted,
    AbortEpisode,
    Actions,
    AgentInfo,
    AnyItem,
    AnyReply,
    Ended,
    EndEpisode,
    Refused,
    ServerSpec,
    Started,
    StartEpisode,
)
from muxrl.protocol.spaces import Box, Discrete, Space

Script = Callable[[AnyItem], AnyReply | None]
Log = list[tuple[str, str]]
OBSERVED = Box((1,))
ALL = {"a": [1.0], "b": [2.0], "c": [3.0]}
"""What the agents of the fixtures' two servers observe."""


def spec(
    server_id: str,
    agents: Iterable[str],
    state_size: int | None = None,
    space: Space = OBSERVED,
) -> ServerSpec:
    return ServerSpec(
        PROTOCOL_VERSION,
        server_id,
        "PPO",
        {a: AgentInfo("default", space, Discrete(9)) for a in agents},
        state_size=state_size,
    )


class Server(Transport):
    """A server in the same process; its actions are the texts ``server_id:agent:t``.

    Args:
        log: shared by all servers of a test; every call is appended to it.
        script: answers an item in the server's place, unless it returns None.
    """

    def __init__(
        self,
        server_id: str,
        agents: Iterable[str],
        log: Log,
        script: Script = lambda item: None,
        state_size: int | None = None,
        *,
        takes_seed: bool = False,
        space: Space = OBSERVED,
    ) -> None:
        self.server_id = server_id
        self.script = script
        self.items: list[AnyItem] = []
        self.frames: list[list[AnyItem]] = []
        self.open: dict[str, dict[str, float]] = {}
        self.steps: dict[str, int] = {}
        self.is_lost = False
        self.is_lost_on_receive = False
        self.is_closed = False
        self._spec = replace(spec(server_id, agents, state_size, space), takes_seed=takes_seed)
        self._log = log
        self._replies: list[AnyReply] | None = None

    def fetch_spec(self) -> ServerSpec:
        return self._spec

    def send(self, items: Sequence[AnyItem]) -> None:
        self._log.append(("send", self.server_id))
        assert self._replies is None, "the answer to the last frame was never received"
        if self.is_lost:
            raise ServerUnavailable(f"{self.server_id} is gone", server_id=self.server_id)
        self.frames.append(list(items))
        self._replies = [self._answer(item) for item in items]

    def receive(self, patience_s: float | None = None) -> list[AnyReply]:
        self._log.append(("receive", self.server_id))
        assert self._replies is not None, "nothing was sent"
        replies, self._replies = self._replies, None
        if self.is_lost_on_receive:
            self.is_lost = True
            raise ServerUnavailable(f"{self.server_id} is gone", server_id=self.server_id)
        return replies

    def close(self) -> None:
        self.is_closed = True

    def of(self, kind: type[Any], episode_id: str | None = None) -> list[Any]:
        """Returns the received items of one kind, of one episode or of all."""
        return [
            item
            for item in self.items
            if isinstance(item, kind) and episode_id in (None, item.episode_id)
        ]

    def _answer(self, item: AnyItem) -> AnyReply:
        self.items.append(item)
        scripted = self.script(item)
        if scripted is not None:
            return scripted
        episode_id = item.episode_id
        if isinstance(item, AbortEpisode):
            self.open.pop(episode_id, None)
            return Aborted(episode_id)
        if isinstance(item, StartEpisode):
            self.open[episode_id], self.steps[episode_id] = {}, 0
            return Started(episode_id)
        if episode_id not in self.open:
            return Refused(episode_id, 410, "it was never started here")
        returns = self.open[episode_id]
        assert item.t == self.steps[episode_id]
        for agent, reward in (*item.rewards.items(), *item.late_rewards.items()):
            returns[agent] = returns.get(agent, 0.0) + reward
        if isinstance(item, EndEpisode):
            return Ended(episode_id, item.t, self.open.pop(episode_id))
        self.steps[episode_id] += 1
        return Actions(
            episode_id, item.t, {a: f"{self.server_id}:{a}:{item.t}" for a in item.observations}
        )


def refusing(kind: type[Any], **fields: Any) -> Script:
    """Returns a script that refuses items of one kind whose fields have these values."""

    def script(item: AnyItem) -> AnyReply | None:
        if isinstance(item, kind) and all(getattr(item, k) == v for k, v in fields.items()):
            return Refused(item.episode_id, 422, "no such luck", "a", "Box(1,)", "shape (2,)")
        return None

    return script


class World:
    """Two servers, "left" of agent a and "right" of agent b, and their client.

    Args:
        kind: the servers' class.
        script: the left server's.
        right: the right server's agents.
        space: what agents observe.
    """

    def __init__(
        self,
        kind: type[Server] = Server,
        script: Script = lambda item: None,
        right: str = "b",
        space: Space = OBSERVED,
    ) -> None:
        self.log: Log = []
        self.left = kind("left", "a", self.log, script, space=space)
        self.right = kind("right", right, self.log, state_size=1, space=space)
        self.client = MultiplexingClient([self.left, self.right])
        self.results: list[EpisodeResult] = []

    def play(
        self,
        simulations: Any,
        seeds: Iterable[int] | None = None,
        should_stop: Callable[[], bool] = lambda: False,
        **how: Any,
    ) -> EnvLoop:
        """Plays simulations, or a vector simulation; returns the loop."""
        drawn = None if seeds is None else iter(seeds)
        loop = EnvLoop(simulations, self.client, seeds=drawn, **how)
        loop.run(self.results.append, should_stop)
        return loop


class CountingSimulation:
    """Steps until all agents terminate after `num_steps`; each is paid its own share of the seed.

    Each step sleeps `pause_s`.
    """

    def __init__(
        self,
        agents: str = "ab",
        num_steps: int = 3,
        raises_at: int | None = None,
        pause_s: float = 0.0,
    ) -> None:
        self.possible_agents = tuple(agents)
        self.observation_spaces = {a: Box((1,)) for a in agents}
        self.action_spaces = {a: Discrete(9) for a in agents}
        self.state_size = 1
        self.seeds: list[int | None] = []
        self.actions: list[dict[str, Any]] = []
        self._num_steps = num_steps
        self._raises_at = raises_at
        self._pause_s = pause_s
        self._t = 0
        self._played = 0

    def reset(
        self, seed: int | None = None, options: Mapping[str, float] | None = None
    ) -> tuple[dict[str, Any], dict[str, dict[str, Any]]]:
        self.seeds.append(seed)
        self._t = 0
        return self._observations(), {}

    def step(self, actions: dict[str, Any]) -> StepResult:
        if self._played == self._raises_at:
            raise ZeroDivisionError("the physics exploded")
        if self._pause_s:
            time.sleep(self._pause_s)
        self.actions.append(actions)
        self._t += 1
        self._played += 1
        is_over = self._t == self._num_steps
        rewards = {a: 0.5 + i for i, a in enumerate(self.possible_agents)}
        done = dict.fromkeys(self.possible_agents, True) if is_over else {}
        seen = self._observations()
        return StepResult(
            {} if is_over else seen, rewards, done, {}, seen if done else {}, {}, is_over
        )

    def state(self) -> np.ndarray:
        return np.array([self._t], np.float32)

    def close(self) -> None:
        """Nothing to free."""

    def _observations(self) -> dict[str, Any]:
        return {a: np.array([self._t], np.float32) for a in self.possible_agents}


class TimeLimit(CountingSimulation):
    """Truncates its agents at the end instead of terminating them."""

    def step(self, actions: dict[str, Any]) -> StepResult:
        result = super().step(actions)
        return result._replace(terminations={}, truncations=result.terminations)
