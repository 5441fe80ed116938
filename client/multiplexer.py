"""The client of one or many policy servers: asks all of them at once and merges their answers."""

from __future__ import annotations

import copy
import functools
import logging
import uuid
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal

from muxrl.client.assignment import Assignment, check_by_agent, given_by_agent
from muxrl.client.episode import Episode
from muxrl.client.episode_steps import Logged
from muxrl.client.episodes import Episodes
from muxrl.client.errors import AssignmentError, ClientError, EpisodeAborted, EpisodeMisuse
from muxrl.client.http import HttpTransport
from muxrl.client.inference_modes import InferenceMode, InferenceModes
from muxrl.client.local_transport import LocalTransport
from muxrl.client.network_transport import UPDATE_TIMEOUT_S
from muxrl.client.outbox import Outbox
from muxrl.client.servers import Servers
from muxrl.client.sole_use import SoleUse
from muxrl.client.transport import Transport
from muxrl.client.websocket import WebSocketTransport
from muxrl.protocol.messages import Mode
from muxrl.protocol.run_messages import PARAMETERS

if TYPE_CHECKING:  # in `typing` since Python 3.11
    from typing_extensions import Self

logger = logging.getLogger(__name__)

EpisodeId = str | int | uuid.UUID
"""Ids with the same text are the same id."""

_TRANSPORTS: dict[str, Callable[..., Transport]] = {
    "websocket": WebSocketTransport,
    "http": HttpTransport,
}


