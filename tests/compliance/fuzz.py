"""Requests and frames that are nearly right: every route and both transports, drawn from a seed.

Mutations of the structure take a well-formed message and put something else in the place of one
value, key or item; mutations of arrays change their dtype, shape, bytes or numbers; mutations of
bytes cut, flip, double or insert some. Steps in rows are of episodes whose step is known, so that
most of what is wrong with them is wrong in one place. Beside them a right client plays.
"""

from __future__ import annotations

import base64
import contextlib
import copy
import http.client
import json
import random
import socket
import time
from collections import Counter, deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import msgspec
import numpy as np
from websockets.exceptions import ConnectionClosed
from websockets.frames import CloseCode
from websockets.sync.client import ClientConnection, connect

from muxrl.protocol.codec import ARRAY_EXTENSION, encode
from muxrl.protocol.rows import Lineup, each_array, stack
from muxrl.protocol.run_messages import RUN_REQUESTS
from muxrl.protocol.values import sample
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
_DTYPES = ["float32", "float32", "float16", "float64", "int64", "int8", "uint8", "uint64", "bool"]
_NOT_DTYPES = [
    "object",
    "complex64",
    ">f4",
    "<U3",
    "datetime64",
    "void",
    "Float32",
    "",
    "longdouble",
]
_VALUES: list[Any] = [
    *(None, True, -1, 0, 2**31, 2**63, 2**70, 1e308, -1e-320, "", "a", "café", "\x00\x1b[31m"),
    *([], {}, [[]], [0, "x"], {"a": {"a": {}}}, [0.5, 0.5], [0.5] * 40, "x" * 300, "a/b", [1e39]),
    *([[[[[[[[1]]]]]]]], {"a": [1, 2, 3]}, {"nobody": 1.0}, {"a": None}, ["a", "b"], [""], {"": 1}),
]
_NUMBERS = [np.nan, np.inf, -np.inf, 1e300, -1e38, 1e14, -1, 2**62, -(2**63), 3, 100]
_SILENCE_S = 20.0
"""Without an answer: there will be none."""
_MOST_ROWS = 8


@dataclass
class Outcome:
    """What came back."""

    by_status: Counter[str] = field(default_factory=Counter)
    seconds: float = 0.0
    num_rows: int = 0
    """Frames with steps in rows that were answered with actions alone."""

    @property
    def num_requests(self) -> int:
        return sum(self.by_status.values())

    @property
    def faults(self) -> dict[str, int]:
        """What no client may bring about."""
        return {
            status: num
            for status, num in self.by_status.items()
            if status.split()[-1].startswith("5")
            or status.startswith(("unanswered", "closed 1011"))
        }


