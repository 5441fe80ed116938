"""A RANDOM server that notes which rules its client breaks, and fails on purpose.

The episodes are numbered in the order of their starts. The server loses an answer of the second
episode, delays an answer of the third, forgets the fourth, and refuses once to start the fifth.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import msgspec

from muxrl.orchestrator.compliance.notes import Notes
from muxrl.protocol.codec import encode_json
from muxrl.protocol.errors import (
    EpisodeGone,
    MalformedMessage,
    MessageTooLarge,
    NotServing,
    OutOfOrder,
    ProtocolError,
    RunOver,
)
from muxrl.protocol.messages import (
    AbortEpisode,
    AnyItem,
    AnyReply,
    EndEpisode,
    Refused,
    StartEpisode,
    Status,
    Step,
)
from muxrl.protocol.spaces import Space
from muxrl.servers.app import PolicyServerApp
from muxrl.servers.config import AgentPlan, LimitsConfig, ServerPlan
from muxrl.servers.episodes.blocks import Awaited
from muxrl.servers.network.front import Answered
from muxrl.servers.network.listening import Network
from muxrl.servers.server import PolicyServer

ENOUGH_EPISODES = 6
"""After so many episodes the server has made all of its faults."""
_MOST_EPISODES = 20
"""After so many episodes the run is over, for programs that play until a run ends."""
HELD_S = 0.5
_CUT, _HELD, _GONE, _REFUSED = 1, 2, 3, 4
_FAULT_AT = 1
"""The step of an episode at which its fault is made."""
_LATER_S = 0.1
_MAX_EPISODES = 256


@dataclass(eq=False)
class _Episode:
    """An episode that was started."""

    number: int
    t: int = 0
    """Number of steps of the episode so far."""
    last: Step | None = None
    done: frozenset[str] = frozenset()
    is_closed: bool = False
    is_gone: bool = False
    is_pending: bool = False
    """Whether an answer was lost, or is delayed."""


class StrictServer(PolicyServerApp):
    """Answers items like a RANDOM server, and notes which rules its client keeps.

    Args:
        agents: by id: observation and action space.
        state_size: length of the global state that it reads; None: it reads none.
        network: the network on which it listens.
        notes: collects what it notes.
        agents_return: whether agents may observe again after their end.
    """

    def __init__(
        self,
        agents: Mapping[str, tuple[Space, Space]],
        state_size: int | None,
        network: Network,
        notes: Notes,
        *,
        agents_return: bool = False,
    ) -> None:
        plans = {agent_id: AgentPlan("strict", *spaces) for agent_id, spaces in agents.items()}
        limits = LimitsConfig(max_episodes=_MAX_EPISODES)
        how: dict[str, Any] = {"limits": limits, "agents_return": agents_return}
        plan = ServerPlan("strict", "RANDOM", plans, {}, state_size, **how)
        server = PolicyServer(plan, network=network)
        super().__init__(
            msgspec.structs.replace(
                server.spec(), algorithm="STRICT", takes_rows=False, takes_seed=False
            ),
            network.address,
            token="",
            policies=server.policies,
            status=lambda: Status("strict", "ready", num_open_episodes=self.store.num_open),
        )
        self.has_seen_enough = threading.Event()
        self.has_ended_run = False
        """Whether it has refused a start because the run was over."""
        self._notes = notes
        self._cut = network.cut
        self._episodes: dict[str, _Episode] = {}
        self._refused_start: str | None = None
        """The episode whose start was refused; "": it has been started since; None: none was."""
        self._is_replying = False

    def finish(self, *, was_ended: bool) -> None:
        """Notes what is known only once the client has ended.

        Args:
            was_ended: whether the client was stopped in the middle of its work.
        """
        if self._refused_start and not was_ended:
            self._notes.broken("503", "the refused start again", "it was not sent")
        for episode_id, episode in self._episodes.items():
            if episode.is_closed:
                self._notes.kept("closed")
            elif not (episode.is_gone or was_ended):
                self._notes.broken("closed", f"an end or abort of episode {episode_id}", "none")
            if episode.is_pending and not was_ended:
                again = f"t={episode.t - 1} of episode {episode_id} again"
                self._notes.broken("repeats", again, "it was not sent")

    # --- frames -------------------------------------------------------------------------

    def answer(self, items: list[AnyItem], reply: Answered, *, is_alone: bool) -> None:
        self._notes.kept("messages")
        if self._is_replying:
            self._notes.broken("turns", "the next frame after the answer", "it was sent before")
        faults = {self._fault_of(item) for item in items}
        loop = asyncio.get_running_loop()

        def answered(replies: list[AnyReply]) -> None:
            if _CUT in faults:
                loop.call_later(_LATER_S, self._reply, reply, replies)  # the answer gets lost
            elif _HELD in faults:
                loop.call_later(HELD_S, self._release, items, reply, replies)
            else:
                self._reply(reply, replies)

        super().answer(items, answered, is_alone=is_alone)
        if faults & {_CUT, _HELD}:
            self._set_pending(items, True)
        if _CUT in faults:
            self._cut()

    def _set_pending(self, items: list[AnyItem], is_pending: bool) -> None:
        for item in items:
            if item.episode_id in self._episodes:
                self._episodes[item.episode_id].is_pending = is_pending

    def _reply(self, reply: Answered, replies: list[AnyReply]) -> None:
        # A frame that is already there, and so came too early, is answered within this call.
        self._is_replying = True
        try:
            reply(replies)
        finally:
            self._is_replying = False

    def _release(self, items: list[AnyItem], reply: Answered, replies: list[AnyReply]) -> None:
        self._set_pending(items, False)
        self._notes.kept("turns")
        self._reply(reply, replies)

    def _fault_of(self, item: AnyItem) -> int | None:
        """Returns the fault to make at an item, if it has not been made yet."""
        episode = self._episodes.get(item.episode_id)
        if episode is None or not isinstance(item, Step) or item.t != _FAULT_AT:
            return None
        return episode.number if episode.t == _FAULT_AT and not episode.is_gone else None

    # --- items --------------------------------------------------------------------------

    def accept(self, item: AnyItem, now: float) -> AnyReply | Awaited:
        episode = self._episodes.get(item.episode_id)
        try:
            if isinstance(item, StartEpisode) and episode is None:
                self._make_fault(item)
            elif episode is not None:
                self._look(item, episode, now)
        except ProtocolError as error:
            return super().refuse(item, error)
        outcome = super().accept(item, now)
        if isinstance(item, StartEpisode) and not isinstance(outcome, Refused):
            self._notes.kept("starts")
            self._episodes.setdefault(item.episode_id, _Episode(len(self._episodes)))
        elif episode is not None and not isinstance(outcome, Refused):
            self._accept(item, episode)
        return outcome

    def _make_fault(self, item: StartEpisode) -> None:
        """Refuses starts once the run is over, and the start of the fifth episode once.

        Raises:
            RunOver, NotServing: the start is refused.
        """
        if len(self._episodes) >= _MOST_EPISODES:
            self.has_ended_run = True
            raise RunOver("the run has ended: the strict server has tested everything")
        if any(episode.is_gone for episode in self._episodes.values()):
            self._notes.kept("410")
        if self._refused_start == item.episode_id:
            self._notes.kept("503")
            self._refused_start = ""
        elif len(self._episodes) == _REFUSED and self._refused_start is None:
            self._refused_start = item.episode_id
            raise NotServing("this server is stopping")

    def _look(self, item: AnyItem, episode: _Episode, now: float) -> None:
        """Notes broken rules that a RANDOM server would not refuse.

        Raises:
            EpisodeGone: the server has forgotten the episode.
        """
        if episode.is_gone and not isinstance(item, AbortEpisode):
            self._notes.broken("410", "the start of another episode after a 410", item)
            raise EpisodeGone(f"episode {item.episode_id} is unknown here")
        if not isinstance(item, Step) or episode.is_closed:
            return
        if item.t == episode.t - 1:
            if episode.is_pending:
                episode.is_pending = False
                self._notes.kept("repeats")
            is_sign_of_life = not (item.observations or item.rewards)
            if not is_sign_of_life and encode_json(item) != encode_json(episode.last):
                self._notes.broken("repeats", f"the same step again: {episode.last}", item)
        elif item.t == episode.t:
            if episode.is_pending:
                self._notes.broken("turns", "no step before the answer to the last one", item)
            if episode.number == _GONE and item.t == _FAULT_AT:
                episode.is_gone = True
                self.store.accept(AbortEpisode(item.episode_id), now)
                detail = f"episode {item.episode_id} is unknown here; was the server restarted?"
                raise EpisodeGone(detail)
            back = sorted(item.observations.keys() & episode.done)
            if back and not self.spec.agents_return:
                expected = "observations only of agents that are not done"
                self._notes.broken("done", expected, f"one of {back}")
            if not item.observations:
                self._notes.broken("values", "at least one observation in each step", "none")

    def _accept(self, item: AnyItem, episode: _Episode) -> None:
        """Notes the rules that an accepted item has kept."""
        if isinstance(item, Step):
            self._notes.kept("order")
            if item.t < episode.t:
                return
            episode.t += 1
            episode.last = item
        if isinstance(item, Step | EndEpisode):
            self._notes.kept("values")
            terminated = {a for a, is_over in item.terminations.items() if is_over}
            truncated = {a for a, is_over in item.truncations.items() if is_over}
            if isinstance(item, EndEpisode) and item.is_truncated:
                truncated |= self.spec.agents.keys() - episode.done
            if (truncated - terminated) & item.final_observations.keys():  # or it is refused
                self._notes.kept("finals")
            episode.done |= terminated | truncated
        if isinstance(item, Step):
            if episode.done:
                self._notes.kept("done")
            episode.done -= item.observations.keys()
            return
        episode.is_pending = False  # a client that gives up closes it without the answer
        episode.is_closed = True
        if len(self._episodes) >= ENOUGH_EPISODES:
            self.has_seen_enough.set()

    def refuse(self, item: AnyItem, error: ProtocolError) -> Refused:
        rule, expected, came = "values", error.expected or "a valid item", error.message
        if isinstance(error, OutOfOrder):
            rule = "order"
        elif expected.startswith("final_observations["):
            rule, came = "finals", error.got or ""
        if isinstance(item, StartEpisode):
            rule = "starts"
            if item.episode_id in self._episodes:
                expected, came = "an id that was not used before", str(item)
        elif item.episode_id not in self._episodes:
            rule, expected, came = "starts", f"a start of {item.episode_id} first", str(item)
        elif isinstance(error, EpisodeGone):
            rule, expected, came = "order", "no item after an end", str(item)
        self._notes.broken(rule, expected, came)
        return super().refuse(item, error)

    def refuse_message(self, what: str, error: ProtocolError) -> Refused:
        if isinstance(error, MalformedMessage | MessageTooLarge):
            self._notes.broken("messages", "a message of the protocol", error.message)
        return super().refuse_message(what, error)
