"""A server under trial: sends it requests and items, and makes observations for its agents."""

from __future__ import annotations

import contextlib
import itertools
import uuid
from collections.abc import Collection, Iterator, Mapping
from typing import Any, TypeVar

import msgspec
import numpy as np
import requests
from websockets.exceptions import WebSocketException
from websockets.sync.client import ClientConnection, connect

from muxrl.client.network_transport import base_url, cause_of
from muxrl.orchestrator.compliance.verdicts import Broken, Skipped, expect
from muxrl.protocol.codec import decode_batch_reply, decode_json, encode, encode_json
from muxrl.protocol.errors import MalformedMessage
from muxrl.protocol.messages import (
    AbortEpisode,
    Actions,
    AnyItem,
    AnyReply,
    Batch,
    BatchReply,
    Ended,
    EndEpisode,
    Mode,
    Refused,
    ServerSpec,
    Started,
    StartEpisode,
    Step,
)
from muxrl.protocol.spaces import ACTION_MASK_KEY, Box, DictSpace, Discrete, bounds
from muxrl.protocol.values import Mismatch, conform, sample

ANSWER_S = 60.0
"""How long to wait for an answer, which a server may hold back while it learns."""
_ROUNDING = 1e-5
"""How far an action may be outside of a Box: float32 cannot represent all bounds exactly."""
_ITEMS = 64
"""Items that every server takes in one frame."""
T = TypeVar("T")


