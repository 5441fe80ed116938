"""Sends requests and frames that are nearly right, to every route and over both transports.

A client converses with the server, and each of its frames is preceded by some mutated ones.
Mutations of the structure replace one value, key or item; those of arrays change the dtype, shape,
bytes or numbers; those of bytes cut, flip, double or insert some. All are drawn from one seed.
"""

from __future__ import annotations

import base64
import contextlib
import copy
import http.client
import json
import random
import socket
import sys
from collections import Counter, deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import msgspec
import numpy as np
from tests.servers.conversations import Talk
from websockets.exceptions import ConnectionClosed
from websockets.frames import CloseCode
from websockets.sync.client import ClientConnection, connect

from muxrl.client.websocket import WebSocketTransport
from muxrl.protocol.codec import ARRAY_EXTENSION, encode, encode_json
from muxrl.protocol.messages import (
    AbortEpisode,
    AnyItem,
    AnyReply,
    Batch,
    EndEpisode,
    Refused,
    StartEpisode,
    Step,
    StepRows,
)
from muxrl.protocol.run_messages import RUN_REQUESTS
from muxrl.servers.config import ServerPlan

_ROUTES = [
    *[("GET", f"/v1/{name}") for name in ("spec", "status", "health", "openapi.json", "policies")],
    *[("GET", path) for path in ("/metrics", "/v1/nowhere", "/v1/step?a=%FF")],
    *[("POST", "/v1/step")] * 2,
    *[("POST", f"/v1/{path}") for path in ("shutdown", "episodes")],
    *[("POST", f"/v1/episodes/{{}}/{name}") for name in ("end", "abort")],
    ("PUT", "/v1/step"),
    ("HEAD", "/v1/spec"),
]
_DTYPES = ["float32", "float16", "float64", "int64", "int8", "uint8", "uint64", "bool"]
_NOT_DTYPES = ["object", "complex64", ">f4", "<U3", "datetime64", "void", "Float32", ""]
_VALUES: list[Any] = [
    *(None, True, -1, 0, 2**31, 2**63, 2**70, 1e308, -1e-320, "", "a", "café", "\x00\x1b[31m"),
    *([], {}, [[]], [0, "x"], {"a": {"a": {}}}, [0.5, 0.5], [0.5] * 40, "x" * 300, "a/b", [1e39]),
    *([[[[[[[[1]]]]]]]], {"a": [1, 2, 3]}, {"nobody": 1.0}, {"a": None}, ["a", "b"], [""], {"": 1}),
    *("start", "step", "end", "abort", "rows", "eval"),
]
_NUMBERS = [np.nan, np.inf, -np.inf, 1e300, -1e38, 1e14, -1, 2**62, -(2**63), 3, 100]
_SILENCE_S = 20.0
"""A request that has not been answered for so long counts as unanswered."""


@dataclass
class Outcome:
    """How a server answered the requests and frames of a fuzz."""

    by_status: Counter[str] = field(default_factory=Counter)
    num_rows: int = 0
    """How many frames with steps in rows were answered with actions alone."""

    @property
    def faults(self) -> dict[str, int]:
        """The answers that no client may bring about, and how often each was given."""
        return {
            status: num
            for status, num in self.by_status.items()
            if status.split()[-1].startswith("5")
            or status.startswith(("unanswered", "closed 1011"))
        }


