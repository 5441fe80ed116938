"""Answers like one server with all agents, by asking the servers behind it.

So a simulation in any language needs one connection, and sends plain dicts by agent. The gateway
uses the Python client (`muxrl.client.multiplexer`), which splits and merges steps, starts an
episode on all servers or none, ends it on every server, and waits for a server that is lost.

The frames of all simulations are answered in one thread, the asker. Everything that has come in
while servers answered goes to them together, like the episodes of a client with many environments.
"""

from __future__ import annotations

import asyncio
import functools
import logging
import queue
import threading
import time
from collections.abc import Callable, Mapping
from typing import NamedTuple

from muxrl.client.errors import ClientError
from muxrl.client.multiplexer import MultiplexingClient
from muxrl.orchestrator.gateway.open_episode import Evaluation
from muxrl.orchestrator.gateway.rounds import Asked, Rounds
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
_WAITS_S = 0.2
"""If answers take longer, the status says so: clients ask for it after 0.3 s of silence."""


class _Waiting(NamedTuple):
    """A frame that has not been answered yet."""

    asked: list[Asked]
    reply: Answered
    loop: asyncio.AbstractEventLoop


class _Order(NamedTuple):
    """Something that another thread wants done by the asker, between two frames."""

    action: Callable[[], None]
    done: threading.Event