class Subject:
    """A server under trial. Nothing is sent again or corrected on the way.

    Args:
        address: "host:port" or "http://host:port".
        token: bearer token, "" for none.

    Raises:
        Broken: ``GET /v1/spec`` is not answered with a spec.
        ValueError: `address` is no address.
    """

    def __init__(self, address: str, token: str = "") -> None:
        self.url = base_url(address)
        self.token = token
        self.headers = {"Authorization": f"Bearer {token}"} if token else {}
        self.over_websocket = False
        """Whether `say` uses msgpack over the WebSocket instead of JSON over HTTP."""
        self._rng = np.random.default_rng(0)
        self._ids = (f"compliance-{uuid.uuid4().hex[:8]}-{n}" for n in itertools.count())
        self._session = requests.Session()
        self._session.trust_env = False
        self._stack = contextlib.ExitStack()
        self._websocket: ClientConnection | None = None
        self._opened: list[str] = []
        self.spec = self.read(self.request("GET", "/v1/spec"), ServerSpec)
        self.agents = list(self.spec.agents)

    # --- requests -----------------------------------------------------------------------

    def request(
        self, method: str, path: str, body: object = None, headers: dict[str, str] | None = None
    ) -> requests.Response:
        """Sends a request, and returns the answer, whatever its code.

        Args:
            method: HTTP method.
            path: path of the endpoint.
            body: bytes are sent as they are, other values as JSON.
            headers: further headers, or others of the same name.

        Raises:
            Broken: there is no answer.
        """
        data = body if isinstance(body, bytes | None) else encode_json(body)
        all_headers = {"Content-Type": "application/json", **self.headers, **(headers or {})}
        try:
            return self._session.request(
                method, self.url + path, data=data, headers=all_headers, timeout=ANSWER_S
            )
        except requests.RequestException as error:
            raise Broken(f"an answer to {method} {self.url}{path}", cause_of(error)) from None

    def read(self, answer: requests.Response, kind: type[T], code: int = 200) -> T:
        """Returns the decoded body of an answer.

        Raises:
            Broken: the answer has another code, or its body is not of this kind.
        """
        expect(answer.status_code == code, f"{code}", f"{answer.status_code}: {answer.text}")
        try:
            return decode_json(answer.content, kind)
        except MalformedMessage as error:
            raise Broken(f"a {kind.__name__}", f"{error}: {answer.text}") from None

    def refusal(self, answer: requests.Response, code: int) -> Refused:
        """Returns an answer's refusal; raises `Broken` if it is none with this code."""
        refused = self.read(answer, Refused, code)
        expect(refused.code == code, f"code {code} also in the body", refused)
        return refused

    @contextlib.contextmanager
    def websocket(self, headers: dict[str, str] | None = None) -> Iterator[ClientConnection]:
        """Opens a WebSocket for the length of a ``with`` block.

        Raises:
            Broken: it cannot be opened.
        """
        url = self.url.replace("http", "ws", 1) + "/v1/ws"
        additional = self.headers if headers is None else headers
        try:
            connection = connect(url, additional_headers=additional, proxy=None, max_size=None)
        except (OSError, WebSocketException) as error:
            raise Broken("a WebSocket at /v1/ws", error) from error
        with connection:
            yield connection

    # --- items --------------------------------------------------------------------------

    def say(self, *items: AnyItem) -> list[AnyReply]:
        """Sends items in one frame, and returns the replies.

        Raises:
            Broken: there is not one reply for each item, in order.
        """
        batch = Batch(list(items))
        if not self.over_websocket:
            replies = self.read(self.request("POST", "/v1/step", batch), BatchReply).replies
        else:
            if self._websocket is None:
                self._websocket = self._stack.enter_context(self.websocket())
            replies = received(self._websocket, encode(batch))
        asked = [item.episode_id for item in items]
        answered = [reply.episode_id for reply in replies]
        expect(answered == asked, f"a reply to each item, in order, for episodes {asked}", answered)
        return replies

    def ask(self, item: AnyItem) -> AnyReply:
        """Sends one item, and returns the reply."""
        return self.say(item)[0]

    # --- episodes -----------------------------------------------------------------------

    def new_id(self) -> str:
        """Returns an episode id that was not used before."""
        self._opened.append(next(self._ids))
        return self._opened[-1]

    def start(self, mode: Mode = "train", *, wants_log_probs: bool = False) -> Episode:
        """Starts an episode."""
        episode = Episode(self, self.new_id())
        reply = self.ask(StartEpisode(episode.id, mode, wants_log_probs=wants_log_probs))
        expect(isinstance(reply, Started), "a Started", reply)
        return episode

    def begun(self) -> Episode:
        """Starts an episode, and takes a step with all agents."""
        episode = self.start()
        episode.step()
        return episode

    def observe(self, agents: Collection[str] | None = None) -> dict[str, Any]:
        """Returns observations of these agents, or of all; masks allow every action."""
        return {agent_id: self._observe(agent_id) for agent_id in agents or self.agents}

    def _observe(self, agent_id: str) -> Any:
        space = self.spec.agents[agent_id].observation_space
        seen = sample(space, self._rng)
        if isinstance(space, DictSpace) and ACTION_MASK_KEY in space.spaces:
            seen[ACTION_MASK_KEY] = np.ones_like(seen[ACTION_MASK_KEY])
        return seen

    def an_action(self, agent_id: str) -> Any:
        """Returns a random action of an agent's space."""
        return sample(self.spec.agents[agent_id].action_space, self._rng)

    def check_action(self, agent_id: str, action: Any) -> None:
        """Raises `Broken` unless a value is an action of an agent's space."""
        space = self.spec.agents[agent_id].action_space
        try:
            value = conform(space, action)
        except Mismatch as error:
            raise Broken(f"an action of {space} for {agent_id!r}", error) from None
        if isinstance(space, Box):
            low, high = bounds(space)
            is_inside = ((value >= low - _ROUNDING) & (value <= high + _ROUNDING)).all()
            expect(is_inside, f"an action between {low} and {high} for {agent_id!r}", value)

    @property
    def is_gateway(self) -> bool:
        """Whether it is a gateway, which closes an episode if a server behind it refuses."""
        return self.spec.algorithm == "GATEWAY"

    @property
    def state(self) -> Any:
        """A global state, if the server reads one."""
        size = self.spec.state_size
        return None if size is None else np.zeros(size, np.float32)

    def one_with_box(self) -> tuple[str, Box]:
        """Returns an agent that observes arrays of float32, and its observation space."""
        for agent_id, info in self.spec.agents.items():
            space = info.observation_space
            if isinstance(space, Box) and space.dtype == "float32" and space.shape:
                return agent_id, space
        raise Skipped("no agent observes a Box of float32")

    def one_with_mask(self) -> tuple[str, Discrete]:
        """Returns an agent whose observations have an action mask, and its action space."""
        for agent_id, info in self.spec.agents.items():
            seen, does = info.observation_space, info.action_space
            has_mask = isinstance(seen, DictSpace) and ACTION_MASK_KEY in seen.spaces
            if has_mask and isinstance(does, Discrete):
                return agent_id, does
        raise Skipped("no agent with Discrete actions has an action mask")

    def two_disjoint(self) -> tuple[list[str], list[str]]:
        """Returns an agent with its team, and all other agents."""
        group = self.spec.agents[self.agents[0]].group
        members = self.spec.groups.get(group, []) if group else []
        first = [a for a in self.agents if a == self.agents[0] or a in members]
        if len(first) == len(self.agents):
            raise Skipped("there is only one agent, or one team")
        return first, [a for a in self.agents if a not in first]

    def tidy(self) -> None:
        """Aborts all open episodes, and closes the WebSocket."""
        ids, self._opened = self._opened, []
        try:
            for first in range(0, len(ids), _ITEMS):
                aborts: list[AnyItem] = [AbortEpisode(i) for i in ids[first : first + _ITEMS]]
                self.request("POST", "/v1/step", Batch(aborts))
        finally:
            self._stack.close()
            self._websocket = None


