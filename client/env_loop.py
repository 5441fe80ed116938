"""Plays episodes of a simulation, or of many copies side by side.

Each server gets one message a step. The end of an episode, the start of the next and its first step
share a message, so an episode of `n` steps costs `n` round trips; `k` copies cost no more than one.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, field
from itertools import repeat
from typing import Any, Literal

import numpy as np

from muxrl.client.adapters.simulation import Simulation
from muxrl.client.adapters.vector_simulation import VectorSimulation
from muxrl.client.copies import Copies, Over, SimulationFailed
from muxrl.client.episode import Episode
from muxrl.client.episode_metrics import EPISODE_LENGTH, TRUNCATED, EpisodeMetrics
from muxrl.client.episode_parameters import Parameters, as_metrics, draw
from muxrl.client.errors import ClientError, EpisodeLost, RefusedByServer, RunIsOver, ServerLost
from muxrl.client.held_loop import HeldLoop
from muxrl.client.multiplexer import MultiplexingClient
from muxrl.client.outbox import Outbox
from muxrl.client.single_copies import SingleCopies
from muxrl.client.vector_copies import VectorCopies
from muxrl.protocol.messages import Mode

__all__ = ["EnvLoop", "EpisodeResult", "SimulationFailed"]

logger = logging.getLogger(__name__)

_MOST_BAD = 20
"""At most so many episodes in a row may end at a bad value; more are no accident."""
_NOTHING: Set[str] = frozenset()


@dataclass(frozen=True)
class EpisodeResult:
    """One episode that was played to its end.

    `returns` are sums of raw rewards, by agent id. `num_steps` counts env steps. `seed` is what the
    simulation was reset with, None if it chose by itself. `episode_id` is the episode's id on the
    servers. `metrics` has the metrics from infos, the episode's length and parameters, whether it
    was truncated, and the returns against members of pools. `members` are these members, by server
    id.
    """

    returns: dict[str, float]
    num_steps: int
    seed: int | None
    episode_id: str = field(default="", compare=False)
    metrics: EpisodeMetrics = field(default_factory=dict)
    members: dict[str, str] = field(default_factory=dict, compare=False)

    @classmethod
    def of(
        cls,
        episode: Episode,
        num_steps: int,
        seed: int | None,
        metrics: EpisodeMetrics,
        parameters: Parameters,
    ) -> EpisodeResult:
        """Returns the result of an episode that has ended."""
        own = {EPISODE_LENGTH: num_steps, TRUNCATED: episode.is_truncated}
        return cls(
            episode.returns,
            num_steps,
            seed,
            episode.episode_id,
            metrics | as_metrics({**own, **parameters}) | episode.returns_against,
            episode.members,
        )


OnEpisode = Callable[[EpisodeResult], None]


class EnvLoop(HeldLoop):
    """Plays episodes until it is stopped.

    The copies of a `VectorSimulation` cannot be reset to a seed one by one: the first seed resets
    all copies, and later seeds draw the parameters of single episodes. An episode that is lost
    begins again where its copy stands; a copy with a bad value is left out until its episode is
    over. The returns of neither are reported. When the loop is held, or has used up its env steps,
    it pauses between two steps; the step that uses them up is made in all copies.

    Args:
        simulations: ordinary simulations, played side by side, or one that steps many copies.
        client: where actions come from.
        mode: "train", or "eval": measured, never trained on.
        should_explore: None: explore in mode "train" only; a dict: by server id.
        seeds: one for each episode's reset; the loop ends when they are used up. None: the
            simulations choose.
        on_lost: what happens when a server is lost, or does not know an episode any more: "raise",
            or "restart": the affected episodes are closed as truncated on the other servers, and
            begin again with the same seeds. A server that is lost a second time before it has
            answered anything raises in any case.
        on_bad_value: what ends at a number that is not finite, or beyond a limit: "stop": the loop;
            "episode": only its episode, and the next one begins. In mode "eval" the result of such
            an episode has no returns.
        metrics: which numbers in infos become metrics of the episode; see `MetricCollector`. They
            are sent with the end of the episode.
        parameters: of episodes, by name; see `muxrl.client.episode_parameters.draw`. They are
            recorded as metrics, too.

    Raises:
        AssignmentError: an agent of a simulation belongs to no server.
        SimulationError: there are parameters, and a `VectorSimulation` takes none.
    """

    def __init__(
        self,
        simulations: Sequence[Simulation] | VectorSimulation,
        client: MultiplexingClient,
        *,
        mode: Mode = "train",
        should_explore: bool | Mapping[str, bool] | None = None,
        seeds: Iterator[int | None] | None = None,
        on_lost: Literal["raise", "restart"] = "raise",
        on_bad_value: Literal["stop", "episode"] = "stop",
        metrics: Mapping[str, str] | None = None,
        parameters: Mapping[str, Any] | None = None,
    ) -> None:
        super().__init__()
        self._copies: Copies = (
            SingleCopies(simulations, client, metrics or {})
            if isinstance(simulations, Sequence)
            else VectorCopies(simulations, client, metrics or {})
        )
        self.num_episodes = 0
        self.num_lost_episodes = 0
        """Episodes that were closed early because a server was lost, or did not know them."""
        self.num_bad_episodes = 0
        """Episodes that ended at a bad value, which a server refused."""
        self._num_bad_in_a_row = 0
        self._on_lost = on_lost
        self._on_bad_value = on_bad_value
        self._is_server_lost = False
        self._client = client
        self._table = self._copies.table
        self._mode: Mode = mode
        self._should_explore = should_explore
        self._seeds = repeat(None) if seeds is None else seeds
        self._has_seeds = True
        self.parameters = parameters or {}
        """Parameters of the episodes that begin from now on; may be set from any thread."""
        self._outbox = Outbox()
        """The outbox that is being filled."""
        num = self._copies.num
        self._first_seed: int | None = None
        """The seed with which all copies are reset together, if they are."""
        self._parameters_of: list[Parameters] = [{}] * num
        self._drawn: dict[int, tuple[int | None, Parameters]] = {}
        """By copy: seed and parameters of the episode that the copy begins next by itself."""
        self._is_partial = [False] * num
        """By copy: whether its episode began in the middle of one of the simulation's."""
        if self.parameters:
            self._copies.ask_options(self._draw)

    @property
    def num_env_steps(self) -> int:
        """Env steps played so far."""
        return self._copies.num_env_steps

    def run(
        self,
        on_episode: OnEpisode = lambda result: None,
        should_stop: Callable[[], bool] = lambda: False,
    ) -> None:
        """Plays until seeds are used up, `should_stop` returns True, or a gateway's run is over.

        Episodes that are open then are closed early: servers keep them as truncated.

        Args:
            on_episode: called with each finished episode.
            should_stop: called after each message; True ends the loop.

        Raises:
            SimulationFailed: a simulation raised; its episode and all others are closed.
            ClientError: see `MultiplexingClient.get_action`.
        """
        self._is_playing = True
        self._outbox = Outbox()
        try:
            self._rest_if_due(should_stop)
            self._play(on_episode, should_stop)
        except RunIsOver as over:
            logger.info("%s", over)
        except SimulationFailed:
            with contextlib.suppress(ClientError):  # finished episodes get an end, not an abort
                self._client.exchange(self._outbox.ends)
            raise
        finally:
            left = [e.episode_id for e in self._table.by_slot if e is not None]
            self._client.abort_episode(left, "the simulation stopped")
            self._end_playing()

    def _play(self, on_episode: OnEpisode, should_stop: Callable[[], bool]) -> None:
        copies, table = self._copies, self._table
        if not copies.begin_on_request:
            self._first_seed = seed = next(self._seeds, None)
            copies.reset(seed)
            self._drawn.setdefault(0, (seed, draw(self.parameters, seed)))
        self._begin_free()
        while True:
            copies.ask(self._outbox)
            if not (self._outbox.items or self._has_seeds or table.is_open.any()):
                return
            asked = list(table.by_slot)
            lost, bad = self._exchange(self._outbox, asked)
            self._rest_if_due(should_stop)
            if should_stop():
                return
            self._outbox = Outbox()
            again = self._leave(asked, lost, bad, on_episode) if lost or bad else ()
            if not again or copies.begin_on_request:
                self._step(again, on_episode)
                self._begin_free()

    def _step(self, again: Sequence[int], on_episode: OnEpisode) -> None:
        """Steps the copies whose actions were answered, within the env steps that are left."""
        copies, is_open = self._copies, self._table.is_open
        ready: Sequence[int] = range(copies.num)
        if again or np.count_nonzero(is_open) < copies.num:
            ready = [copy for copy in np.flatnonzero(is_open).tolist() if copy not in again]
        num_claimed = self._claim(len(ready), is_one_step=not copies.begin_on_request)
        if not num_claimed and ready:
            return
        num_before = copies.num_env_steps
        for over in copies.step(ready[:num_claimed]):
            self._end(over, on_episode)
        # Steps in which no agent acted were played in addition.
        self._num_claimed += copies.num_env_steps - num_before - num_claimed

    # --- an episode ---------------------------------------------------------------------

    def _draw(self, copy: int) -> Parameters:
        seed = next(self._seeds, None)
        self._drawn[copy] = seed, draw(self.parameters, seed)
        return self._drawn[copy][1]

    def _begin_free(self) -> None:
        """Begins an episode in each free copy that is at the first step of one."""
        table, copies = self._table, self._copies
        if np.count_nonzero(table.is_open) == copies.num:
            return
        if copies.begin_on_request and (self._is_holding or self._has_no_more):
            return
        for copy in np.flatnonzero(~table.is_open).tolist():
            if not (copies.may_begin(copy) and self._has_seeds):
                continue
            try:
                drawn = self._drawn.pop(copy, None)
                seed, parameters = (next(self._seeds), None) if drawn is None else drawn
            except StopIteration:
                self._has_seeds = False
                return
            self._is_partial[copy] = False
            self._begin(copy, seed, parameters)

    def _begin(self, copy: int, seed: int | None, parameters: Parameters | None = None) -> None:
        copies, episode = self._copies, None
        if copies.begin_on_request and self._client.gives_parameters:
            episode = self._open_alone(copy, seed)
            parameters = episode.parameters
        if parameters is None:
            parameters = draw(self.parameters, seed)
        self._parameters_of[copy] = parameters
        copies.begin(copy, seed, parameters)
        if episode is None:
            self._open(copy, seed, self._outbox)

    def _open(self, copy: int, seed: int | None, outbox: Outbox) -> Episode:
        mode, explore = self._mode, self._should_explore
        return self._table.begin(outbox, copy, mode=mode, should_explore=explore, seed=seed)

    def _open_alone(self, copy: int, seed: int | None) -> Episode:
        """Starts an episode in a separate message; its reset needs parameters from the answer."""
        while True:
            first = Outbox()
            episode = self._open(copy, seed, first)
            if not any(self._exchange(first)):
                return episode

    def _leave(
        self,
        asked: Sequence[Episode | None],
        lost: Set[str],
        bad: Set[str],
        on_episode: OnEpisode,
    ) -> list[int]:
        """Begins lost episodes again, and returns their copies; reports bad ones in mode "eval"."""
        again = []
        for copy, episode in enumerate(asked):
            if episode is None or episode.episode_id not in lost | bad:
                continue
            num_steps = int(self._copies.num_steps[copy])
            if episode.episode_id in lost:
                self._is_partial[copy] |= not self._copies.begin_on_request and num_steps > 0
                self._begin(copy, episode.seed)
                again.append(copy)
            elif self._mode == "eval":  # the list of results keeps a place for its seed
                on_episode(EpisodeResult({}, num_steps, episode.seed, episode.episode_id))
        return again

    def _end(self, over: Over, on_episode: OnEpisode) -> None:
        copy, copies = over.copy, self._copies
        num_steps = int(copies.num_steps[copy])
        metrics = copies.metrics.result(copy)
        episode = self._table.end(
            self._outbox,
            copy,
            over.final_observations,
            is_truncated=over.is_truncated,
            state=over.state,
            metrics=metrics,
        )
        if self._is_partial[copy]:
            return
        self.num_episodes += 1
        seed = episode.seed if copies.begin_on_request else None
        on_episode(EpisodeResult.of(episode, num_steps, seed, metrics, self._parameters_of[copy]))

    # --- held by another thread ---------------------------------------------------------

    @property
    def _is_between_episodes(self) -> bool:
        # Copies that begin by themselves are never all between two episodes.
        return not (self._copies.begin_on_request and self._table.is_open.any())

    def _tell_played(self) -> None:
        try:
            self._client.tell_played()
        except ClientError as error:  # the next step fails in the same way
            logger.warning(
                "steps that were played with local inference could not be sent: %s", error
            )

    # --- errors of servers ----------------------------------------------------------------

    def _exchange(
        self, outbox: Outbox, asked: Sequence[Episode | None] = ()
    ) -> tuple[Set[str], Set[str]]:
        """Sends an outbox and handles the answers.

        Args:
            outbox: what to send.
            asked: by copy: the episode whose step is in the outbox.

        Returns:
            The ids of the lost episodes, and of the episodes that a bad value has ended.

        Raises:
            ClientError: an item was refused, or a loss is an error; see `on_lost`.
        """
        lost: Set[str]
        bad: set[str] = set()
        try:
            failures = self._client.exchange(outbox)
        except ServerLost as error:
            if self._on_lost == "raise" or self._is_server_lost:
                raise
            self._is_server_lost = True
            lost = outbox.episode_ids
            logger.warning("%d episodes are closed: %s", len(lost), error)
        else:
            self._is_server_lost = False
            for episode_id, failure in failures.items():
                origin = self._origin(episode_id, (*asked, *outbox.ended))
                if self._may_drop(failure):
                    bad.add(episode_id)
                    self.num_bad_episodes += 1
                    self._num_bad_in_a_row += 1
                    where = f" ({origin})" if origin else ""
                    logger.warning("an episode%s ends at a bad value: %s", where, failure)
                elif self._on_lost == "raise" or not isinstance(failure, EpisodeLost):
                    text = str(failure)
                    if self._num_bad_in_a_row >= _MOST_BAD:
                        text += f"; the {_MOST_BAD} episodes before ended at a bad value, too"
                    if origin and isinstance(failure, RefusedByServer):
                        text += f"; to play that episode again: {origin}"
                    failure.args = (text,)
                    raise failure
                else:
                    logger.warning("an episode begins again: %s", failure)
            lost = failures.keys() - bad if failures else _NOTHING
            if self._num_bad_in_a_row and any(
                episode.episode_id not in failures for episode in outbox.ended
            ):
                self._num_bad_in_a_row = 0
        self.num_lost_episodes += len(lost)
        return lost, bad

    def _origin(self, episode_id: str, episodes: Sequence[Episode | None]) -> str:
        """Says with which seed one of these was reset; "" if the simulation chose it."""
        found = (one for one in episodes if one is not None and one.episode_id == episode_id)
        episode = next(found, None)
        if episode is None or episode.seed is None:
            return ""
        if self._copies.begin_on_request:
            return f"seed {episode.seed}"
        return f"copy {episode.slot} of an environment with seed {self._first_seed}"

    def _may_drop(self, failure: ClientError) -> bool:
        is_bad = isinstance(failure, RefusedByServer) and failure.is_unsound
        return is_bad and self._on_bad_value == "episode" and self._num_bad_in_a_row < _MOST_BAD
