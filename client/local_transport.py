"""Local inference: a transport that acts by itself and tells its server afterwards.

It pulls the server's networks (`LocalPolicies`), answers steps with them, and keeps what was played
until the server is spoken to: with a start, an end or an abort, with the step that completes the
server's next batch, and after a fraction of a second. Then it is sent all, and chooses the actions
of that message's steps, as without local inference. A server that learns holds these messages as it
holds others, and the first step after an update is its own. Nothing is dropped in silence: steps
that could not be sent are counted, logged, and refused where their episode continues.
"""

from __future__ import annotations

import copy
import logging
import time
from collections.abc import Collection, Mapping, Sequence
from typing import Any, Literal, TypeGuard

import msgspec
import numpy as np

from muxrl.client.errors import AssignmentError, ServerUnavailable
from muxrl.client.local_policies import (
    Asked,
    Chosen,
    LocalPolicies,
    Memory,
    no_local_inference,
)
from muxrl.client.network_transport import NetworkTransport
from muxrl.client.transport import Around, Transport
from muxrl.protocol.errors import EpisodeGone, ValueMismatch
from muxrl.protocol.messages import (
    Aborted,
    AbortEpisode,
    Actions,
    AnyItem,
    AnyReply,
    Ended,
    PlayedSteps,
    Recorded,
    Refused,
    ServerSpec,
    StartEpisode,
    Step,
)
from muxrl.protocol.rows import each_array, empty, leaves
from muxrl.protocol.spaces import Box, Discrete, Space
from muxrl.protocol.values import Mismatch, Unsound, conform

InferenceMode = Literal["remote", "local"]

logger = logging.getLogger(__name__)

_MOST_STEPS = 256
"""Sent at once: a server takes some 10 ms to record them, in which it hears nobody else."""
_LONGEST_S = 0.2
"""Until what was played is sent, if steps are slow."""
_MOST_BYTES = 1 << 20
"""Likewise: half of what a server reads that is not one array (`MAX_PLAIN_BYTES` there)."""
_AGENT_BYTES = 200
"""Of what a step says of an agent, besides arrays."""


class _Played:
    """An open episode, and what has not been sent of it."""

    __slots__ = ("logits", "memory", "should_explore", "steps", "t")

    def __init__(self, start: StartEpisode) -> None:
        explores = start.should_explore
        self.should_explore = start.mode == "train" if explores is None else explores
        self.t = 0
        self.memory = Memory()
        self.steps: list[Step] = []
        self.logits: dict[str, list[np.ndarray]] = {}

    def take(self, episode_id: str, version: int) -> PlayedSteps:
        """Returns it as an item, and forgets it."""
        logits = {agent_id: np.array(rows) for agent_id, rows in self.logits.items()}
        item = PlayedSteps(episode_id, version, self.steps, logits, dict(self.memory.states))
        self.steps, self.logits = [], {}
        return item