class Episode:
    """An open episode of a subject, and its next step."""

    def __init__(self, subject: Subject, episode_id: str) -> None:
        self.id = episode_id
        self.t = 0
        self._subject = subject

    def next(self, agents: Collection[str] | None = None, **fields: Any) -> Step:
        """Returns the next step, for these agents, or for all; `fields` may replace anything."""
        observations = self._subject.observe(agents)
        given = {"t": self.t, "observations": observations, "state": self._subject.state, **fields}
        return Step(self.id, **given)

    def step(self, agents: Collection[str] | None = None, **fields: Any) -> Actions:
        """Takes the next step, and returns its actions."""
        return self.take(self.next(agents, **fields))

    def take(self, step: Step) -> Actions:
        """Sends a step, and returns the actions with which it has to be answered."""
        actions = acted(self._subject.ask(step))
        self.t = step.t + 1
        return actions

    def end(self, returns: Mapping[str, float] | None = None, **fields: Any) -> None:
        """Ends the episode, and checks its number of steps and its `returns`; see `ended`."""
        ended(self._subject.ask(EndEpisode(self.id, self.t, **fields)), self.t, returns)


def acted(reply: AnyReply) -> Actions:
    """Returns a reply as actions; raises `Broken` if it is another reply."""
    if not isinstance(reply, Actions):
        raise Broken("an Actions", reply)
    return reply


def refused(reply: AnyReply, code: int) -> Refused:
    """Returns a reply as a refusal; raises `Broken` if it is none with this code."""
    if not isinstance(reply, Refused) or reply.code != code:
        raise Broken(f"a refusal with code {code}", reply)
    expect(reply.message, "a refusal that says why", reply)
    return reply


def ended(reply: AnyReply, num_steps: int, returns: Mapping[str, float] | None = None) -> None:
    """Checks the reply to an end: its number of steps, and the returns of agents in `returns`."""
    if not isinstance(reply, Ended) or reply.num_steps != num_steps:
        raise Broken(f"an Ended with num_steps {num_steps}", reply)
    for agent_id, value in (returns or {}).items():
        came = reply.returns.get(agent_id, 0.0)
        expect(abs(came - value) < 1e-6, f"a return of {value} for {agent_id!r}", reply)


def same(reply: AnyReply, other: AnyReply) -> bool:
    """Whether two replies have the same content; arrays are compared by their numbers."""
    return encode_json(reply) == encode_json(other)


def received(websocket: ClientConnection, frame: bytes | str) -> list[AnyReply]:
    """Sends a frame, and returns the replies, which have to come in the same encoding."""
    try:
        websocket.send(frame)
        answer = websocket.recv(ANSWER_S)
    except (OSError, WebSocketException) as error:
        raise Broken("an answer over the WebSocket", error) from None
    expect(type(answer) is type(frame), f"an answer of {type(frame).__name__}", answer)
    try:
        return decode_batch_reply(answer).replies
    except (MalformedMessage, msgspec.MsgspecError) as error:
        raise Broken("a batch of replies", error) from None
