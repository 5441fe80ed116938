"""An open episode of a gateway, and the evaluation to which it may belong."""

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
    """An evaluation of external simulations, which start training episodes as always.

    While the evaluation wants another episode, the next one that a simulation starts as training
    belongs to it instead. Episodes alternate between the conditions: if other episodes train
    meanwhile, all conditions meet the same weights.

    Args:
        clients: for each condition, the client through which its episodes are played.
        num_episodes: how many episodes of each condition.
        should_explore: by server: whether actions are sampled as in training, else greedy.
        parameters: parameters of its episodes, see `muxrl.client.episode_parameters.draw`.
        first_seed: seed of the draws of the first episodes; later ones count on from it.
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
        """By condition: how many episodes were truncated after `max_steps`."""
        self.should_explore = should_explore
        self.episodes: list[list[EpisodeResult]] = [[] for _ in clients]
        """By condition: the episodes that have ended."""
        self.logged_agents: list[set[str]] = [set() for _ in clients]
        """By condition: agents for which the simulation chose at least one action itself."""
        self.is_done = threading.Event()
        """Set when all episodes were played, or the evaluation is given up."""
        self.to_begin: deque[tuple[int, Parameters]] = deque(
            (condition, draw(parameters or {}, first_seed + i))
            for i in range(num_episodes)
            for condition in range(len(clients))
        )
        """Condition and parameters of each episode still to begin; lost episodes come again."""
        self._num_left = len(self.to_begin)

    def add(self, condition: int, episode: EpisodeResult) -> None:
        """Adds an episode that has ended."""
        self.episodes[condition].append(episode)
        self._num_left -= 1
        if not self._num_left:
            self.is_done.set()


@dataclass(eq=False)
class OpenEpisode:
    """An open episode, between its simulation and the servers."""

    started_by: StartEpisode
    started: Started
    """The answer to `started_by`."""
    is_training: bool
    client: MultiplexingClient
    joint: Episode
    """The episode as the client of the servers has it."""
    evaluation: Evaluation | None
    condition: int
    """The number of its condition in the evaluation."""
    num_trained: int
    """Env steps of all training when the episode began."""
    last_seen: float
    t: int = 0
    """The index of the next step."""
    longest_step_s: float = 0.0
    """The longest time that its simulation has taken for a step."""
    agents_done: set[str] = field(default_factory=set)
    last_answer: Actions | tuple[Layout, list[Any], int] | None = None
    """The answer to the last step; a tuple: layout and arrays of rows, and this episode's row."""

    def repeated(self) -> Actions:
        """Returns the answer to the last step again.

        Raises:
            OutOfOrder: the last step has no answer yet.
        """
        episode_id, t = self.joint.episode_id, self.t - 1
        if self.last_answer is None:
            raise OutOfOrder(f"the answer to t={t} of episode {episode_id} is still being computed")
        if isinstance(self.last_answer, tuple):
            self.last_answer = Actions(episode_id, t, actions_of(*self.last_answer))
        return self.last_answer
