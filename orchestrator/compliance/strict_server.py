"""A server that answers at random, notes what its client does wrong, and fails on purpose.

Its episodes are numbered by their starts: of the second one it loses an answer, of the third it
holds one back, the fourth it does not know any more, and the fifth it refuses to start once.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from typing import Any, TypeVar

import numpy as np
from msgspec import Raw

from muxrl.orchestrator.compliance.notes import Notes
from muxrl.protocol import PROTOCOL_VERSION
from muxrl.protocol.codec import encode_json
from muxrl.protocol.episode import EpisodeEvent, EpisodeStateMachine, check_episode_id
from muxrl.protocol.errors import (
    EpisodeGone,
    NotServing,
    OutOfOrder,
    ProtocolError,
    RunOver,
    ValueMismatch,
)
from muxrl.protocol.message_sizes import needed_bytes
from muxrl.protocol.messages import (
    Aborted,
    AbortEpisode,
    Actions,
    AgentInfo,
    AnyItem,
    AnyReply,
    Ended,
    EndEpisode,
    PlayedSteps,
    ServerSpec,
    Started,
    StartEpisode,
    Status,
    Step,
    StepRows,
)
from muxrl.protocol.spaces import Space
from muxrl.protocol.values import sample_action
from muxrl.servers.episodes.step_check import CheckedStep, StepCheck
from muxrl.servers.network.front import Answered, Front
from muxrl.servers.network.message_limits import MessageLimits

ENOUGH_EPISODES = 6
"""After which every trouble has been made."""
_MOST_EPISODES = 20
"""After which the run is over, for a program that plays until then."""
HELD_S = 0.5
_CUT, _HELD, _GONE, _REFUSED = 1, 2, 3, 4
_TROUBLE_AT = 1
"""The step of an episode at which its trouble is made."""
_LATER_S = 0.1
_MAX_EPISODES = 256
_TIMEOUT_S = 1800.0

T = TypeVar("T")


class _Episode:
    """One that was started. `answer`: to its last item. `closed_by`: what has closed it."""

    def __init__(self, number: int, start: StartEpisode) -> None:
        self.number = number
        self.start = start
        self.machine = EpisodeStateMachine(start.episode_id)
        self.machine.handle(EpisodeEvent.START)
        self.last: Step | None = None
        self.answer: AnyReply = Started(start.episode_id)
        self.acted: frozenset[str] = frozenset()
        self.done: frozenset[str] = frozenset()
        self.returns: dict[str, float] = {}
        self.closed_by: type[AnyItem] | None = None
        self.is_gone = False
        self.is_owed = False


class StrictServer(Front):
    """Answers items, and notes on the way which rules its client keeps.

    Args:
        agents: by id, their observation and action spaces.
        state_size: length of the global state that it asks for; None: none.
        address: see `Front`.
        notes: takes what is seen.
        cut: breaks all connections off; called on the event loop.
    """

    def __init__(
        self,
        agents: dict[str, tuple[Space, Space]],
        state_size: int | None,
        address: str,
        notes: Notes,
        cut: Callable[[], None],
    ) -> None:
        infos = {agent_id: AgentInfo("strict", *spaces) for agent_id, spaces in agents.items()}
        spec = ServerSpec(
            PROTOCOL_VERSION,
            "strict",
            "STRICT",
            infos,
            state_size=state_size,
            max_episodes=_MAX_EPISODES,
            max_message_bytes=needed_bytes(infos, state_size, _MAX_EPISODES),
            episode_timeout_s=_TIMEOUT_S,
        )
        super().__init__(spec, address, token="")
        self.messages = _NotedMessages(spec, notes)
        self.has_seen_enough = threading.Event()
        self.has_said_over = False
        """Whether it has refused a start since the run was over."""
        self._notes = notes
        self._cut = cut
        self._check = StepCheck(infos, state_size)
        self._rng = np.random.default_rng(0)
        self._episodes: dict[str, _Episode] = {}
        self._has_refused = False
        self._refused_start: str | None = None
        self._is_replying = False

    def status(self) -> Status:
        num_open = sum(e.closed_by is None and not e.is_gone for e in self._episodes.values())
        return Status(self.spec.server_id, "ready", num_open_episodes=num_open)

    def finish(self, *, was_ended: bool) -> None:
        """Notes what is known only once the client has gone.

        Args:
            was_ended: whether it was stopped in the middle of its work.
        """
        if self._refused_start is not None and not was_ended:
            self._notes.broken("503", "the start again", "it did not come")
        for episode_id, episode in self._episodes.items():
            if episode.closed_by is not None:
                self._notes.kept("closed")
            elif not (episode.is_gone or was_ended):
                self._notes.broken("closed", f"an end or abort of {episode_id}", "none")
            if episode.is_owed and not was_ended:
                self._notes.broken("repeats", f"t={episode.machine.t - 1} of {episode_id} again",
                                   "it did not come")  # fmt: skip

    # --- frames -------------------------------------------------------------------------

    def answer(self, items: list[AnyItem], reply: Answered, *, is_alone: bool) -> None:
        self._notes.kept("messages")
        if self._is_replying:
            self._notes.broken("turns", "the next frame after the answer", "it came before")
        troubles = {self._trouble_of(item) for item in items}
        replies = [self._accept(item) for item in items]
        loop = asyncio.get_running_loop()
        if _CUT in troubles:
            for item in items:
                if isinstance(item, Step):
                    self._episodes[item.episode_id].is_owed = True
            self._cut()
            loop.call_later(_LATER_S, self._reply, reply, replies)  # nobody hears it
        elif _HELD in troubles:
            held = {self._episodes[i.episode_id] for i in items if i.episode_id in self._episodes}
            for episode in held:
                episode.is_owed = True
            loop.call_later(HELD_S, self._release, held, reply, replies)
        else:
            self._reply(reply, replies)

    def _reply(self, reply: Answered, replies: list[AnyReply]) -> None:
        # A frame that came too early is answered within this call.
        self._is_replying = True
        try:
            reply(replies)
        finally:
            self._is_replying = False

    def _release(self, held: set[_Episode], reply: Answered, replies: list[AnyReply]) -> None:
        for episode in held:
            episode.is_owed = False
        self._notes.kept("turns")
        self._reply(reply, replies)

    def _trouble_of(self, item: AnyItem) -> int | None:
        """Returns the trouble that an item makes, if it is the first time."""
        episode = self._episodes.get(item.episode_id)
        if episode is None or not isinstance(item, Step) or item.t != _TROUBLE_AT:
            return None
        is_first = episode.machine.t == _TROUBLE_AT
        return episode.number if is_first and not episode.is_gone else None

    # --- items --------------------------------------------------------------------------

    def _accept(self, item: AnyItem) -> AnyReply:
        try:
            if isinstance(item, StartEpisode):
                return self._start(item)
            episode = self._episodes.get(item.episode_id)
            if isinstance(item, AbortEpisode) and (episode is None or episode.is_gone):
                return Aborted(item.episode_id)
            if episode is None:
                self._notes.broken("starts", f"a start of {item.episode_id} before", item)
                raise EpisodeGone(f"episode {item.episode_id} was never started")
            if episode.is_gone:
                self._notes.broken("410", "another episode after a 410", item)
                raise EpisodeGone(f"episode {item.episode_id} is unknown here")
            if isinstance(item, Step):
                return self._step(episode, item)
            if isinstance(item, PlayedSteps):
                raise ValueMismatch("it takes no steps in which a client acted by itself")
            assert not isinstance(item, StepRows), "its spec takes none"
            return self._close(episode, item)
        except ProtocolError as error:
            return self.refuse(item, error)

    def _start(self, item: StartEpisode) -> AnyReply:
        self._noted("starts", lambda: check_episode_id(item.episode_id))
        known = self._episodes.get(item.episode_id)
        if known is not None:
            if known.machine.t <= 1 and known.start == item and known.closed_by is None:
                return Started(item.episode_id)
            self._notes.broken("starts", "an id that was not used before", item)
            raise OutOfOrder(f"episode {item.episode_id} was started before")
        if len(self._episodes) >= _MOST_EPISODES:
            self.has_said_over = True
            raise RunOver("the run has ended: all has been seen")
        if any(episode.is_gone for episode in self._episodes.values()):
            self._notes.kept("410")
        if self._refused_start == item.episode_id:
            self._notes.kept("503")
            self._refused_start = None
        elif len(self._episodes) == _REFUSED and not self._has_refused:
            self._refused_start = item.episode_id
            self._has_refused = True
            raise NotServing("this server is stopping")
        self._episodes[item.episode_id] = _Episode(len(self._episodes), item)
        return Started(item.episode_id)

    def _step(self, episode: _Episode, item: Step) -> AnyReply:
        machine = episode.machine
        if episode.closed_by is not None:
            self._notes.broken("order", "nothing after the end", item)
            raise EpisodeGone(f"episode {item.episode_id} is over")
        if self._noted("order", lambda: machine.is_repeat(item.t)):
            self._repeat(episode, item)
            return episode.answer
        if episode.is_owed:
            self._notes.broken("turns", "nothing before the answer", item)
        if episode.number == _GONE and item.t == _TROUBLE_AT:
            episode.is_gone = True
            raise EpisodeGone(
                f"episode {item.episode_id} is unknown here; was the server restarted?"
            )
        if back := sorted(item.observations.keys() & episode.done):
            self._notes.broken("done", "observations of who is not done", f"one of {back}")
        checked = self._noted(
            "values", lambda: self._check.step(item, episode.done, episode.returns)
        )
        self._leave(episode, item, checked)
        episode.acted = frozenset(checked.observations)
        if not item.observations:
            self._notes.broken("values", "an observation in each step", "none")
        machine.handle(EpisodeEvent.OBSERVE)
        machine.handle(EpisodeEvent.ACT)
        actions = {
            a: sample_action(self.spec.agents[a].action_space, seen, self._rng)
            for a, seen in checked.observations.items()
        }
        episode.last, episode.answer = item, Actions(item.episode_id, item.t, actions)
        return episode.answer

    def _repeat(self, episode: _Episode, item: Step) -> None:
        if episode.is_owed:
            episode.is_owed = False
            self._notes.kept("repeats")
        is_sign_of_life = not (item.observations or item.rewards)
        if not is_sign_of_life and encode_json(item) != encode_json(episode.last):
            self._notes.broken("repeats", f"the same again: {episode.last}", item)

    def _close(self, episode: _Episode, item: EndEpisode | AbortEpisode) -> AnyReply:
        if episode.closed_by is not None:
            return episode.answer
        if isinstance(item, EndEpisode):
            if item.t != episode.machine.t:
                story = f"t={episode.machine.t}, its number of steps"
                self._notes.broken("order", f"an end with {story}", f"t={item.t}")
                raise OutOfOrder(f"the end needs {story}", expected=story, got=f"t={item.t}")
            checked = self._noted(
                "values", lambda: self._check.end(item, episode.done, episode.returns)
            )
            self._leave(episode, item, checked)
            episode.answer = Ended(item.episode_id, item.t, episode.returns)
        else:
            episode.answer = Aborted(item.episode_id)
        episode.is_owed = False  # it was closed without the answer, as whoever gives up does
        episode.closed_by = type(item)
        if len(self._episodes) >= ENOUGH_EPISODES:
            self.has_seen_enough.set()
        return episode.answer

    def _leave(self, episode: _Episode, item: Step | EndEpisode, checked: CheckedStep) -> None:
        """Notes who leaves, with or without a final observation, and adds up rewards."""
        for agent_id in checked.truncated & episode.acted:
            if agent_id not in item.final_observations:
                self._notes.broken("finals", f"final_observations[{agent_id!r}]", "none")
                raise ValueMismatch(
                    f"agent {agent_id!r} is truncated without a final observation",
                    agent_id=agent_id, expected=f"final_observations[{agent_id!r}]", got="none",
                )  # fmt: skip
            self._notes.kept("finals")
        episode.done |= checked.terminated | checked.truncated
        if episode.done and isinstance(item, Step):
            self._notes.kept("done")
        for rewards in (checked.rewards, checked.late_rewards):
            for agent_id, reward in rewards.items():
                episode.returns[agent_id] = episode.returns.get(agent_id, 0.0) + reward

    def _noted(self, rule: str, check: Callable[[], T]) -> T:
        """Notes whether a check passes; its refusal is raised."""
        try:
            result = check()
        except ProtocolError as error:
            self._notes.broken(rule, error.expected or "something else", error.message)
            raise
        self._notes.kept(rule)
        return result


class _NotedMessages(MessageLimits):
    """Reads messages, and notes those that are none."""

    def __init__(self, spec: ServerSpec, notes: Notes) -> None:
        super().__init__(spec)
        self._notes = notes

    def read(self, message: bytes | str) -> list[AnyItem]:
        return self._noted(super().read, message)

    def read_json(self, body: bytes) -> list[AnyItem]:
        return self._noted(super().read_json, body)

    def read_fields(self, body: bytes) -> dict[str, Raw]:
        return self._noted(super().read_fields, body)

    def _noted(self, read: Callable[[Any], T], message: bytes | str) -> T:
        try:
            return read(message)
        except ProtocolError as error:
            self._notes.broken("messages", "a message of the protocol", error.message)
            raise