class MultiplexingClient:
    """The methods of RLlib's ``PolicyClient``, for one simulation and many servers.

    An agent belongs to the server whose spec names it. Only one thread at a time may use a client.
    Ids of agents and episodes may also be numbers or UUIDs, which are used as text.

    Args:
        servers: addresses ("host:port" or "http://host:port"), or ready transports; the keys of
            a dict must be the servers' own ids.
        token: bearer token of all servers, "" for none.
        patience_s: how long a server may be lost (it refuses or cuts connections, or is silent)
            before a method raises `ServerLost`. Until then the client sends its message again;
            servers record nothing twice. None: 30 s, and 300 s before a server's first answer.
        update_timeout_s: longest wait for an answer that a server holds back while it learns.
        transport: "websocket" (msgpack) or "http" (JSON).
        episode_prefix: beginning of the episode ids that the client makes.
        inference_mode: "remote": servers choose all actions; "local": this client chooses them
            with the servers' networks, and sends servers what was played afterwards; or a dict by
            server id, "remote" for servers that are left out.
        update_interval_s: with "local", seconds between pulls of weights; None: weights are pulled
            only by `update_policy_weights`.

    Raises:
        AssignmentError: two servers have the same agent, or a key is not the server's own id.
        ServerUnavailable: a server refuses this client, or cannot be reached for `patience_s`.
        ValueError: an address, a time or `transport` is invalid.
    """

    def __init__(
        self,
        servers: Mapping[str, str | Transport] | Sequence[str | Transport],
        *,
        token: str = "",
        patience_s: float | None = None,
        update_timeout_s: float = UPDATE_TIMEOUT_S,
        transport: Literal["websocket", "http"] = "websocket",
        episode_prefix: str = "",
        inference_mode: InferenceMode | Mapping[str, InferenceMode] = "remote",
        update_interval_s: float | None = 0.0,
    ) -> None:
        self._use = SoleUse()
        self._episode_prefix = episode_prefix
        inference = InferenceModes(inference_mode, update_interval_s)
        if transport not in _TRANSPORTS:
            raise ValueError(f"transport must be one of {list(_TRANSPORTS)}, got {transport!r}")
        settings = {"token": token, "patience_s": patience_s, "update_timeout_s": update_timeout_s}
        reach = functools.partial(_TRANSPORTS[transport], **settings)
        named: list[tuple[str | None, str | Transport]] = (
            [*servers.items()] if isinstance(servers, Mapping) else [(None, s) for s in servers]
        )
        self._servers = Servers()
        self._transports = self._servers.transports
        self.specs = self._servers.specs
        try:
            for name, server in named:
                transport_to = reach(server) if isinstance(server, str) else server
                if not hasattr(transport_to, "fetch_spec"):
                    expected = "expected its address, such as '127.0.0.1:9900'"
                    raise TypeError(f"server {server!r}: {expected}")
                self._servers.join(name, transport_to, inference)
            inference.check_names(self.specs)
            self._assignment = Assignment(self.specs)
            self._servers.say_connected([s for _, s in named if isinstance(s, str)])
        except (ClientError, TypeError):
            self.close()
            raise
        self.wants_state = any(spec.state_size is not None for spec in self.specs.values())
        """Whether any server reads the simulation's global state."""
        self._episodes: dict[str, Episode] = {}
        self.table = self.new_table(0)
        """The episodes that callers name by id."""
        self.parameters: dict[str, float] = {}
        """Parameters, if a run gives any, for the episode that was started last."""
        self.is_evaluation = False
        """Whether a run plays that episode as an evaluation; then no action may be logged."""
        self.num_mismatches = 0
        """Episodes whose steps or returns a server counted differently from this client."""

    # --- RLlib's methods ----------------------------------------------------------------

    def start_episode(
        self,
        episode_id: EpisodeId | None = None,
        training_enabled: bool = True,
        *,
        should_explore: bool | None = None,
    ) -> str:
        """Opens an episode on every server, or on none; waits for servers that are lost.

        Args:
            episode_id: unique; None makes one.
            training_enabled: False: the episode is only measured; no server learns from it.
            should_explore: None: explore if training is enabled.

        Returns:
            The episode's id.

        Raises:
            RefusedByServer: a server refused; the episode is closed on the others.
            ServerLost: a server did not return within the client's patience.
            ServerUnavailable: a server refuses this client.
        """
        self._use.check()
        mode: Mode = "train" if training_enabled else "eval"
        outbox = Outbox()
        given_id = "" if episode_id is None else str(episode_id)
        episode = self.table.begin(
            outbox, mode=mode, should_explore=should_explore, episode_id=given_id
        )
        self._send(outbox)
        self.parameters, self.is_evaluation = episode.parameters, episode.is_evaluation
        return episode.episode_id

    def get_action(
        self,
        episode_id: EpisodeId | Sequence[EpisodeId],
        observations: Mapping[str, Any],
        *,
        state: Any = None,
    ) -> dict[str, Any]:
        """Returns the actions of exactly the agents in `observations`.

        Args:
            episode_id: one id, or several: then `observations` (and `state`) are dicts by
                episode id, and so is the answer. A server gets all of them in one message.
            observations: by agent id; arrays as declared by the agent's space, or nested lists.
            state: the simulation's global state, float32 [state_size], if a server reads it.

        Returns:
            By agent id: int for Discrete, array for Box, MultiDiscrete and MultiBinary.

        Raises:
            RefusedByServer: a server refused; the episode is closed on all servers.
            EpisodeLost: a server does not know the episode, since it was restarted, say; the
                episode is closed on all servers, and another one may be started.
            ServerLost: a server is lost for longer than the client's patience; the episode is
                closed on the others, and `start_episode` waits for the server.
            ServerUnavailable: a server refuses this client, or its update takes longer than
                `update_timeout_s`; the episode is closed on the others.
            EpisodeMisuse: the episode is unknown or over.
            AssignmentError: an agent belongs to no server.
        """
        if not isinstance(episode_id, str | int | uuid.UUID):
            return self._get_actions(episode_id, observations, {} if state is None else state)
        actions = self._step([self._find(episode_id)], [observations], [state])
        return _of_agents(actions[0], observations)

    def _get_actions(
        self,
        episode_ids: Sequence[EpisodeId],
        observations: Mapping[Any, Any],
        states: Mapping[Any, Any],
    ) -> dict[Any, Any]:
        episodes = [self._find(episode_id) for episode_id in episode_ids]
        if len(set(episodes)) < len(episodes):
            raise EpisodeMisuse(f"an episode is named twice in {list(episode_ids)}")
        for what, given in (("observations", observations), ("state", states)):
            if not isinstance(given, Mapping):
                raise EpisodeMisuse(f"{what} of several episodes must be a dict by episode id")
        for one in episode_ids:
            if one not in observations:
                raise EpisodeMisuse(f"episode {one} is named, but has no observations")
        seen = [observations[one] for one in episode_ids]
        actions = self._step(episodes, seen, [states.get(one) for one in episode_ids])
        return {
            one: _of_agents(mine, by_agent)
            for one, mine, by_agent in zip(episode_ids, actions, seen, strict=True)
        }

    def _step(
        self,
        episodes: Sequence[Episode],
        observations: Sequence[Mapping[str, Any]],
        states: Sequence[Any],
        logged: Sequence[Logged] = (),
    ) -> list[dict[str, Any]]:
        """Sends a step of some episodes; returns the actions."""
        outbox = Outbox()
        table, slots = self.table, [episode.slot for episode in episodes]
        table.step(outbox, slots, observations, states, dict(zip(slots, logged, strict=False)))
        self._send(outbox)
        return [table.actions[slot] for slot in slots]

    def log_action(
        self,
        episode_id: EpisodeId,
        observations: Mapping[str, Any],
        actions: Mapping[str, Any],
        *,
        log_probs: Mapping[str, float] | None = None,
        state: Any = None,
    ) -> None:
        """Records actions that were chosen elsewhere (a person, a script), to learn from.

        Algorithms with a replay learn from logged actions as from their own. On-policy algorithms
        learn only values from them. Algorithms with V-trace learn nothing from them, unless
        log-probabilities are given.

        Args:
            episode_id: which.
            observations: by agent id.
            actions: the action of each of these agents, and of no other.
            log_probs: log-probability of each action, for Box spaces its log-density; V-trace needs
                them.
            state: as for `get_action`.

        Raises:
            As `get_action`.
        """
        episode = self._find(episode_id)
        check_by_agent("observations", observations)
        check_by_agent("actions", actions)
        if actions.keys() != observations.keys():  # the policy would act in silence for the rest
            raise EpisodeMisuse(
                f"log_action needs an action of each agent that observes, {list(observations)}, "
                f"but got actions of {list(actions)}"
            )
        self._step([episode], [observations], [state], [(actions, log_probs or {})])

    def log_returns(
        self,
        episode_id: EpisodeId,
        rewards: Mapping[str, float],
        infos: Mapping[str, Any] | None = None,
        terminations: Mapping[str, bool] | None = None,
        truncations: Mapping[str, bool] | None = None,
        final_observations: Mapping[str, Any] | None = None,
    ) -> None:
        """Keeps what followed from the last actions, and sends it with the next message.

        Rewards of an agent add up until its next action; an agent without a reward gets 0.

        Args:
            episode_id: which.
            rewards: by agent id.
            infos: ignored; RLlib's method has it.
            terminations: agents that have terminated (``__all__`` is ignored: use `end_episode`).
            truncations: agents that were truncated.
            final_observations: last observations of agents that have ended; a truncated agent
                needs one.

        Raises:
            EpisodeMisuse, AssignmentError: as `get_action`.
        """
        episode = self._find(episode_id)
        finals = given_by_agent("final observations", final_observations)
        self.table.log(
            episode.slot,
            rewards,
            given_by_agent("terminations", terminations),
            given_by_agent("truncations", truncations),
            # They are kept until the next message, and the simulation may reuse its arrays.
            copy.deepcopy(finals) if finals else finals,
        )

    def end_episode(
        self,
        episode_id: EpisodeId,
        observations: Mapping[str, Any] | None = None,
        *,
        truncated: bool = False,
        state: Any = None,
        metrics: Mapping[str, float | Mapping[str, float]] | None = None,
    ) -> None:
        """Closes an episode on every server.

        Args:
            episode_id: which.
            observations: last observations of agents that are not done yet.
            truncated: True: these agents were truncated, by a time limit, say, and their values are
                bootstrapped; False: they terminated.
            state: as for `get_action`.
            metrics: numbers that the simulation measured in the episode (``{"win": 1}``), or by
                agent (``{"travel_s": {"driver_0": 310}}``); the gateway of a run records them.

        Raises:
            EpisodeLost: a server had closed the episode before, so its last steps are not recorded
                there; the other servers have recorded them.
            ClientError: as `get_action`.
        """
        outbox, episode = Outbox(), self._find(episode_id)
        self.table.end(
            outbox,
            episode.slot,
            given_by_agent("observations", observations),
            is_truncated=truncated,
            state=state,
            metrics=given_by_agent("metrics", metrics),
        )
        self._send(outbox)
        if episode.closed_early is not None:
            raise episode.closed_early

    def abort_episode(self, episode_id: EpisodeId | Sequence[EpisodeId], reason: str = "") -> None:
        """Closes one or several episodes early on all servers, which record them as truncated."""
        ids = [episode_id] if isinstance(episode_id, str | int | uuid.UUID) else episode_id
        episodes = [self._find(one, may_be_ended=True) for one in ids]
        with self._use:
            self._abort(episodes, reason)

    def update_policy_weights(self) -> None:
        """Pulls the newest weights of servers with local inference now.

        Raises:
            ServerUnavailable: a server does not answer.
        """
        with self._use:
            for transport in self._transports.values():
                if isinstance(transport, LocalTransport):
                    transport.update_weights()

    def tell_played(self) -> None:
        """Sends servers what was played with local inference; raises as `update_policy_weights`."""
        with self._use:
            for one in self._transports.values():
                one.tell_played()

    @property
    def num_lost_steps(self) -> int:
        """Steps played with local inference that may be lost, summed over servers."""
        return sum(one.num_lost_steps for one in self._transports.values())

    def give_up(self) -> None:
        """Ends the client's patience, from any thread.

        A method that waits for a lost server raises `ServerLost` within seconds.
        """
        for transport in self._transports.values():
            transport.give_up()

    def close(self) -> None:
        """Closes open episodes and connections; does nothing in a fork of the client's process."""
        if self._use.is_in_other_process:
            return
        episodes = getattr(self, "_episodes", {}).values()  # none if the constructor raised
        with self._use:
            self._abort(list(episodes), "the client closed")
            for transport in self._transports.values():
                transport.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # --- many episodes in one message -----------------------------------------------------

    @property
    def gives_parameters(self) -> bool:
        """Whether a server answers an episode's start with parameters."""
        return any(PARAMETERS in spec.offers for spec in self.specs.values())

    def check_agents(self, agents: Iterable[str]) -> None:
        """Raises `AssignmentError` unless each of these agents belongs to a server."""
        missing = [
            agent_id for agent_id in agents if str(agent_id) not in self._assignment.server_of
        ]
        if missing:
            raise AssignmentError(
                f"agents {missing} belong to no server; "
                + "; ".join(f"{s!r} serves {list(spec.agents)}" for s, spec in self.specs.items())
            )

    def new_table(self, num_slots: int) -> Episodes:
        """Returns a table of episodes for a loop with a slot for each of its simulations."""
        return Episodes(
            self._transports, self._assignment, self._episodes, self._episode_prefix, num_slots
        )

    def exchange(self, outbox: Outbox) -> dict[str, EpisodeAborted]:
        """Sends each server its frame, then receives all answers.

        Returns:
            By episode id: why a server refused or lost it; the episode is closed on all servers.

        Raises:
            ServerUnavailable: a server does not answer; all episodes of the outbox are closed on
                the others.
            EpisodeMisuse: another thread is using the client, or this is another process.
        """
        with self._use:
            try:
                failures, lost = self._servers.ask(outbox)
            except BaseException:
                for interrupt in outbox.asked:
                    interrupt()
                raise
            if lost:
                reason = f"lost server {', '.join(lost)}"
                self._abort(self._open_among(outbox.episode_ids), reason, without=lost)
                raise next(iter(lost.values()))
            if failures:
                reason = "; ".join(str(failure) for failure in failures.values())
                self._abort(self._open_among(failures), reason)
            for episode in outbox.ended:
                self._episodes.pop(episode.episode_id, None)
                self.num_mismatches += bool(episode.mismatches or episode.closed_early)
                for text in episode.mismatches:
                    logger.error("counts differ: %s", text)
                if episode.closed_early is not None:  # which `end_episode` raises
                    logger.info("%s", episode.closed_early)
            if self._servers.pending_aborts:
                self._servers.send_pending(outbox.items)
            return failures

    def _open_among(self, episode_ids: Iterable[str]) -> list[Episode]:
        return [self._episodes[one] for one in episode_ids if one in self._episodes]

    def _send(self, outbox: Outbox) -> None:
        """Exchanges the items of some episodes; raises if a server refuses one."""
        for failure in self.exchange(outbox).values():
            raise failure

    def _abort(
        self, episodes: Sequence[Episode], reason: str, without: Collection[str] = ()
    ) -> None:
        """Closes episodes on all servers; a lost server hears of it in the next message to it."""
        for episode in episodes:
            self._episodes.pop(episode.episode_id, None)
        self._servers.abort(episodes, reason, without)

    def _find(self, episode_id: EpisodeId, *, may_be_ended: bool = False) -> Episode:
        self._use.check()
        episode = self._episodes.get(str(episode_id))
        if episode is None:
            raise EpisodeMisuse(
                f"episode {episode_id} is not open in this client; it was never started, or it "
                "has ended or was aborted"
            )
        if not episode.is_open and not may_be_ended:
            raise EpisodeMisuse(
                f"episode {episode_id} was ended, but a server has not answered; was the call "
                "interrupted? abort_episode() closes the episode on every server"
            )
        return episode


class PolicyClient(MultiplexingClient):
    """The client of one server, as RLlib's ``PolicyClient`` was.

    Args:
        server: "host:port", "http://host:port", or a ready transport.
        token, patience_s, update_timeout_s, transport, inference_mode, update_interval_s: see
            `MultiplexingClient`.
    """

    def __init__(
        self,
        server: str | Transport,
        *,
        token: str = "",
        patience_s: float | None = None,
        update_timeout_s: float = UPDATE_TIMEOUT_S,
        transport: Literal["websocket", "http"] = "websocket",
        inference_mode: InferenceMode = "remote",
        update_interval_s: float | None = 0.0,
    ) -> None:
        super().__init__(
            [server],
            token=token,
            patience_s=patience_s,
            update_timeout_s=update_timeout_s,
            transport=transport,
            inference_mode=inference_mode,
            update_interval_s=update_interval_s,
        )


def _of_agents(actions: Mapping[str, Any], observations: Mapping[Any, Any]) -> dict[Any, Any]:
    """Returns the merged actions with the ids of the observations, in their order."""
    try:
        return {agent_id: actions[agent_id] for agent_id in observations}
    except KeyError:
        return {agent_id: actions[str(agent_id)] for agent_id in observations}