class Fuzz:
    """Converses with a server or gateway, and sends mutated frames before each right one.

    Args:
        address: of the server.
        plan: the server's plan, or one that it might begin.
        seed: of everything that is drawn.
        token: to send; None: the plan's.
        folder: where the server may write, if most of the requests are to be those of a run.
    """

    def __init__(
        self, address: str, plan: ServerPlan, seed: int, token: str | None = None, folder: str = ""
    ) -> None:
        self._token = plan.token if token is None else token
        self._address, self._plan, self._run_folder, self._seed = address, plan, folder, seed
        self._rng = random.Random(seed)
        self._talk = Talk(plan, seed, sys.maxsize, logs_actions=True)
        # Every seed starts at another number, so that no episode id is used twice.
        self._talk.began = 10**6 * seed
        self._outcome = Outcome()
        self._num_left = 0
        self._halves: deque[socket.socket] = deque()
        host, _, port = address.rpartition(":")
        self._place = (host, int(port))
        self._connection = http.client.HTTPConnection(*self._place, timeout=_SILENCE_S)
        self._websocket: ClientConnection | None = None
        self._stack = contextlib.ExitStack()

    def run(self, num_requests: int) -> Outcome:
        self._num_left = num_requests
        transport = WebSocketTransport(self._address, token=self._token, patience_s=_SILENCE_S)
        with contextlib.closing(self._connection), contextlib.closing(transport):
            for items in self._talk.frames():
                for _ in range(self._rng.choice([0, 1, 2, 8])):
                    self._meddle(items)
                if self._num_left <= 0:
                    break
                if not self._run_folder:
                    transport.send(items)
                    if over := self._hear(items, transport.receive()):
                        transport.send([AbortEpisode(episode_id) for episode_id in over])
                        transport.receive()
            self._hang_up()
            for half in self._halves:
                half.close()
        return self._outcome

    def _hear(self, items: Sequence[AnyItem], replies: Sequence[AnyReply]) -> list[str]:
        """Returns the open episodes with a refused item: mutated frames have spoilt them."""
        over = []
        for item, reply in zip(items, replies, strict=False):
            each = getattr(reply, "replies", None) or [reply]
            refused = [one.episode_id for one in each if isinstance(one, Refused)]
            self._outcome.num_rows += isinstance(item, StepRows) and not refused
            over += [one for one in refused if self._talk.t.pop(one, None) is not None]
        return over

    def _hang_up(self) -> None:
        self._websocket = None
        self._stack.close()

    # --- what is sent -------------------------------------------------------------------

    def _meddle(self, items: Sequence[AnyItem]) -> None:
        """Sends one request or frame that is a mutation of one of these items."""
        self._num_left -= 1
        draw, message = self._rng.random(), self._like(items)
        if draw < 0.02:
            status = self._half()
        elif draw < 0.5 or self._run_folder:
            status = self._request(message)
        else:
            status = self._frame(message)
        self._outcome.by_status[status] += 1
        if self._num_left % 97 == 0:
            self._hang_up()  # closes the WebSocket, whatever is open on it

    def _like(self, items: Sequence[AnyItem]) -> Batch:
        """Returns these items, or a whole episode with one of them, as played with local
        inference."""
        rng, steps = self._rng, [item for item in items if isinstance(item, Step)]
        if not steps or rng.random() < 0.5:
            some = rng.choice([list(items), list(items[:1])])
            return Batch(some * rng.choice([1, 1, 1, 3]))
        own_id, step = f"own-{self._seed}-{self._num_left}", rng.choice(steps)
        acts, replace = dict.fromkeys(step.observations, 1), msgspec.structs.replace
        first = replace(step, episode_id=own_id, t=0, logged_actions=acts,
                        logged_log_probs=dict.fromkeys(acts, -0.5))  # fmt: skip
        second = replace(first, t=1, rewards={"a": 1.0, "b": -1.0})
        end = EndEpisode(own_id, 2, True, final_observations=step.observations, state=step.state,
                         metrics=rng.choice([{}, {"win": 1.0, "wait_s": {"a": 2.0}}]))  # fmt: skip
        played: list[Any] = [first, second]
        if rng.random() < 0.5:
            logits = {a: [[0.0, 1.0, -1.0]] * 2 for a in acts}
            together = {"weights_seq_no": rng.randrange(2), "steps": played, "logits": logits}
            played = [{"type": "played", "episode_id": own_id, **together}]
        return Batch([StartEpisode(own_id, untrained=rng.choice([[], ["a"]])), *played, end])

    def _request(self, batch: Batch) -> str:
        rng, token = self._rng, self._token
        method, path = rng.choice(_ROUTES)
        if path.endswith("shutdown"):
            token = "wrong"  # otherwise it would stop the server that all other requests need
        path = path.format(rng.choice(["own-0", "x" * 300, "%00", "a%2Fb", "%FF", ""]))
        message = _mutated(rng, json.loads(encode_json(batch)))
        if self._run_folder and rng.random() < 0.8:
            name = rng.choice(list(RUN_REQUESTS))
            method, path, message = "POST", f"/v1/run/{name}", _mutated(rng, self._asked(name))
        items = message.get("items") if isinstance(message, dict) else None
        is_whole = path == "/v1/step" or not isinstance(items, list) or not items
        text = json.dumps(message if is_whole else items[0])
        body = _bytes(rng, text.encode(rng.choice(["utf-8"] * 9 + ["utf-16"])))
        headers = {"Authorization": rng.choice([f"Bearer {token}"] * 19 + ["x" * 99])}
        headers |= rng.choice([{}] * 5 + [{"Origin": "null"}, {"X": "y" * 3000}, {"Expect": "x"}])
        try:
            self._connection.request(method, path, None if method == "GET" else body, headers)
            answer = self._connection.getresponse()
            said = answer.read()
        except TimeoutError:
            self._connection.close()
            return f"unanswered {path}"
        except (http.client.HTTPException, OSError):
            self._connection.close()
            return "http closed"
        if answer.status >= 400 and method != "HEAD":
            assert json.loads(said)["type"] == "refused", said
        # A save fails if its path is too long, say; a finish if learning outlasts its timeout.
        is_unsaved = path.endswith(("save", "finish")) and answer.status == 503
        has_not_begun = answer.status == 503 and b"waits for a run to begin" in said
        return "not now" if is_unsaved or has_not_begun else str(answer.status)

    def _frame(self, batch: Batch) -> str:
        """Sends one message over the WebSocket; returns how the server answered."""
        rng = self._rng
        if rng.random() < 0.7:
            message = _mutated(rng, msgspec.msgpack.decode(encode(batch)), self._other_array)
            sent: bytes | str = _bytes(rng, encode(_fitting(message)))
        else:
            text = json.dumps(_mutated(rng, json.loads(encode_json(batch))))
            sent = _bytes(rng, text.encode()).decode(errors="replace")
        try:
            if self._websocket is None:
                headers = {"Authorization": f"Bearer {self._token}"}
                url = f"ws://{self._address}/v1/ws"
                opened = connect(url, additional_headers=headers, proxy=None, compression=None)
                self._websocket = self._stack.enter_context(opened)
            self._websocket.send(sent)
            answer = self._websocket.recv(timeout=_SILENCE_S)
        except ConnectionClosed as closed:
            self._hang_up()
            code = closed.rcvd.code if closed.rcvd else CloseCode.ABNORMAL_CLOSURE
            return f"closed {int(code)}"
        except TimeoutError:
            self._hang_up()
            return "unanswered frame"
        decode = json.loads if isinstance(answer, str) else msgspec.msgpack.decode
        replies = [
            each for one in decode(answer)["replies"] for each in one.get("replies") or [one]
        ]
        return f"frame {max((one.get('code', 200) for one in replies), default=200)}"

    def _half(self) -> str:
        """Begins a request or a frame, and leaves it unfinished for a while."""
        rng = self._rng
        head = f" HTTP/1.1\r\nHost: 127.0.0.1\r\nAuthorization: Bearer {self._token}\r\n"
        post, key = f"POST /v1/step{head}".encode(), base64.b64encode(rng.randbytes(16)).decode()
        upgrade = f"Upgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Key: {key}\r\n"
        opened = f"GET /v1/ws{head}{upgrade}Sec-WebSocket-Version: 13\r\n\r\n".encode()
        frames = [b"\x82\xfe\xea\x60abcd", b"\x02\x80abcd", b"\x82", b"\xff\xff\xff"]
        wholes = [b"Content-Length: 50\r\n\r\n{", b"Transfer-Encoding: chunked\r\n\r\nzz"]
        raw = [*(post + one for one in wholes), rng.randbytes(40), opened + rng.choice(frames)]
        self._halves.append(socket.create_connection(self._place, _SILENCE_S))
        self._halves[-1].sendall(_bytes(rng, rng.choice(raw)))
        if len(self._halves) > 20:
            self._halves.popleft().close()
        return "half"

    def _asked(self, name: str) -> dict[str, Any]:
        """Returns the body of a run's request of this name."""
        plan = {**msgspec.to_builtins(self._plan), "server_id": "run"}
        asked: dict[str, dict[str, Any]] = {
            "begin": {"plan": plan},
            "check": {"plan": plan},
            "report": {"taken": 1},
            "save": {"path": f"{self._run_folder}/{self._rng.randrange(4)}", "timeout_s": 5.0},
            "finish": {"timeout_s": 5.0},
            "abort": {"prefix": "x"},
        }
        return asked[name]

    def _other_array(self, packed: msgspec.msgpack.Ext) -> Any:
        """Returns another array, or something that is no array, to replace an array."""
        rng, (name, _, rest) = self._rng, bytes(packed.data).partition(b"\0")
        dims = np.frombuffer(rest, "<u4", rest[0], 1).tolist()
        try:
            array = np.frombuffer(rest, name.decode(), offset=1 + 4 * len(dims)).reshape(dims)
        except (TypeError, ValueError):  # it was mutated already, and is no array any more
            return None
        wild = array.astype(float) if array.dtype.kind == "f" else array.copy()
        if wild.size:
            with np.errstate(all="ignore"), contextlib.suppress(OverflowError, ValueError):
                wild.flat[rng.randrange(wild.size)] = rng.choice(_NUMBERS)
        for _ in range(rng.randrange(3)):
            dims.insert(rng.randrange(len(dims) + 1), rng.choice([0, 1, 3, 2**31, 2**32 - 1]))
        other = rng.choice([name.decode(), *_NOT_DTYPES]).encode()
        raw = other + bytes([0, len(dims)]) + np.array(dims, "<u4").tobytes()
        body = array.tobytes()[: rng.choice([None, None, -1, 1])]
        with np.errstate(all="ignore"):
            return rng.choice(
                [
                    wild,
                    wild.astype(array.dtype),
                    (array.real if array.dtype.kind == "c" else array).astype(rng.choice(_DTYPES)),
                    array.reshape(-1),
                    array[..., None],
                    array[:0] if array.ndim else array[None],
                    np.concatenate([array, array]) if array.ndim else array,
                    array.tolist(),
                    msgspec.msgpack.Ext(ARRAY_EXTENSION, raw + body),
                    msgspec.msgpack.Ext(2, raw),
                ]
            )


