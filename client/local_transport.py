"""Local inference: a transport that acts by itself and tells its server afterwards.

It pulls the server's networks (`LocalPolicies`), answers steps with them, and keeps the played
steps until the next message to the server. A message is due with a start, an end or an abort, with
the step that completes the server's next batch, and after a fraction of a second. The server
is then sent all kept steps, and chooses the actions of that message's own steps, as without local
inference. A server that learns holds its answer to such a message as to any other, so it acts in
the first step after an update itself. No step is dropped in silence: steps that could not be sent
are counted and logged, and the next item of their episode is refused.
"""

from __future__ import annotations

import copy
import logging
import math
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, TypeGuard

import msgspec
import numpy as np

from muxrl.client.errors import ServerUnavailable
from muxrl.client.local_policies import LocalPolicies, no_local_inference
from muxrl.client.network_transport import NetworkTransport
from muxrl.client.transport import Around
from muxrl.protocol.errors import EpisodeGone, ValueMismatch
from muxrl.protocol.messages import (
    Aborted,
    AbortEpisode,
    ActionRows,
    Actions,
    AnyItem,
    AnyReply,
    Ended,
    PlayedRows,
    PlayedSteps,
    Recorded,
    Refused,
    ServerSpec,
    StartEpisode,
    Step,
    StepRows,
)
from muxrl.protocol.rows import (
    Layout,
    actions_of,
    answers_of,
    are_floats,
    are_rows,
    each_array,
    empty,
    layouts,
    leaves,
    rows_of,
    singles,
)
from muxrl.protocol.spaces import Box, Discrete, Space
from muxrl.protocol.values import Mismatch, Unsound, conform

logger = logging.getLogger(__name__)

_MOST_STEPS = 256
"""Most steps sent at once, where rows count as one step. A server takes some 10 ms to record them,
and answers no other client meanwhile."""
_GIVEN = ("t", "observations", "rewards", "state")
"""Fields of rows that the simulation may overwrite."""
_LONGEST_S = 0.2
"""Longest time until played steps are sent, if steps are slow."""
_MOST_BYTES = 1 << 20
"""Played steps are sent at this size: half of what a server reads that is not one array
(`MAX_PLAIN_BYTES` there)."""
_AGENT_BYTES = 200
"""Bytes of a step for each agent, besides arrays."""
_ROW_BYTES = 200
"""Bytes of a step for its episode."""


@dataclass(slots=True)
class _Open:
    """An open episode."""

    should_explore: bool
    slot: int
    t: int = 0
    kept: PlayedSteps | None = None
    """The kept item to which its next single step is added; None: its last step was in rows, or
        all is sent. Until it is sent, logits are lists by agent."""


