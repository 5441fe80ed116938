"""An open episode of a gateway, and the evaluation that it may be of."""

from __future__ import annotations

import math
import threading
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from muxrl.client.env_loop import EpisodeResult
from muxrl.client.episode import Episode
from muxrl.client.episode_parameters import Parameters, draw
from muxrl.client.multiplexer import MultiplexingClient
from muxrl.client.outbox import Outbox
from muxrl.protocol.errors import OutOfOrder, ProtocolError
from muxrl.protocol.messages import Actions, AnyItem, AnyReply, Started, StartEpisode, StepRows
from muxrl.protocol.rows import Layout, actions_of
from muxrl.servers.episodes.counts import EpisodeCounts
from muxrl.servers.episodes.step_check import CheckedStep


@dataclass
class GatewayCounts(EpisodeCounts):
    """What a gateway counts over its training episodes."""

    num_lost: int = 0
    """Closed since a server was lost."""


class Evaluation:
    """Episodes that simulations are to play as evaluations; they do not know it.

    An episode that is begun as training, while one more is wanted, is one of these instead. They
    alternate between the conditions: where others still train, all meet the same weights.

    Args:
        clients: for each condition one of the servers, or of some of them and random actions.
        num_episodes: how many of each condition.
        should_explore: by server, whether actions are sampled as in training, else greedy.
        parameters: of its episodes, see `muxrl.client.episode_parameters.draw`.
        first_seed: of these.
        max_steps: env steps after which an episode is truncated.
    """

    def __init__(
        self,
        clients: Sequence[MultiplexingClient],
        num_episodes: int,
        should_explore: Mapping[str, bool],
        parameters: Mapping[str, Any] | None = None,
        first_seed: int = 0,
        max_steps: float = math.inf,
    ) -> None:
        self.clients = clients
        self.max_steps = max_steps
        self.num_truncated = [0] * len(clients)
        """Episodes that were, by condition."""
        self.should_explore = should_explore
        self.episodes: list[list[EpisodeResult]] = [[] for _ in clients]
        """Those that ended, by condition."""
        self.logged_agents: list[set[str]] = [set() for _ in clients]
        """Agents of whose actions the simulation chose any itself, by condition."""
        self.is_done = threading.Event()
        """All were played, or it is given up."""
        self.to_begin: deque[tuple[int, Parameters]] = deque(
            (condition, draw(parameters or {}, first_seed + i))
            for i in range(num_episodes)
            for condition in range(len(clients))
        )
        """Condition and parameters of the episodes that are still to begin, lost ones again."""
        self._num_left = len(self.to_begin)

    def add(self, condition: int, episode: EpisodeResult) -> None:
        """Receives an episode that has ended."""
        self.episodes[condition].append(episode)
        self._num_left -= 1
        if not self._num_left:
            self.is_done.set()


@dataclass(eq=False)
class OpenEpisode:
    """An open episode: what the simulation has said of it, and what the servers are to be sent."""

    started_by: StartEpisode
    is_training: bool
    client: MultiplexingClient
    joint: Episode
    """On the servers."""
    evaluation: Evaluation | None
    condition: int
    """Of the evaluation."""
    parameters: Parameters
    num_trained: int
    """Env steps of training when it began."""
    last_seen: float
    t: int = 0
    """The step that is awaited next."""
    longest_step_s: float = 0.0
    """That its simulation took."""
    agents_done: set[str] = field(default_factory=set)
    last_answer: Actions | tuple[Layout, list[Any], int] | None = None
    """To its last step, or the rows of many, and where it is there."""

    def see(self, now: float) -> None:
        """Notes that its simulation has spoken."""
        if now - self.last_seen > self.longest_step_s:
            self.longest_step_s = now - self.last_seen
        self.last_seen = now

    def repeated(self, t: int) -> Actions:
        """Returns the answer to its last step once more.

        Raises:
            OutOfOrder: there is none yet.
        """
        if self.last_answer is None:
            raise OutOfOrder(f"t={t} of episode {self.joint.episode_id} is being answered")
        if isinstance(self.last_answer, tuple):
            actions = actions_of(*self.last_answer)
            self.last_answer = Actions(self.joint.episode_id, t, actions)
        return self.last_answer

    @property
    def _is_evaluation(self) -> bool:
        return self.started_by.mode == "train" and not self.is_training

    @property
    def is_idle(self) -> bool:
        """Whether it was to train, began after training, and is of no evaluation."""
        return self._is_evaluation and self.evaluation is None

    @property
    def started(self) -> Started:
        return Started(self.started_by.episode_id, self.parameters, self._is_evaluation)


@dataclass
class Asked:
    """An item, and its answer once there is one; a `ProtocolError` refuses it."""

    item: AnyItem
    answer: AnyReply | ProtocolError | None = None
    steps: list[Asked] = field(default_factory=list)
    """What rows are answered by: of each episode, if they are not answered as a whole."""

    @property
    def episode_ids(self) -> Sequence[str]:
        """Of all episodes that it concerns."""
        item = self.item
        return item.episode_ids if isinstance(item, StepRows) else (item.episode_id,)

    @property
    def unanswered(self) -> list[Asked]:
        """What of it has no answer yet."""
        if self.steps:
            return [one for one in self.steps if one.answer is None]
        return [self] if self.answer is None else []


@dataclass
class Forwarded:
    """An item that the servers have to be asked about."""

    asked: Asked
    episodes: Sequence[OpenEpisode]
    """Of one client."""
    answered: Callable[[], AnyReply | ProtocolError]
    outbox: Outbox = field(default_factory=Outbox)
    step: CheckedStep | None = None
    """Sent with those of other episodes."""
    rows: tuple[Layout, list[Any]] | None = None
    """Of steps in rows, and where their actions are put."""

    @property
    def client(self) -> MultiplexingClient:
        return self.episodes[0].client