class Gateway(Front):
    """The gateway in front of several servers.

    Args:
        client: the client of the servers, which the gateway owns from now on.
        address, token: see `Front`.
        on_shutdown: see `Front`.
        agents_return: see `merged_spec`.
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
        spec = merged_spec(client.specs, agents_return=agents_return)
        super().__init__(spec, address, token, on_shutdown)
        self._rounds = Rounds(client, spec)
        self.episodes, self.wanted = self._rounds.episodes, self._rounds.wanted
        self.client = client
        self._frames: queue.SimpleQueue[_Waiting | _Order] = queue.SimpleQueue()
        self._is_stopping = False
        self._held = threading.Event()
        self._released = threading.Event()
        self._released.set()
        self._beyond: list[_Waiting] = []
        """Frames that wait, since they have steps beyond the limit of training."""
        self._is_used_up = threading.Event()
        self._busy_since: float | None = None
        self._received_at = time.monotonic()
        self._thread = threading.Thread(target=self._ask, name="gateway", daemon=True)
        self._thread.start()

    def answer(self, items: list[AnyItem], reply: Answered, *, is_alone: bool) -> None:
        if self._is_stopping:
            why = self._stopped()
            reply([self.refuse(item, why) for item in items])
        else:
            asked = [Asked(item) for item in items]
            self._frames.put(_Waiting(asked, reply, asyncio.get_running_loop()))

    def status(self) -> Status:
        return Status(
            server_id=self.spec.server_id,
            phase="stopping" if self._is_stopping else "ready",
            is_waiting_for_learner=self._is_waiting,
            num_open_episodes=len(self.episodes.open),
            num_refused=self.num_refused,
            **self.episodes.counts.in_status(),
        )

    def measures(self) -> list[Family]:
        counts = self.episodes.counts
        return [
            *super().measures(),
            Family("counter", "episodes_total", "Training episodes, by how they ended.",
                   {("ended",): counts.num_episodes, ("lost",): self.episodes.num_lost}, ("end",)),
        ]  # fmt: skip

    @property
    def _is_waiting(self) -> bool:
        """Whether answers wait: a server learns or is lost, or simulations are held."""
        since = self._busy_since
        is_busy = since is not None and time.monotonic() - since > _WAITS_S
        return is_busy or bool(self._beyond)

    # --- from other threads -------------------------------------------------------------

    def hold(self) -> None:
        """Makes all simulations wait for their answers until `release`."""
        if self._released.is_set():  # else they are held already, or will be soon
            self._held.clear()
            self._released.clear()
            self._frames.put(_Order(self._wait_for_release, threading.Event()))

    def wait_held(self, timeout_s: float) -> bool:
        """Waits until all simulations wait; returns whether that was in time."""
        return self._held.wait(timeout_s)

    def _tell_played(self) -> None:
        """Waits until shadows have answered all that they were sent."""
        try:
            self.client.tell_played()
        except ClientError as error:  # the next step meets it, too
            logger.warning("a shadow has not answered: %s", error)

    def _wait_for_release(self) -> None:
        self._tell_played()
        if not self._released.is_set():
            self._held.set()
        while not self._released.wait(_LOOK_EVERY_S) and not self._is_stopping:
            pass

    def release(self) -> None:
        """Answers again."""
        self._released.set()

    def limit(self, num_env_steps: float) -> None:
        """Sets how many env steps of training may be played; answers to further steps wait."""
        self.episodes.most_env_steps = num_env_steps

    def allow(self, num_env_steps: int) -> None:
        """Raises the limit, and waits until it is reached, or training or the gateway ends."""
        self._is_used_up.clear()
        self._do(lambda: self.limit(self.episodes.most_env_steps + num_env_steps))
        self._is_used_up.wait()

    def evaluate(self, evaluation: Evaluation, timeout_s: float) -> None:
        """Uses the next training episodes as evaluations instead, and waits for their end.

        Args:
            evaluation: the episodes to play; collects their results.
            timeout_s: the evaluation is given up when no simulation has sent anything for so long.
        """
        self._do(lambda: self.wanted.evaluate(evaluation))
        while not evaluation.is_done.wait(_LOOK_EVERY_S):
            if self._is_stopping or time.monotonic() - self._received_at > timeout_s:
                break
        self._do(lambda: self.wanted.evaluate(None))

    def end_training(self) -> None:
        """Closes training episodes as truncated; from now on only evaluations are played."""
        self.release()  # the last checkpoint may have held them
        self._do(self.wanted.end_training)
        self._do(self._tell_played)  # so that shadows count all that they learn from

    def end(self, refusal: ProtocolError, timeout_s: float) -> None:
        """Refuses all episodes from now on, and waits until all simulations have been told."""
        self.release()
        deadline = time.monotonic() + timeout_s
        self._do(lambda: self.episodes.refuse_all(refusal, has_clients=self.num_connections > 0))
        while self.episodes.unconfirmed and time.monotonic() < deadline:
            time.sleep(_LOOK_EVERY_S / 20)

    def stop(self) -> bool:
        """Closes all episodes on all servers, and ends; returns whether that was in time."""
        self._is_stopping = True
        self.wanted.give_up()
        self.release()
        self._frames.put(_Order(lambda: None, threading.Event()))
        self._thread.join(_STOP_S)
        self._is_used_up.set()
        return not self._thread.is_alive()

    def _do(self, action: Callable[[], None]) -> None:
        order = _Order(action, threading.Event())
        self._frames.put(order)
        while not order.done.wait(_LOOK_EVERY_S) and self._thread.is_alive():
            pass

    # --- the asker ----------------------------------------------------------------------

    def _ask(self) -> None:
        looked_at = 0.0
        while not self._is_stopping:
            taken = self._take()
            taken_at = self._busy_since = time.monotonic()
            frames = [one for one in taken if isinstance(one, _Waiting)]
            if frames:
                self._received_at = taken_at
            if frames or self._beyond:
                self._answer_together([*self._beyond, *frames])
            for order in taken:
                if isinstance(order, _Order):
                    self._guarded(order.action)
                    self._answer_together(self._beyond)  # the order may have raised the limit
                    order.done.set()
            if self.wanted.is_used_up and not self._is_used_up.is_set():
                self._tell_played()
                self._is_used_up.set()
            if taken_at - looked_at >= _LOOK_EVERY_S:
                looked_at = taken_at
                # With an earlier time: frames that have come in since have not been seen.
                self._guarded(functools.partial(self.episodes.expire, taken_at))
            self._busy_since = None
        self.client.close()
        for frame in self._beyond:
            self._refuse_all(frame, self._stopped())
        while not self._frames.empty():  # frames that came at the last moment
            left = self._frames.get()
            if isinstance(left, _Waiting):
                self._refuse_all(left, self._stopped())

    def _take(self) -> list[_Waiting | _Order]:
        """Waits for frames or orders, a second at most, and returns all that have come in."""
        try:
            taken = [self._frames.get(timeout=_LOOK_EVERY_S)]
        except queue.Empty:
            return []
        while not self._frames.empty():
            taken.append(self._frames.get())
        return taken

    def _guarded(self, action: Callable[[], None]) -> None:
        try:
            action()
        except Exception:  # the top of the thread; without it, clients would wait for ever
            logger.exception("an error in the gateway")

    def _answer_together(self, frames: list[_Waiting]) -> None:
        together = [one for frame in frames for one in frame.asked]
        self._beyond = []
        try:
            self._rounds.answer(together, self._received_at)
            ids = (episode_id for one in together for episode_id in one.item.episode_ids)
            self.episodes.see(ids, time.monotonic(), is_answered=True)
        except Exception as error:  # noqa: BLE001, the refusals are logged; else clients would wait
            for frame in frames:
                self._refuse_all(frame, internal_error(error))
            return
        for frame in frames:
            if any(one.unanswered for one in frame.asked):
                self._beyond.append(frame)
            else:
                self._send(frame, [self._reply(one) for one in frame.asked])

    def _reply(self, asked: Asked) -> AnyReply:
        if asked.steps:
            return ActionRows(replies=[self._reply(one) for one in asked.steps])  # type: ignore[misc]
        answer = asked.answer
        assert answer is not None
        return self.refuse(asked.item, answer) if isinstance(answer, ProtocolError) else answer

    def _refuse_all(self, frame: _Waiting, why: ProtocolError) -> None:
        self._send(frame, [self.refuse(one.item, why) for one in frame.asked])

    def _send(self, frame: _Waiting, replies: list[AnyReply]) -> None:
        try:
            frame.loop.call_soon_threadsafe(frame.reply, replies)
        except RuntimeError:
            logger.info("a frame's connection is closed; answers are dropped")

    def _stopped(self) -> ProtocolError:
        return self.episodes.refusal or NotServing("the gateway is stopping")


def merged_spec(specs: Mapping[str, ServerSpec], *, agents_return: bool = False) -> ServerSpec:
    """Returns the spec of a server that has the agents of all these servers.

    Names of policies and groups begin with their server's id: "qmix/drivers".

    Args:
        specs: by server id.
        agents_return: whether agents may observe again after their end even if no server's spec
            says so, as the spec of a user's own server need not. Otherwise they may if any
            server's spec says so.

    Raises:
        ClientError: there is no server.
    """
    if not specs:
        raise ClientError("a gateway needs at least one server, and got none")
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
        agents_return=agents_return or any(s.agents_return for s in specs.values()),
    )
