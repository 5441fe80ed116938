"""Answers like a server whose agents are everybody's, and asks the servers behind it.

A simulation in any language holds one conversation, with plain dicts by agent. Splitting, merging,
starts on all servers or none, ends on every one of them and patience with one that is lost are
those of the Python client (`muxrl.client.multiplexer`), which is used here.

The frames of all clients are answered on the event loop that brings them in: what has come in
while the servers answered goes to them together, as the episodes of one client with many
environments do. What takes long, such as an update of a server, or one that is lost, is waited for
in another thread, so that the status is told meanwhile. Only who has the turn asks the servers.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import queue
import threading
import time
from collections import deque
from collections.abc import Callable, Generator, Mapping, Sequence
from typing import NamedTuple

from muxrl.client.errors import ClientError
from muxrl.client.multiplexer import MultiplexingClient, finish
from muxrl.orchestrator.gateway.episodes import GatewayEpisodes
from muxrl.orchestrator.gateway.open_episode import Asked, Evaluation
from muxrl.protocol import PROTOCOL_VERSION
from muxrl.protocol.errors import NotServing, ProtocolError
from muxrl.protocol.message_sizes import needed_bytes
from muxrl.protocol.messages import (
    ActionRows,
    AgentInfo,
    AnyItem,
    AnyReply,
    ServerSpec,
    Status,
)
from muxrl.servers.network.exposition import Family
from muxrl.servers.network.front import Answered, Front, internal_error

logger = logging.getLogger(__name__)

ALGORITHM = "GATEWAY"
_LOOK_EVERY_S = 1.0
_STOP_S = 10.0
_MOST_WAIT_S = 0.05
"""As long as the event loop waits for an answer of a server."""
_WAITS_S = 0.2
"""Answers that take longer are said to wait: no client asks before it was silent for 0.3 s."""


class _Waiting(NamedTuple):
    """A frame that is not answered yet."""

    asked: list[Asked]
    reply: Answered
    loop: asyncio.AbstractEventLoop


class Gateway(Front):
    """The front of several servers.

    Args:
        client: reaches them; it belongs to the gateway from now on.
        address, token: see `Front`.
        on_shutdown: see `Front`.
        agents_return: see `StepCheck`.
    """

    def __init__(
        self,
        client: MultiplexingClient,
        address: str,
        token: str,
        *,
        on_shutdown: Callable[[], None] | None = None,
        agents_return: bool = False,
    ) -> None:
        super().__init__(merged_spec(client.specs), address, token, on_shutdown)
        self.episodes = GatewayEpisodes(client, self.spec, agents_return=agents_return)
        self._client = client
        self._frames: deque[_Waiting] = deque()
        """Those that nobody has looked at."""
        self._beyond: list[_Waiting] = []
        """Those with steps beyond what may be played."""
        self._turn = threading.Lock()
        self._orders: list[Callable[[], None]] = []
        """What other threads do as soon as they have the turn."""
        self._long: queue.SimpleQueue[Generator[None, None, None] | None] = queue.SimpleQueue()
        """Answers that take long; they have the turn. None: there are no more."""
        self._is_held = False
        self._is_stopping = False
        self._has_stopped = False
        self._is_used_up = threading.Event()
        self._busy_since: float | None = None
        self._received_at = time.monotonic()
        self._thread = threading.Thread(target=self._wait, name="gateway", daemon=True)
        self._thread.start()

    def answer(self, items: list[AnyItem], reply: Answered, *, is_alone: bool) -> None:
        if self._is_stopping:
            why = self._stopped()
            reply([self.refuse(item, why) for item in items])
            return
        self._received_at = time.monotonic()
        loop = asyncio.get_running_loop()
        self._frames.append(_Waiting([Asked(item) for item in items], reply, loop))
        if is_alone:
            self._go()
        else:  # after the others that are here
            loop.call_soon(self._go)

    def status(self) -> Status:
        return Status(
            server_id=self.spec.server_id,
            phase="stopping" if self._is_stopping else "ready",
            is_waiting_for_learner=self._is_waiting,
            num_open_episodes=self.episodes.num_open,
            num_refused=self.num_refused,
            **self.episodes.counts.in_status(),
        )

    def measures(self) -> list[Family]:
        counts = self.episodes.counts
        return [
            *super().measures(),
            Family("counter", "episodes_total", "Training episodes, by how they ended.",
                   {("ended",): counts.num_episodes, ("lost",): counts.num_lost}, ("end",)),
        ]  # fmt: skip

    @property
    def _is_waiting(self) -> bool:
        """Whether answers are held back: a server learns, is waited for, or all are held."""
        since = self._busy_since
        is_busy = since is not None and time.monotonic() - since > _WAITS_S
        return is_busy or self._is_held or bool(self._beyond)

    @property
    def behind(self) -> list[str]:
        """The ids of the servers."""
        return list(self._client.specs)

    @property
    def num_mismatches(self) -> int:
        """Episodes whose steps or returns a server counted differently from the gateway."""
        return self._client.num_mismatches

    # --- from other threads -------------------------------------------------------------

    def hold(self) -> None:
        """Has all clients wait for their answers until `release`."""
        self._is_held = True

    def wait_held(self, timeout_s: float) -> bool:
        """Waits until all clients wait; returns whether that was in time."""
        has_turn = self._turn.acquire(timeout=timeout_s)
        if has_turn:
            self._turn.release()
            self._wake()  # who came in vain meanwhile
        return has_turn

    def release(self) -> None:
        """Continues to answer."""
        self._is_held = False
        self._wake()

    def limit(self, num_env_steps: int) -> None:
        """Lets so many env steps of training be played; further ones wait for their answers."""
        self.episodes.most_env_steps = num_env_steps

    def allow(self, num_env_steps: int) -> None:
        """Allows so many more than the limit, and waits until all are used up, or it ends."""
        self._is_used_up.clear()
        self._do(lambda: self._raise_limit(num_env_steps))
        self._is_used_up.wait()

    def _raise_limit(self, num_env_steps: int) -> None:
        self.episodes.most_env_steps += num_env_steps

    def evaluate(self, evaluation: Evaluation, timeout_s: float) -> None:
        """Has the next training episodes be played as evaluations instead.

        Args:
            evaluation: takes what they return.
            timeout_s: it is given up when no simulation has said anything for so long.
        """
        self._do(lambda: self.episodes.evaluate(evaluation))
        while not evaluation.is_done.wait(_LOOK_EVERY_S):
            if self._is_stopping or time.monotonic() - self._received_at > timeout_s:
                break
        self._do(lambda: self.episodes.evaluate(None))

    def end_training(self) -> None:
        """Closes training episodes as truncated; from now on only evaluations are played."""
        self.release()  # from a last checkpoint
        self._do(self.episodes.end_training)

    def end(self, refusal: ProtocolError, timeout_s: float) -> None:
        """Refuses all episodes from now on, and waits until those who play have heard it."""
        self.release()
        deadline = time.monotonic() + timeout_s
        self._do(lambda: self.episodes.refuse_all(refusal, has_clients=self.num_connections > 0))
        while self.episodes.unconfirmed and time.monotonic() < deadline:
            time.sleep(_LOOK_EVERY_S / 20)

    def stop(self) -> bool:
        """Closes all episodes on all servers; returns whether that was done in time."""
        self._is_stopping = True
        self.episodes.give_up()
        is_in_time = self._turn.acquire(timeout=_STOP_S)
        self._has_stopped = True
        if is_in_time:
            self._client.close()
        self._long.put(None)
        for frame in (*self._beyond, *self._take()):
            self._send(frame, self._refused_all(frame, self._stopped()))
        self._is_used_up.set()
        return is_in_time

    # --- by turns -----------------------------------------------------------------------

    def _do(self, action: Callable[[], None]) -> None:
        """Does something between two rounds of answers; nothing any more once it has stopped."""
        self._orders.append(action)
        while not self._turn.acquire(timeout=_LOOK_EVERY_S):
            if self._has_stopped:
                return
        self._busy_since = time.monotonic()
        try:
            action()
        except Exception:  # clients would wait for ever
            logger.exception("the gateway could not do what it was to do")
        self._orders.remove(action)
        self._leave()
        self._wake()  # it may have raised the limit

    def _leave(self) -> None:
        """Ends the turn."""
        if self.episodes.is_used_up:
            self._is_used_up.set()
        self._busy_since = None
        self._turn.release()

    def _wake(self) -> None:
        """Has the event loop look at the frames that wait."""
        for frame in (*self._frames, *self._beyond)[:1]:
            self._call(frame, self._go)

    def _go(self) -> None:
        """Answers the frames that wait, on the event loop, unless it is somebody else's turn."""
        is_free = not (self._is_held or self._is_stopping or self._orders)
        if not (is_free and (self._frames or self._beyond) and self._turn.acquire(blocking=False)):
            return
        self._busy_since = time.monotonic()
        work = self._answer_all(self._busy_since)
        if next(work, work) is not work:
            self._long.put(work)

    def _wait(self) -> None:
        """Waits for answers that take long, and has silent episodes expire."""
        looked_at = time.monotonic()
        while True:
            with contextlib.suppress(queue.Empty):
                work = self._long.get(timeout=_LOOK_EVERY_S)
                if work is None:
                    return
                finish(work)
                if self._frames:
                    self._wake()
            if time.monotonic() - looked_at >= _LOOK_EVERY_S and not self._is_held:
                looked_at = time.monotonic()
                self._do(self._expire)

    def _expire(self) -> None:
        now = time.monotonic()
        for frame in (*self._frames, *self._beyond):
            self.episodes.touch(frame.asked, now)
        self.episodes.expire(now)

    # --- answers ------------------------------------------------------------------------

    def _answer_all(self, now: float) -> Generator[None, None, None]:
        """Answers the frames that wait, and ends the turn; pauses before what takes long."""
        frames, self._beyond = [*self._beyond, *self._take()], []
        together = [one for frame in frames for one in frame.asked]
        answers: list[tuple[_Waiting, list[AnyReply]]] = []
        try:
            yield from self.episodes.answering(together, now, _MOST_WAIT_S)
            self.episodes.touch(together, time.monotonic())
            for frame in frames:
                if any(one.unanswered for one in frame.asked):
                    self._beyond.append(frame)
                else:
                    answers.append((frame, [self._reply(one) for one in frame.asked]))
        except Exception as error:  # noqa: BLE001, the refusals are logged; else clients would wait
            why = internal_error(error)
            self._beyond = []
            answers = [(frame, self._refused_all(frame, why)) for frame in frames]
        self._leave()
        for frame, replies in answers:
            self._send(frame, replies)

    def _take(self) -> list[_Waiting]:
        """Returns all frames that have come in."""
        taken = []
        while self._frames:
            taken.append(self._frames.popleft())
        return taken

    def _reply(self, asked: Asked) -> AnyReply:
        if asked.steps:
            return ActionRows(replies=[self._reply(one) for one in asked.steps])  # type: ignore[misc]
        answer = asked.answer
        assert answer is not None
        return self.refuse(asked.item, answer) if isinstance(answer, ProtocolError) else answer

    def _refused_all(self, frame: _Waiting, why: ProtocolError) -> list[AnyReply]:
        return [self.refuse(one.item, why) for one in frame.asked]

    def _send(self, frame: _Waiting, replies: list[AnyReply]) -> None:
        if frame.loop is asyncio._get_running_loop():
            frame.reply(replies)
        else:
            self._call(frame, frame.reply, replies)

    def _call(
        self, frame: _Waiting, call: Callable[..., None], *arguments: Sequence[AnyReply]
    ) -> None:
        """Calls something on the event loop of a frame."""
        try:
            frame.loop.call_soon_threadsafe(call, *arguments)
        except RuntimeError:
            logger.info("a frame's connection is closed: nobody is there for its answers")

    def _stopped(self) -> ProtocolError:
        return self.episodes.refusal or NotServing("the gateway is stopping")