def _mutated(rng: random.Random, message: Any, other_array: Any = None) -> Any:
    for _ in range(rng.choice([0, 1, 1, 2, 4])):
        parent, key = rng.choice(list(_places(message)))
        choice = rng.random()
        if isinstance(parent[key], msgspec.msgpack.Ext) and choice < 0.8:
            parent[key] = other_array(parent[key])
        elif choice < 0.6:
            parent[key] = copy.deepcopy(rng.choice(_VALUES))
        elif choice < 0.8:
            del parent[key]
        elif isinstance(parent, dict):
            parent[str(rng.choice(_VALUES))[:20]] = parent.pop(key)
        else:
            parent.append(copy.deepcopy(parent[key]))
        if not list(_places(message)):
            break
    return message


def _places(value: Any) -> Iterator[tuple[Any, Any]]:
    """Yields each container in a message with each of its keys."""
    children = value.items() if isinstance(value, dict) else enumerate(value)
    for key, child in list(children):
        yield value, key
        if isinstance(child, dict | list):
            yield from _places(child)


def _fitting(value: Any) -> Any:
    """Returns a message whose integers all fit into msgpack."""
    if isinstance(value, dict):
        return {key: _fitting(child) for key, child in value.items()}
    if isinstance(value, list):
        return [_fitting(child) for child in value]
    return 7 if isinstance(value, int) and value >= 2**64 else value


def _bytes(rng: random.Random, data: bytes) -> bytes:
    if rng.random() < 0.8 or not data:
        return data
    i, j = sorted(rng.randrange(len(data) + 1) for _ in range(2))
    return rng.choice(
        [
            data[:i],
            data[:i] + data[j:],
            data[:i] + rng.randbytes(rng.randrange(1, 9)) + data[i:],
            data[:i] + data[i:j] * 2 + data[j:],
            data[:i] + b"[" * 3000 + data[i:],
        ]
    )