class Fuzz:
    """Sends mutated requests and frames to a server or gateway, one after another.

    Args:
        address: of the server.
        plan: it, or what it might begin.
        seed: of all that is drawn.
        token: None: the plan's.
        folder: where the server may write, if most of the requests are to be a run's.
    """

    def __init__(
        self,
        address: str,
        plan: ServerPlan,
        seed: int,
        token: str | None = None,
        folder: str = "",
    ) -> None:
        self._address, self._plan = address, plan
        self._token = plan.token if token is None else token
        self._run_folder = folder
        self._seed = seed
        self._rng, self._arrays = random.Random(seed), np.random.default_rng(seed)
        self._outcome = Outcome()
        self._t: dict[str, int] = {}
        """Of the episodes whose steps go in rows: the one that is awaited."""
        self._num_started = 0
        self._halves: deque[socket.socket] = deque()
        host, _, port = address.rpartition(":")
        self._place = (host, int(port))
        self._connection = http.client.HTTPConnection(*self._place, timeout=_SILENCE_S)
        self._websocket: ClientConnection | None = None
        self._stack = contextlib.ExitStack()
        self._takes_rows = False

    def run(self, num_requests: int) -> Outcome:
        started = time.monotonic()
        with contextlib.closing(self._connection):
            headers = {"Authorization": f"Bearer {self._token}"}
            self._connection.request("GET", "/v1/spec", headers=headers)
            self._takes_rows = json.loads(self._connection.getresponse().read()).get(
                "takes_rows", False
            )
            for number in range(num_requests):
                draw = self._rng.random()
                if draw < 0.02:
                    self._count(self._half())
                elif draw < 0.5 or self._run_folder:
                    self._count(self._request())
                else:
                    self._count(self._frame())
                if number % 97 == 0:
                    self._hang_up()  # in the middle of whatever is open
            self._hang_up()
            for half in self._halves:
                half.close()
        self._outcome.seconds = time.monotonic() - started
        return self._outcome

    def _count(self, status: str) -> None:
        self._outcome.by_status[status] += 1

    def _hang_up(self) -> None:
        self._websocket = None
        self._stack.close()

    # --- what is sent -------------------------------------------------------------------

    def _request(self) -> str:
        rng, token = self._rng, self._token
        method, path = rng.choice(_ROUTES)
        if path.endswith("shutdown"):
            token = "wrong"  # nobody is to stop the server that the others ask
        path = path.format(rng.choice(["fuzz-0", "x" * 300, "%00", "a%2Fb", "%FF", ""]))
        message = _mutated(rng, self._message())
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
        is_unsaved = path.endswith("save") and answer.status == 503  # its path is too long, say
        return "not saved" if is_unsaved else str(answer.status)

    def _frame(self) -> str:
        """Sends one message over the WebSocket."""
        rng = self._rng
        rows = self._takes_rows and rng.random() < 0.6
        message = self._rows_message() if rows else self._message()
        whole = copy.deepcopy(message)
        if rng.random() < (0.4 if rows else 0.8):
            message = _mutated(rng, message)
        if rows or rng.random() < 0.7:
            data = encode(self._encodable(message, is_wild=not rows or rng.random() < 0.5))
            is_right = data == encode(whole)
            sent: bytes | str = _bytes(rng, data)
            is_right = is_right and sent == data
        else:
            sent, is_right = (
                _bytes(rng, json.dumps(message).encode()).decode(errors="replace"),
                False,
            )
        try:
            replies = self._exchanged(sent)
            codes = {one.get("code", 200) for one in replies}
            if rows and is_right and codes == {200}:
                self._outcome.num_rows += 1
            if rows:
                self._find_out()
        except ConnectionClosed as closed:
            self._hang_up()
            code = closed.rcvd.code if closed.rcvd else CloseCode.ABNORMAL_CLOSURE
            return f"closed {int(code)}"
        except TimeoutError:
            self._hang_up()
            return "unanswered frame"
        return f"frame {max(codes, default=200)}"

    def _exchanged(self, message: bytes | str) -> list[dict[str, Any]]:
        """Returns the replies, those to rows one by one."""
        if self._websocket is None:
            headers = {"Authorization": f"Bearer {self._token}"}
            url = f"ws://{self._address}/v1/ws"
            opened = connect(url, additional_headers=headers, proxy=None, compression=None)
            self._websocket = self._stack.enter_context(opened)
        self._websocket.send(message)
        answer = self._websocket.recv(timeout=_SILENCE_S)
        decode = json.loads if isinstance(answer, str) else msgspec.msgpack.decode
        replies = decode(answer)["replies"]
        return [each for one in replies for each in (one.get("replies") or [one])]

    def _half(self) -> str:
        """Begins a request or a frame, and leaves it there for a while."""
        rng = self._rng
        key = base64.b64encode(rng.randbytes(16)).decode()
        head = f"Host: 127.0.0.1\r\nAuthorization: Bearer {self._token}\r\n"
        upgrade = f"Upgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Key: {key}\r\n"
        opened = f"GET /v1/ws HTTP/1.1\r\n{head}{upgrade}Sec-WebSocket-Version: 13\r\n\r\n".encode()
        raw = rng.choice(
            [
                f"POST /v1/step HTTP/1.1\r\n{head}Content-Length: 50\r\n\r\n{{".encode(),
                f"POST /v1/step HTTP/1.1\r\n{head}Transfer-Encoding: chunked\r\n\r\nzz".encode(),
                rng.randbytes(40),
            ]
        )
        half = socket.create_connection(self._place, _SILENCE_S)
        self._halves.append(half)
        if rng.random() < 0.5:
            half.sendall(opened)
            half.recv(1000)
            raw = rng.choice([b"\x82\xfe\xea\x60abcd", b"\x02\x80abcd", b"\x82", b"\xff\xff\xff"])
        half.sendall(_bytes(rng, raw))
        if len(self._halves) > 20:
            self._halves.popleft().close()
        return "half"

    # --- messages -----------------------------------------------------------------------

    def _seen(self, agents: Sequence[str]) -> dict[str, Any]:
        seen = {a: sample(self._plan.agents[a].observation_space, self._arrays) for a in agents}
        for value in seen.values():
            if isinstance(value, dict):
                value["action_mask"][0] = 1
        return seen

    def _message(self) -> dict[str, Any]:
        """Returns a message of single steps, of plain values."""
        rng, plan = self._rng, self._plan
        agents = list(plan.agents)
        episode_id, t = f"fuzz-{self._seed}-{rng.randrange(20)}", rng.randrange(3)
        seen = each_array(lambda a: np.asarray(a).tolist(), self._seen(agents))
        some = {agents[0]: seen[agents[0]]}
        acts = dict.fromkeys(agents, 1)
        acted = {"t": t, "observations": seen, "logged_actions": acts}
        known = {} if plan.state_size is None else {"state": [0.5] * plan.state_size}
        played = {
            "type": "played",
            "weights_seq_no": rng.randrange(2),
            "steps": [{"episode_id": episode_id, **acted, **known, "t": i} for i in range(2)],
            "logits": {agent: [[0.0, 1.0, -1.0]] * 2 for agent in seen},
        }
        start = {"type": "start", "episode_id": episode_id}
        end = {"type": "end", "t": t, **known}
        item: dict[str, Any] = {"episode_id": episode_id}
        item |= rng.choice(
            [
                {"type": "start", "mode": rng.choice(["train", "eval"])},
                {"type": "start", "mode": "eval", "untrained": agents[:1], "seed": 3},
                {"type": "start", "should_explore": rng.choice([True, False, None])},
                {"type": "step", "t": t, "observations": seen, "rewards": {"a": 1.0}, **known},
                {
                    "type": "step",
                    "t": t,
                    "observations": some,
                    "terminations": {"b": True},
                    **known,
                },
                {"type": "step", "logged_log_probs": {"a": -0.5}, **acted, **known},
                {"type": "step", "t": t, "observations": some, "late_rewards": {"b": 1.0}, **known},
                played,
                {**end, "is_truncated": True, "final_observations": seen},
                {**end, "metrics": {"win": 1.0, "wait_s": {"a": 2.0}}},
                {"type": "abort", "reason": "why not"},
            ]
        )
        whole = [
            {"type": "start"},
            {"type": "step", "t": 0, "observations": seen, **known},
            {
                "type": "step",
                "t": 1,
                "observations": seen,
                "rewards": {"a": 1.0, "b": -1.0},
                **known,
            },
            {"type": "end", "t": 2, "is_truncated": True, "final_observations": seen, **known},
        ]
        own_id = f"whole-{rng.randrange(1 << 60)}"
        by_itself = [{"type": "start"}, {**played, "steps": [{**s, "episode_id": own_id} for s in
                     played["steps"]]}, whole[-1]]  # fmt: skip
        return {
            "items": rng.choice(
                [
                    [item],
                    [start, item],
                    [item] * 5,
                    *([{**i, "episode_id": own_id} for i in items] for items in (whole, by_itself)),
                ]
            )
        }

    def _rows_message(self) -> dict[str, Any]:
        """Returns a message with a step in rows, perhaps among items that go before or after."""
        rng, arrays = self._rng, self._arrays
        items: list[Any] = []
        while len(self._t) < _MOST_ROWS:
            self._num_started += 1
            episode_id = f"rows-{self._seed}-{self._num_started}"
            mode = rng.choice(["train", "train", "eval"])
            items.append({"type": "start", "episode_id": episode_id, "mode": mode})
            self._t[episode_id] = 0
        ids = rng.sample(sorted(self._t), rng.randrange(1, len(self._t) + 1))
        agents = sorted(self._plan.agents) if rng.random() < 0.9 else rng.sample("ab", 2)
        lineup = Lineup(tuple(agents), self._plan.agents)
        lead = (len(ids), len(agents))
        t = np.array([self._t[episode_id] for episode_id in ids])
        seen = [self._seen(agents) for _ in ids]
        rows = {
            "type": "rows",
            "episode_ids": ids,
            "t": t.astype(rng.choice(["int64", "int64", "uint8", "int16", "uint64"])),
            "observations": [
                stack(
                    kind.space,
                    [one[agent] for one in seen for agent in kind.agents],
                    (len(ids), len(kind.agents)),
                )
                for kind in lineup.observed
            ],
            "agents": agents,
            "rewards": arrays.uniform(-1, 1, lead) * (t > 0)[:, None],
        }
        if self._plan.state_size is not None:
            rows["state"] = np.zeros((len(ids), self._plan.state_size), np.float32)
        one = rng.choice(ids)
        known = {} if "state" not in rows else {"state": rows["state"][0]}
        single = {"type": "step", "episode_id": one, "t": self._t[one], "observations": seen[0]}
        other = {**single, **known, "t": self._t[one] + 1, "terminations": {"b": True}}
        around = rng.choice(
            [
                *[[rows]] * 8,
                [rows, rows],
                [rows, {**rows, "t": t + 1}],
                [{**single, **known}, rows],
                [rows, other],
                [{**single, "observations": {"a": [0.0] * 7}}, {**single, "t": self._t[one] - 1}],
                [rows, {"type": "end", "episode_id": one, "t": self._t[one] + 1, **known}],
                [{"type": "abort", "episode_id": one}, rows],
            ]
        )
        return {"items": [*items, *around]}

    def _find_out(self) -> None:
        """Asks which steps are awaited: an impossible one is refused so."""
        asked = sorted(self._t)
        probes = [{"type": "step", "episode_id": e, "t": 10**9, "observations": {}} for e in asked]
        for episode_id, reply in zip(
            asked, self._exchanged(encode({"items": probes})), strict=True
        ):
            expected = reply.get("expected") or ""
            if reply["code"] == 409 and expected.startswith("t="):
                self._t[episode_id] = int(expected[2:])
            else:
                del self._t[episode_id]

    def _encodable(self, value: Any, *, is_wild: bool) -> Any:
        """Puts arrays in the place of lists of numbers; if wild, of some of them, or others."""
        if isinstance(value, dict):
            return {key: self._encodable(child, is_wild=is_wild) for key, child in value.items()}
        if isinstance(value, np.ndarray):
            is_other = is_wild and self._rng.random() < 0.15
            return self._other_array(value) if is_other else value
        if not isinstance(value, list):
            return 7 if isinstance(value, int) and value >= 2**64 else value
        plain = [self._encodable(child, is_wild=is_wild) for child in value]
        if not value or not all(type(x) in (int, float) for x in value) or not is_wild:
            return plain
        with np.errstate(all="ignore"):
            array = np.array([float(x) for x in value]).astype(self._rng.choice(_DTYPES))
        return self._rng.choice([plain, array, array, array, array[:0], array[None], array[0]])

    def _other_array(self, array: np.ndarray) -> Any:
        rng = self._rng
        wild = array.astype(float) if array.dtype.kind == "f" else array.copy()
        if wild.size:
            with np.errstate(all="ignore"), contextlib.suppress(OverflowError, ValueError):
                wild.flat[rng.randrange(wild.size)] = rng.choice(_NUMBERS)
        name, dims = rng.choice([array.dtype.name, *_NOT_DTYPES]), list(array.shape)
        for _ in range(rng.randrange(3)):
            dims.insert(rng.randrange(len(dims) + 1), rng.choice([0, 1, 3, 2**31, 2**32 - 1]))
        raw = name.encode() + bytes([0, len(dims)]) + np.array(dims, "<u4").tobytes()
        body = array.tobytes()[: rng.choice([None, None, -1, 1])]
        with np.errstate(all="ignore"):
            return rng.choice(
                [
                    wild,
                    wild.astype(array.dtype),
                    array.astype(rng.choice(_DTYPES)),
                    array.reshape(-1),
                    array[..., None],
                    array[:0] if array.ndim else array[None],
                    np.concatenate([array, array]) if array.ndim else array,
                    array.tolist(),
                    msgspec.msgpack.Ext(ARRAY_EXTENSION, raw + body),
                    msgspec.msgpack.Ext(2, raw),
                ]
            )

    def _asked(self, name: str) -> dict[str, Any]:
        """Returns what a run asks."""
        plan = {**msgspec.to_builtins(self._plan), "server_id": "run"}
        folder = f"{self._run_folder}/{self._rng.randrange(4)}"
        asked: dict[str, dict[str, Any]] = {
            "begin": {"plan": plan},
            "check": {"plan": plan},
            "report": {"taken": 1},
            "save": {"path": folder, "timeout_s": 5.0},
            "finish": {"timeout_s": 5.0},
            "abort": {"prefix": "x"},
        }
        return asked[name]


def _mutated(rng: random.Random, message: Any) -> Any:
    message = copy.deepcopy(message)
    for _ in range(rng.choice([0, 1, 1, 2, 4])):
        parent, key = rng.choice(list(_places(message)))
        choice = rng.random()
        if choice < 0.6:
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
    """Yields every container and key of a message."""
    children = value.items() if isinstance(value, dict) else enumerate(value)
    for key, child in list(children):
        yield value, key
        if isinstance(child, dict | list):
            yield from _places(child)


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