def merged_spec(specs: Mapping[str, ServerSpec]) -> ServerSpec:
    """Returns the spec of a server that has the agents of all these.

    Policies and groups have their server's name before their own, as "qmix/drivers".

    Raises:
        ClientError: there is no server.
    """
    if not specs:
        raise ClientError("a gateway needs a server behind it, and there is none")
    agents = {
        agent_id: AgentInfo(
            f"{name}/{agent.policy_id}",
            agent.observation_space,
            agent.action_space,
            None if agent.group is None else f"{name}/{agent.group}",
        )
        for name, spec in specs.items()
        for agent_id, agent in spec.agents.items()
    }
    state_sizes = [spec.state_size for spec in specs.values() if spec.state_size is not None]
    state_size = max(state_sizes, default=None)
    max_episodes = min(spec.max_episodes for spec in specs.values())
    return ServerSpec(
        protocol_version=PROTOCOL_VERSION,
        server_id="gateway",
        algorithm=ALGORITHM,
        agents=agents,
        groups={f"{n}/{g}": m for n, spec in specs.items() for g, m in spec.groups.items()},
        state_size=state_size,
        max_episodes=max_episodes,
        max_message_bytes=needed_bytes(agents, state_size, max_episodes),
        takes_rows=len(set(state_sizes)) < 2,
        episode_timeout_s=min(spec.episode_timeout_s for spec in specs.values()),
        while_learning="wait"
        if any(s.while_learning == "wait" for s in specs.values())
        else "serve",
    )