class LocalTransport(Around):
    """A `Transport` that acts in its server's place.

    Args:
        transport: to the server.
        update_interval_s: weights are pulled when newer ones are known of, at most once in this
            time; None: only when `update_weights` is called.
        seed: of exploration; None: any.
    """

    def __init__(
        self,
        transport: NetworkTransport,
        *,
        update_interval_s: float | None = 0.0,
        seed: int | None = None,
    ) -> None:
        super().__init__(transport)
        self._transport = transport
        self._num_lost_steps = 0
        self._update_interval_s = update_interval_s
        self._seed = seed
        self._spec: ServerSpec
        self._policies: LocalPolicies
        self._pulled_at = 0.0
        self._episodes: dict[str, _Played] = {}
        self._refused: dict[str, Refused] = {}
        """What a server said of an episode that had no item in that frame."""
        self._items: Sequence[AnyItem] = ()
        self._sent: list[AnyItem] = []
        """The frame that was sent last."""
        self._is_acting = False
        """Whether it answers the items by itself."""
        self._newest = 0
        """Version of the server's weights, as far as it is known."""
        self._is_doubtful = False
        """Whether the server may be another process by now, with other weights."""
        self._num_wanted: int | None = None
        """Env steps until the server's next batch; None: it has not said yet."""
        self._num_kept = self._num_transitions = 0
        self._most_kept = _MOST_STEPS
        self._kept_since = 0.0

    # --- a `Transport` ------------------------------------------------------------------

    takes_rows = False

    @property
    def num_lost_steps(self) -> int:  # type: ignore[override]
        return self._num_lost_steps

    def fetch_spec(self, patience_s: float = 0.0) -> ServerSpec:
        """Returns the server's spec, and pulls its networks.

        Args:
            patience_s: see `NetworkTransport.fetch_spec`.

        Raises:
            ServerUnavailable: it cannot be reached, or has no policies that can be acted with here.
        """
        self._spec = spec = self._transport.fetch_spec(patience_s)
        weights = self._transport.fetch_weights()
        if weights.problem:
            text = no_local_inference(spec.server_id, spec.algorithm, weights.problem)
            raise ServerUnavailable(text, server_id=spec.server_id)
        self._policies = LocalPolicies(spec, weights, self._seed)
        self._pulled_at = time.monotonic()
        most_bytes = min(_MOST_BYTES, spec.max_message_bytes // 2 or _MOST_BYTES)
        self._most_kept = max(1, min(_MOST_STEPS, most_bytes // _step_bytes(spec)))
        return spec

    def send(self, items: Sequence[AnyItem]) -> None:
        self._items = items
        num_transitions = 0
        self._is_acting = True
        for item in items:
            if isinstance(item, StartEpisode) and item.episode_id not in self._episodes:
                self._episodes[item.episode_id] = _Played(item)
            if not self._acts_on(item):
                self._is_acting = False
            elif item.t:  # it tells what followed from the step before
                num_transitions += 1
        if not self._is_acting or self._is_due(num_transitions):
            self._is_acting = False
            self._tell(items)

    def receive(self, patience_s: float | None = None) -> list[AnyReply]:
        if self._is_acting:
            return self._act()
        replies = self._handle(patience_s)
        self._update_if_due()
        return replies

    def is_there(self) -> bool:
        """Whether the same server answers now; may be asked from another thread."""
        return self._transport.is_there()

    # --- weights ------------------------------------------------------------------------

    def update_weights(self) -> None:
        """Pulls the newest weights, after telling what was played with those before.

        Raises:
            ServerUnavailable: the server does not answer.
        """
        self.tell_played()
        self._pull()

    def tell_played(self) -> None:
        """Tells the server what was played and it has not been sent yet.

        Raises:
            ServerUnavailable: it does not answer.
        """
        if self._num_kept:
            self._tell([])
            self._handle(None)

    def _pull(self) -> None:
        self._policies.load(self._transport.fetch_weights())
        self._newest, self._is_doubtful = self._policies.version, False
        self._pulled_at = time.monotonic()

    def _update_if_due(self) -> None:
        """Pulls weights if others are known of; all that was played has been sent."""
        if self._is_doubtful:
            self._pull()
        interval_s = self._update_interval_s
        if interval_s is None or self._newest == self._policies.version:
            return
        if time.monotonic() - self._pulled_at >= interval_s:
            self._pull()

    # --- what the server is sent --------------------------------------------------------

    def _acts_on(self, item: AnyItem) -> TypeGuard[Step]:
        """Whether this is a step to act in: new, and nobody else has chosen its actions."""
        if not isinstance(item, Step) or item.logged_actions:
            return False
        episode = self._episodes.get(item.episode_id)
        return episode is not None and item.t == episode.t and item.episode_id not in self._refused

    def _is_due(self, num_transitions: int) -> bool:
        """Whether it is to be sent, and the server asked, with so many transitions more."""
        if self._num_wanted is None:
            return self._num_kept > 0
        return (
            self._num_transitions + num_transitions >= self._num_wanted
            or self._num_kept >= self._most_kept
            or (self._num_kept > 0 and time.monotonic() - self._kept_since >= _LONGEST_S)
        )

    def _tell(self, items: Sequence[AnyItem]) -> None:
        """Sends what was played, and these items."""
        version = self._policies.version
        played = [e.take(i, version) for i, e in self._episodes.items() if e.steps]
        self._sent = [*played, *items]
        self._num_kept = self._num_transitions = 0
        try:
            self._transport.send(self._sent)
        except ServerUnavailable:
            self._lose()
            raise

    def _handle(self, patience_s: float | None) -> list[AnyReply]:
        """Returns the replies to items that were not made here."""
        try:
            replies = self._transport.receive(patience_s)
        except ServerUnavailable:
            self._lose()
            raise
        return self._sort(replies)

    def _lose(self) -> None:
        """Notes that what was played may never have arrived; its episodes cannot continue."""
        self._is_doubtful = True
        for item in self._sent:
            if isinstance(item, PlayedSteps):
                text = (
                    f"server {self._spec.server_id!r} was lost, and with it {len(item.steps)} "
                    f"steps of episode {item.episode_id} that were played here"
                )
                refusal = Refused(item.episode_id, code=EpisodeGone.code, message=text)
                self._note_lost(item, refusal)

    def _note_lost(self, item: PlayedSteps, refusal: Refused) -> None:
        self._num_lost_steps += len(item.steps)
        self._refused[item.episode_id] = refusal
        self._is_doubtful = True
        logger.warning("up to %d steps are not recorded: %s", len(item.steps), refusal.message)

    def _sort(self, replies: Sequence[AnyReply]) -> list[AnyReply]:
        """Receives the replies to what was sent; returns those to items that were not made here.

        Where what was played was refused, so is the next item of its episode.
        """
        if len(replies) != len(self._sent):  # the frame was refused as a whole
            self._lose()
            return list(replies)
        others: list[AnyReply] = []
        for item, reply in zip(self._sent, replies, strict=True):
            episode_id = item.episode_id
            if isinstance(reply, Recorded):
                self._newest = reply.weights_seq_no
                self._num_wanted = reply.num_wanted or _MOST_STEPS
                if reply.epsilon is not None:
                    self._policies.epsilon = reply.epsilon
            elif isinstance(item, PlayedSteps):
                assert isinstance(reply, Refused)
                self._note_lost(item, reply)
            else:
                refusal = self._refused.pop(episode_id, None)
                if refusal is not None and not isinstance(item, AbortEpisode):
                    reply = refusal
                others.append(reply)
                episode = self._episodes.get(episode_id)
                if isinstance(reply, Actions) and episode is not None:
                    self._newest = reply.weights_seq_no
                    if reply.t == episode.t and isinstance(item, Step):
                        self._follow(item, reply, episode)
                if isinstance(reply, Refused | Ended | Aborted):
                    self._episodes.pop(episode_id, None)
                if isinstance(reply, Refused) and reply.code == EpisodeGone.code:
                    self._is_doubtful = True
        return others

    def _follow(self, item: Step, reply: Actions, episode: _Played) -> None:
        """Receives a step that the server has acted in."""
        episode.t += 1
        if self._policies.has_memory:
            agents = self._spec.agents
            seen = {
                agent_id: conform(agents[agent_id].observation_space, value)
                for agent_id, value in item.observations.items()
            }
            self._policies.follow(Asked(seen, False, episode.memory), reply.actions)

    # --- acting -------------------------------------------------------------------------

    def _act(self) -> list[AnyReply]:
        """Returns the answers to steps; those that it acts in are kept until they are sent."""
        outcomes: list[Step | Refused] = []
        asked: list[Asked] = []
        for item in self._items:
            assert isinstance(item, Step)
            outcome = self._checked(item)
            outcomes.append(outcome)
            if isinstance(outcome, Step):
                episode = self._episodes[item.episode_id]
                asked.append(Asked(outcome.observations, episode.should_explore, episode.memory))
        chosen = iter(self._policies.act(asked))
        return [
            one if isinstance(one, Refused) else self._keep(one, next(chosen)) for one in outcomes
        ]

    def _keep(self, step: Step, chosen: Chosen) -> Actions:
        """Keeps a step with its actions; returns its answer."""
        if not self._num_kept:
            self._kept_since = time.monotonic()
        episode = self._episodes[step.episode_id]
        step.logged_actions = chosen.actions
        for agent_id, logits in chosen.logits.items():
            episode.logits.setdefault(agent_id, []).append(logits)
        episode.steps.append(step)
        episode.t += 1
        self._num_kept += 1
        self._num_transitions += step.t > 0
        return Actions(step.episode_id, step.t, step.logged_actions, self._policies.version)

    def _checked(self, step: Step) -> Step | Refused:
        """Returns a step of one's own, whose values the simulation may overwrite; or a refusal."""
        what, agent_id = "the global state of the simulation", None
        agents = self._spec.agents
        try:
            size = self._spec.state_size
            state = step.state if size is None else _own(Box((size,)), step.state)
            own: dict[str, dict[str, Any]] = {}
            for name, values in (
                ("observation", step.observations),
                ("final observation", step.final_observations),
            ):
                own[name] = {}
                for agent_id, value in values.items():
                    what = f"{name} of agent {agent_id!r}"
                    own[name][agent_id] = _own(agents[agent_id].observation_space, value)
        except Mismatch as error:
            return Refused(
                step.episode_id,
                code=ValueMismatch.code,
                message=f"local inference for server {self._spec.server_id!r} refused "
                f"t={step.t} of episode {step.episode_id}: {what}: {error}",
                agent_id=agent_id,
                expected=error.expected,
                got=error.got,
                is_unsound=isinstance(error, Unsound),
            )
        return msgspec.structs.replace(
            step,
            observations=own["observation"],
            final_observations=own["final observation"],
            state=state,
        )


def _own(space: Space, value: Any) -> Any:
    """Returns a value as its space says, which nobody else writes into."""
    return each_array(copy.copy, conform(space, value))


def _step_bytes(spec: ServerSpec) -> int:
    """Returns how long a step of all agents is, with a logit of each action."""
    num_bytes = 4 * (spec.state_size or 0)
    for agent in spec.agents.values():
        seen, acts = agent.observation_space, agent.action_space
        assert isinstance(acts, Discrete)
        num_bytes += _AGENT_BYTES + 4 * acts.n
        num_bytes += sum(array.nbytes for array in leaves(seen, empty(seen, ())))
    return num_bytes


class InferenceModes:
    """Says for which servers inference is local.

    Args:
        modes: of all servers, or by server id: those that are left out are "remote".
        update_interval_s: see `LocalTransport`.

    Raises:
        ValueError: a mode is none.
    """

    def __init__(
        self, modes: InferenceMode | Mapping[str, InferenceMode], update_interval_s: float | None
    ) -> None:
        self._usual, self._modes = (modes, {}) if isinstance(modes, str) else ("remote", modes)
        for mode in (self._usual, *self._modes.values()):
            if mode not in ("remote", "local"):
                raise ValueError(f"inference_mode is 'remote' or 'local', got {mode!r}")
        self._update_interval_s = update_interval_s

    def transport_to(self, server_id: str, transport: Transport) -> Transport:
        """Returns a server's transport, or one around it that acts in its place.

        Raises:
            ValueError: it is not by the server's address.
            ServerUnavailable: the server gives no weights.
        """
        if not self.is_local(server_id):
            return transport
        if not isinstance(transport, NetworkTransport):
            raise ValueError(
                "local inference is for servers that are given by their address, and server "
                f"{server_id!r} is a {type(transport).__name__}"
            )
        local = self.acting(transport)
        local.fetch_spec()
        return local

    def is_local(self, server_id: str) -> bool:
        """Whether inference for a server is local."""
        return self._modes.get(server_id, self._usual) == "local"

    def acting(self, transport: NetworkTransport, seed: int | None = None) -> LocalTransport:
        """Returns a transport that acts in its server's place.

        Args:
            transport: to the server.
            seed: of exploration; None: any.
        """
        return LocalTransport(transport, update_interval_s=self._update_interval_s, seed=seed)

    def check_names(self, server_ids: Collection[str]) -> None:
        """Raises `AssignmentError` if a mode is for none of these servers."""
        if unknown := self._modes.keys() - set(server_ids):
            raise AssignmentError(
                f"inference_mode names {sorted(unknown)}; the servers are {list(server_ids)}"
            )
