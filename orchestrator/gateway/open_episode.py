"""An open episode of a gateway, and the evaluation that it may be of."""

from __future__ import annotations

import math
import threading
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from muxrl.client.env_loop import EpisodeResult
from muxrl.client.episode import Episode
from muxrl.client.episode_parameters import Parameters, draw
from muxrl.client.multiplexer import MultiplexingClient
from muxrl.protocol.errors import OutOfOrder
from muxrl.protocol.messages import Actions, Started, StartEpisode
from muxrl.protocol.rows import Layout, actions_of


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
    started: Started
    """The answer to that."""
    is_training: bool
    client: MultiplexingClient
    joint: Episode
    """On the servers."""
    evaluation: Evaluation | None
    condition: int
    """Of the evaluation."""
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

    def repeated(self) -> Actions:
        """Returns the answer to its last step once more.

        Raises:
            OutOfOrder: there is none yet.
        """
        episode_id, t = self.joint.episode_id, self.t - 1
        if self.last_answer is None:
            raise OutOfOrder(f"t={t} of episode {episode_id} is being answered")
        if isinstance(self.last_answer, tuple):
            self.last_answer = Actions(episode_id, t, actions_of(*self.last_answer))
        return self.last_answer