class LocalTransport(Around):
    """A `Transport` that acts in its server's place.

    Args:
        transport: the transport to the server.
        update_interval_s: newer weights are pulled at most once in this time, when the server is
            known to have any; None: only when `update_weights` is called.
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
        self._episodes: dict[str, _Open] = {}
        self._layout: Callable[[tuple[str, ...]], Layout]
        self._refused: dict[str, Refused] = {}
        """By episode id: the refusal for the next item of an episode whose steps were lost."""
        self._items: Sequence[AnyItem] = ()
        self._sent: list[AnyItem] = []
        """The last frame that was sent."""
        self._is_acting = False
        """Whether the items are answered here, without the server."""
        self._newest = 0
        """The newest known version of the server's weights."""
        self._is_doubtful = False
        """Whether the server may have been restarted, with other weights."""
        self._num_wanted: int | None = None
        """Env steps until the server's next batch is complete; None: not known yet."""
        self._kept: list[PlayedSteps | PlayedRows] = []
        """Played steps that have not been sent."""
        self._num_kept = self._num_transitions = self._num_bytes = 0
        """How many steps are kept, where rows count as one; how many transitions they complete; and
        their size in bytes, at most."""
        self._step_bytes = self._row_bytes = self._most_bytes = 0
        self._kept_since = 0.0

    # --- a `Transport` ------------------------------------------------------------------

    @property
    def num_lost_steps(self) -> int:  # type: ignore[override]
        return self._num_lost_steps

    def fetch_spec(self, patience_s: float = 0.0) -> ServerSpec:
        """Returns the server's spec, and pulls its networks.

        Args:
            patience_s: see `NetworkTransport.fetch_spec`.

        Raises:
            ServerUnavailable: the server cannot be reached, or its policies cannot act here.
        """
        self._spec = spec = self._transport.fetch_spec(patience_s)
        weights = self._transport.fetch_weights()
        if weights.problem:
            text = no_local_inference(spec.server_id, spec.algorithm, weights.problem)
            raise ServerUnavailable(text, server_id=spec.server_id)
        self._policies = LocalPolicies(spec, weights, self._seed)
        self._layout = layouts(spec.agents)
        self._pulled_at = time.monotonic()
        self._most_bytes = min(_MOST_BYTES, spec.max_message_bytes // 2 or _MOST_BYTES)
        self._row_bytes = _ROW_BYTES + self._policies.num_state_bytes + _array_bytes(spec)
        self._step_bytes = self._row_bytes + _AGENT_BYTES * len(spec.agents)
        return spec

    def send(self, items: Sequence[AnyItem]) -> None:
        self._items = items
        num_transitions = 0
        self._is_acting = True
        for item in items:
            if isinstance(item, StartEpisode) and item.episode_id not in self._episodes:
                explores = item.should_explore
                explores = item.mode == "train" if explores is None else explores
                self._episodes[item.episode_id] = _Open(explores, self._policies.begin())
            if not self._acts_on(item):
                self._is_acting = False
            else:
                num_transitions += _num_transitions(item)
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
        """Whether the same server answers now; may be called from another thread."""
        return self._transport.is_there()

    # --- weights ------------------------------------------------------------------------

    def update_weights(self) -> None:
        """Sends the steps played with the old weights, then pulls the newest weights.

        Raises:
            ServerUnavailable: the server does not answer.
        """
        self.tell_played()
        self._pull()

    def tell_played(self) -> None:
        """Sends the server all played steps that it has not been sent yet.

        Raises:
            ServerUnavailable: the server does not answer.
        """
        if self._kept:
            self._tell([])
            self._handle(None)

    def _pull(self) -> None:
        self._policies.load(self._transport.fetch_weights())
        self._newest, self._is_doubtful = self._policies.version, False
        self._pulled_at = time.monotonic()

    def _update_if_due(self) -> None:
        """Pulls weights if the server has others; all played steps have been sent by now."""
        if self._is_doubtful:
            self._pull()
        interval_s = self._update_interval_s
        if interval_s is None or self._newest == self._policies.version:
            return
        if time.monotonic() - self._pulled_at >= interval_s:
            self._pull()

    # --- messages to the server ---------------------------------------------------------

    def _acts_on(self, item: AnyItem) -> TypeGuard[Step | StepRows]:
        """Whether an item is a step to act in here: a new one, without actions chosen elsewhere."""
        if isinstance(item, Step):
            return not item.logged_actions and self._awaits(item.episode_id, item.t)
        if not isinstance(item, StepRows) or item.logged_actions is not None:
            return False
        return all(map(self._awaits, item.episode_ids, item.t.tolist()))

    def _awaits(self, episode_id: str, t: int) -> bool:
        episode = self._episodes.get(episode_id)
        return episode is not None and t == episode.t and episode_id not in self._refused

    def _is_due(self, num_transitions: int) -> bool:
        """Whether the server has to be sent the kept steps now.

        Args:
            num_transitions: of the items that are about to be sent.
        """
        if self._num_wanted is None:
            return bool(self._kept)
        return (
            self._num_transitions + num_transitions >= self._num_wanted
            or self._num_kept >= _MOST_STEPS
            or self._num_bytes >= self._most_bytes
            or (bool(self._kept) and time.monotonic() - self._kept_since >= _LONGEST_S)
        )

    def _tell(self, items: Sequence[AnyItem]) -> None:
        """Sends the kept steps, and then these items."""
        for episode in self._episodes.values():
            episode.kept = None
        for one in self._kept:
            if isinstance(one, PlayedSteps):
                one.logits = {agent_id: np.array(rows) for agent_id, rows in one.logits.items()}
        self._sent, self._kept = [*self._kept, *items], []
        self._num_kept = self._num_transitions = self._num_bytes = 0
        try:
            self._transport.send(self._sent)
        except ServerUnavailable:
            self._lose()
            raise

    def _handle(self, patience_s: float | None) -> list[AnyReply]:
        """Receives the replies to the last frame; returns those to the caller's items."""
        try:
            replies = self._transport.receive(patience_s)
        except ServerUnavailable:
            self._lose()
            raise
        return self._sort(replies)

    def _lose(self) -> None:
        """Notes that played steps of the last frame may be lost; their episodes cannot go on."""
        self._is_doubtful = True
        lost = Counter(_played_in(self._sent))
        for episode_id, num in lost.items():
            text = (
                f"server {self._spec.server_id!r} was lost, and with it {num} steps that the "
                f"client had played in episode {episode_id} with local inference"
            )
            refusal = Refused(episode_id, code=EpisodeGone.code, message=text)
            self._note_lost(episode_id, num, refusal)

    def _note_lost(self, episode_id: str, num_steps: int, refusal: Refused) -> None:
        self._num_lost_steps += num_steps
        self._refused.setdefault(episode_id, refusal)
        self._is_doubtful = True
        logger.warning("up to %d steps are not recorded: %s", num_steps, refusal.message)

    def _sort(self, replies: Sequence[AnyReply]) -> list[AnyReply]:
        """Handles the replies to the last frame; returns those to the caller's items.

        If played steps were refused, the next item of their episode is refused, too.
        """
        if len(replies) != len(self._sent):  # the frame was refused as a whole
            self._lose()
            return list(replies)
        others: list[AnyReply] = []
        for item, reply in zip(self._sent, replies, strict=True):
            if isinstance(reply, Recorded):
                self._newest = reply.weights_seq_no
                self._num_wanted = reply.num_wanted or _MOST_STEPS
                if reply.epsilon is not None:
                    self._policies.epsilon = reply.epsilon
                for refused in reply.refused:
                    self._note_lost(refused.episode_id, 1, refused)
            elif isinstance(item, PlayedSteps | PlayedRows):
                assert isinstance(reply, Refused)
                for episode_id, num in Counter(_played_in([item])).items():
                    self._note_lost(episode_id, num, reply)
            elif isinstance(item, StepRows) and isinstance(reply, ActionRows):
                others.append(self._sort_rows(item, reply))
            else:
                others.append(self._sort_one(item, reply))
        return others

    def _sort_rows(self, item: StepRows, reply: ActionRows) -> ActionRows:
        layout = self._layout(tuple(item.agents or self._spec.agents))
        if reply.replies or not self._refused.keys().isdisjoint(item.episode_ids):
            pairs = zip(singles(layout, item), answers_of(layout, item, reply), strict=True)
            return ActionRows(replies=[self._sort_one(*one) for one in pairs])
        self._newest = reply.weights_seq_no
        episodes = [self._episodes[episode_id] for episode_id in item.episode_ids]
        for one in episodes:
            one.t += 1
        slots = [one.slot for one in episodes]
        self._policies.follow(layout, item.observations, slots, reply.actions)
        return reply

    def _sort_one(self, item: AnyItem, reply: AnyReply) -> Any:
        episode_id = item.episode_id
        refusal = self._refused.pop(episode_id, None)
        if refusal is not None and not isinstance(item, AbortEpisode):
            reply = refusal
        episode = self._episodes.get(episode_id)
        if isinstance(reply, Actions) and episode is not None:
            self._newest = reply.weights_seq_no
            if reply.t == episode.t and isinstance(item, Step):
                self._follow(item, reply, episode)
        if isinstance(reply, Refused | Ended | Aborted) and episode is not None:
            self._policies.end(self._episodes.pop(episode_id).slot)
        if isinstance(reply, Refused) and reply.code == EpisodeGone.code:
            self._is_doubtful = True
        return reply

    def _follow(self, item: Step, reply: Actions, episode: _Open) -> None:
        """Updates the policies' memory with a step in which the server has acted."""
        episode.t += 1
        if self._policies.forms_teams:
            agents = self._spec.agents
            seen = {
                agent_id: conform(agents[agent_id].observation_space, value)
                for agent_id, value in item.observations.items()
            }
            layout = self._layout(tuple(seen))
            rows = rows_of(layout.observed, seen), [episode.slot]
            self._policies.follow(layout, *rows, rows_of(layout.acted, reply.actions))

    # --- acting -------------------------------------------------------------------------

    def _act(self) -> list[AnyReply]:
        """Acts in the steps of the last frame, keeps them, and returns the answers."""
        return [
            self._act_in_rows(item) if isinstance(item, StepRows) else self._act_alone(item)
            for item in self._items
        ]

    def _act_in_rows(self, item: StepRows) -> ActionRows:
        layout = self._layout(tuple(item.agents or self._spec.agents))
        if not self._are_sound(layout, item):
            replies = [self._act_alone(step) for step in singles(layout, item)]
            return ActionRows(replies=replies)
        episodes = [self._episodes[episode_id] for episode_id in item.episode_ids]
        actions, logits, states = self._choose(layout, item.observations, episodes)
        fields = msgspec.structs.asdict(item)
        own = {name: each_array(copy.copy, fields[name]) for name in _GIVEN}
        kept = {"logged_actions": actions, "logits": logits, "states": states}
        version = self._policies.version
        self._note_kept(item, len(episodes) * self._row_bytes)
        self._kept.append(PlayedRows(**{**fields, **own, **kept}, weights_seq_no=version))
        for episode in episodes:
            episode.kept = None
        return ActionRows(actions=[rows.copy() for rows in actions], weights_seq_no=version)

    def _act_alone(self, item: AnyItem) -> Actions | Refused:
        assert isinstance(item, Step)
        step = self._checked(item)
        if isinstance(step, Refused):
            return step
        episode, version = self._episodes[step.episode_id], self._policies.version
        layout = self._layout(tuple(step.observations))
        seen = rows_of(layout.observed, step.observations)
        actions, logits, states = self._choose(layout, seen, [episode])
        step.logged_actions = actions_of(layout, actions, 0)
        self._note_kept(step, self._step_bytes)
        if episode.kept is None:
            episode.kept = PlayedSteps(step.episode_id, version, [])
            self._kept.append(episode.kept)
        episode.kept.steps.append(step)
        episode.kept.states |= {team: rows[0] for team, rows in states.items()}
        for kind, rows in zip(layout.acted, logits, strict=bool(logits)):
            for column, agent_id in enumerate(kind.agents):
                episode.kept.logits.setdefault(agent_id, []).append(rows[0, column])
        return Actions(step.episode_id, step.t, step.logged_actions, version)

    def _choose(
        self, layout: Layout, observations: Sequence[Any], episodes: Sequence[_Open]
    ) -> tuple[list[np.ndarray], list[np.ndarray], dict[str, np.ndarray]]:
        """Returns actions and logits, as rows of each kind; and recurrent states after them."""
        slots = [one.slot for one in episodes]
        explores = [one.should_explore for one in episodes]
        actions, logits = self._policies.act(layout, observations, slots, explores)
        for one in episodes:
            one.t += 1
        return actions, logits, self._policies.states(layout, slots)

    def _note_kept(self, item: Step | StepRows, num_bytes: int) -> None:
        if not self._kept:
            self._kept_since = time.monotonic()
        self._num_kept += 1
        self._num_bytes += num_bytes
        self._num_transitions += _num_transitions(item)

    def _are_sound(self, layout: Layout, item: StepRows) -> bool:
        """Whether all values are as declared; if not, each step is checked alone."""
        lead, size = len(item.t), self._spec.state_size
        if size is not None and not are_floats(item.state, (lead, size), math.inf, np.float32):
            return False
        pairs = zip(layout.observed, item.observations, strict=True)
        return all(are_rows(kind, rows, lead, math.inf) for kind, rows in pairs)

    def _checked(self, step: Step) -> Step | Refused:
        """Returns a copy of a step, as the simulation may overwrite its values; or a refusal."""
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


def _num_transitions(item: Step | StepRows) -> int:
    """Returns how many transitions an item completes: all but first steps complete one each."""
    return int(item.t > 0) if isinstance(item, Step) else int(np.count_nonzero(item.t))


def _played_in(items: Sequence[AnyItem]) -> Iterator[str]:
    """Yields the episode id of each played step among the items."""
    for item in items:
        if isinstance(item, PlayedRows):
            yield from item.episode_ids
        elif isinstance(item, PlayedSteps):
            yield from [item.episode_id] * len(item.steps)


def _own(space: Space, value: Any) -> Any:
    """Returns a copy of a value in the form that its space declares."""
    value = conform(space, value)
    return value.copy() if type(value) is np.ndarray else each_array(copy.copy, value)


def _array_bytes(spec: ServerSpec) -> int:
    """Returns the bytes of the arrays in a step of all agents, with a logit for each action."""
    num_bytes = 4 * (spec.state_size or 0)
    for agent in spec.agents.values():
        seen, acts = agent.observation_space, agent.action_space
        assert isinstance(acts, Discrete)
        num_bytes += 4 * acts.n
        num_bytes += sum(array.nbytes for array in leaves(seen, empty(seen, ())))
    return num_bytes
