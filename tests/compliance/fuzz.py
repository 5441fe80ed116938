"""Requests and frames that are nearly right: every route and both transports, drawn from a seed.

    PYTHONPATH=src python -m tests.compliance.fuzz --requests 100000 --seed 1

Structure-aware mutations take a well-formed message and put something else in the place of one
value, key or item; byte mutations then cut, flip, double or insert bytes. Everything goes to a
server on loopback; the number of requests is bounded.
"""

from __future__ import annotations

import argparse
import contextlib
import copy
import http.client
import json
import logging
import random
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import msgspec
import numpy as np
from websockets.exceptions import ConnectionClosed
from websockets.sync.client import ClientConnection, connect

from muxrl.protocol.codec import encode
from muxrl.servers.server import PolicyServer

_ROUTES = [
    ("GET", "/v1/spec"),
    ("GET", "/v1/status"),
    ("GET", "/v1/health"),
    ("GET", "/v1/openapi.json"),
    ("GET", "/v1/policies"),
    ("GET", "/metrics"),
    ("POST", "/v1/step"),
    ("POST", "/v1/episodes"),
    ("POST", "/v1/episodes/{}/end"),
    ("POST", "/v1/episodes/{}/abort"),
    ("POST", "/v1/shutdown"),
    ("PUT", "/v1/step"),
    ("GET", "/v1/nowhere"),
]
_DTYPES = ["float32", "float32", "float16", "float64", "int64", "int8", "uint64", "bool"]
_VALUES: list[Any] = [
    *(None, True, -1, 0, 2**31, 2**63, 2**70, 1e308, -1e-320, "", "a", "café", "\x00\x1b[31m"),
    *([], {}, [[]], [0, "x"], {"a": {"a": {}}}, [0.5, 0.5], [0.5] * 40, "x" * 300, "a/b", [1e39]),
    *([[[[[[[[1]]]]]]]], {"a": [1, 2, 3]}, {"nobody": 1.0}, {"a": None}, ["a", "b"]),
]


_GROWTH_MIB = 64
"""From the second tenth of the requests to the last, with the episodes that are remembered."""


@dataclass
class Outcome:
    """What came back."""

    by_status: Counter[str] = field(default_factory=Counter)
    seconds: float = 0.0

    @property
    def num_requests(self) -> int:
        return sum(self.by_status.values())


def fuzz(address: str, token: str, num_requests: int, seed: int) -> Outcome:
    """Sends so many mutated requests and frames to a server or gateway, one after another."""
    rng = random.Random(seed)
    outcome = Outcome()
    host, _, port = address.rpartition(":")
    started = time.monotonic()
    connection = http.client.HTTPConnection(host, int(port), timeout=20.0)
    with contextlib.closing(connection), contextlib.ExitStack() as websocket_stack:
        websocket: ClientConnection | None = None
        for number in range(num_requests):
            message = _mutated(rng, _message(rng, f"fuzz-{seed}-{rng.randrange(20)}"))
            if rng.random() < 0.5:
                outcome.by_status[_request(rng, connection, message, token)] += 1
                continue
            if websocket is None:
                websocket = websocket_stack.enter_context(_websocket(address, token))
            try:
                outcome.by_status[_frame(rng, websocket, message)] += 1
                is_broken = number % 97 == 0  # in the middle of whatever is open
            except (ConnectionClosed, TimeoutError):
                outcome.by_status["websocket closed"] += 1
                is_broken = True
            if is_broken:
                websocket_stack.close()
                websocket = None
    outcome.seconds = time.monotonic() - started
    return outcome


def _message(rng: random.Random, episode_id: str) -> dict[str, Any]:
    t = rng.randrange(3)
    seen = {"a": [rng.random(), rng.random()], "b": [0.0, 1.0]}
    acted = {"t": t, "observations": seen, "logged_actions": {"a": 1, "b": 2}}
    played = {
        "type": "played",
        "weights_seq_no": rng.randrange(2),
        "steps": [{"episode_id": episode_id, **acted, "t": i} for i in range(2)],
        "logits": {agent: [[0.0, 1.0, -1.0]] * 2 for agent in seen},
    }
    item: dict[str, Any] = {"episode_id": episode_id}
    item |= rng.choice(
        [
            {"type": "start", "mode": rng.choice(["train", "eval"])},
            {"type": "step", "t": t, "observations": seen, "rewards": {"a": 1.0}},
            {"type": "step", "t": t, "observations": {"a": seen["a"]}, "terminations": {"b": True}},
            {"type": "step", "logged_log_probs": {"a": -0.5}, **acted},
            played,
            {"type": "end", "t": t, "is_truncated": True, "final_observations": seen},
            {"type": "end", "t": t, "metrics": {"win": 1.0, "wait_s": {"a": 2.0}}},
            {"type": "abort", "reason": "why not"},
        ]
    )
    start = {"type": "start", "episode_id": episode_id}
    whole = [
        {"type": "start"},
        {"type": "step", "t": 0, "observations": seen},
        {"type": "step", "t": 1, "observations": seen, "rewards": {"a": 1.0, "b": -1.0}},
        {"type": "end", "t": 2, "is_truncated": True, "final_observations": seen},
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
    if rng.random() < 0.7 or not data:
        return data
    i, j = sorted(rng.randrange(len(data) + 1) for _ in range(2))
    return rng.choice(
        [
            data[:i],
            data[:i] + data[j:],
            data[:i] + bytes(rng.randrange(256) for _ in range(rng.randrange(1, 9))) + data[i:],
            data[:i] + data[i:j] * 2 + data[j:],
            data[:i] + b"[" * 3000 + data[i:],
        ]
    )


def _request(
    rng: random.Random, connection: http.client.HTTPConnection, message: Any, token: str
) -> str:
    method, path = rng.choice(_ROUTES)
    if path.endswith("shutdown"):
        token = "wrong"  # nobody is to stop the server that the others ask
    path = path.format(rng.choice(["fuzz-0", "x" * 300, "%00", "a%2Fb", "%FF"]))
    items = message.get("items") if isinstance(message, dict) else None
    whole = message if path == "/v1/step" or not isinstance(items, list) or not items else items[0]
    body = _bytes(rng, json.dumps(whole).encode(rng.choice(["utf-8", "utf-16"])))
    headers = {"Authorization": rng.choice([f"Bearer {token}"] * 9 + ["x" * 99])}
    headers |= rng.choice([{}, {}, {}, {"Origin": "null"}, {"X": "y" * 3000}, {"Expect": "x"}])
    try:
        connection.request(method, path, None if method == "GET" else body, headers)
        answer = connection.getresponse()
        text = answer.read()
    except (http.client.HTTPException, OSError):
        connection.close()
        return "http closed"
    assert json.loads(text)["type"] == "refused" if answer.status >= 400 else text
    return str(answer.status)


def _websocket(address: str, token: str) -> contextlib.AbstractContextManager[ClientConnection]:
    headers = {"Authorization": f"Bearer {token}"}
    return connect(f"ws://{address}/v1/ws", additional_headers=headers, proxy=None)


def _frame(rng: random.Random, websocket: ClientConnection, message: Any) -> str:
    if rng.random() < 0.5:
        text = _bytes(rng, json.dumps(message).encode())
        websocket.send(text.decode(errors="replace"))
    else:
        plain = msgspec.json.decode(json.dumps(message).replace(str(2**70), "7"))
        websocket.send(_bytes(rng, encode(_with_arrays(rng, plain))))
    reply = websocket.recv(timeout=20.0)
    replies = (json.loads(reply) if isinstance(reply, str) else msgspec.msgpack.decode(reply))[
        "replies"
    ]
    codes = {r.get("code", 200) for r in replies}
    return f"frame {max(codes) if codes else 200}"


def _with_arrays(rng: random.Random, value: Any) -> Any:
    """Puts arrays of any dtype, some of them of another shape, in the place of lists of numbers."""
    if isinstance(value, dict):
        return {key: _with_arrays(rng, child) for key, child in value.items()}
    if not isinstance(value, list):
        return value
    if not value or not all(type(x) in (int, float) for x in value) or rng.random() < 0.2:
        return [_with_arrays(rng, child) for child in value]
    with np.errstate(all="ignore"):
        array = np.array(value).astype(rng.choice(_DTYPES))
    return rng.choice([array, array, array, array[:0], array[None], array[0]])


def learned_return(server: PolicyServer, num_episodes: int = 80) -> float:
    """Has a server learn that action 1 pays 1; returns the mean of the last ten episodes, in 0..40.

    It is 13 for actions at random, the episodes having 20 steps and two agents.
    """
    from muxrl.client import MultiplexingClient

    returns = []
    with MultiplexingClient([server.address], token=server.plan.token) as client:
        for number in range(num_episodes):
            episode_id = client.start_episode(f"learn-{number}")
            total = 0.0
            for _ in range(20):
                actions = client.get_action(episode_id, {"a": [0.0, 1.0], "b": [1.0, 0.0]})
                rewards = {agent: float(action == 1) for agent, action in actions.items()}
                client.log_returns(episode_id, rewards)
                total += sum(rewards.values())
            client.end_episode(episode_id)
            returns.append(total)
    return sum(returns[-10:]) / 10


def main() -> None:
    """The command line above: prints what came back, and what is learned afterwards.

    Every second tenth goes to a gateway in front of the server. It fails on a 500, a logged error,
    memory that grows, or a server that learns less than a fresh one.
    """
    import os

    import psutil
    import ray
    from tests.compliance.real_servers import PPO_SETTINGS, SEES, SMALL_MODEL, TOKEN, make_plan

    from muxrl.client import MultiplexingClient
    from muxrl.orchestrator.gateway.served import ServedGateway
    from muxrl.servers.config import LimitsConfig

    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--requests", type=int, default=100_000)
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    errors: list[logging.LogRecord] = []
    num_internal = 0
    returns = []
    handler = logging.Handler(logging.ERROR)
    handler.emit = errors.append  # type: ignore[method-assign]
    logging.getLogger().addHandler(handler)
    ray.init(num_cpus=1, include_dashboard=False, log_to_driver=False)
    plan = make_plan(
        "PPO", {a: SEES[a] for a in "ab"}, settings={**PPO_SETTINGS, "lr": 0.03, "num_epochs": 4},
        model=SMALL_MODEL, token=TOKEN,
        limits=LimitsConfig(max_message_bytes=20_000, episode_timeout_s=10.0, tombstone_s=10.0),
    )  # fmt: skip
    server = PolicyServer(plan)
    server.start()
    gateway = ServedGateway(lambda: MultiplexingClient([server.address], token=TOKEN))
    gateway.start()
    used_mib: list[float] = []
    process = psutil.Process(os.getpid())
    try:
        for part in range(10):
            address = gateway.address if part % 2 else server.address
            token = "" if part % 2 else TOKEN
            outcome = fuzz(address, token, arguments.requests // 10, arguments.seed * 10 + part)
            used_mib.append(process.memory_info().rss / 2**20)
            print(  # noqa: T201
                f"{outcome.num_requests} to the {'gateway' if part % 2 else 'server'} in "
                f"{outcome.seconds:.1f} s, {used_mib[-1]:.0f} MiB, "
                f"{process.num_fds()} descriptors, {process.num_threads()} threads, "
                f"{len(errors)} errors logged: {dict(sorted(outcome.by_status.items()))}"
            )
            num_internal += sum(n for s, n in outcome.by_status.items() if s.endswith("500"))
        returns.append(learned_return(server))
        fresh = PolicyServer(plan)
        try:
            fresh.start()
            returns.append(learned_return(fresh))
        finally:
            fresh.stop()
        print("learned afterwards: {:.1f} of 40; by a fresh server: {:.1f}".format(*returns))  # noqa: T201
    finally:
        gateway.stop()
        server.stop()
        ray.shutdown()
    has_grown = used_mib[-1] - used_mib[1] > _GROWTH_MIB
    is_worse = returns[0] < returns[1] - 8
    raise SystemExit(1 if errors or num_internal or has_grown or is_worse else 0)


if __name__ == "__main__":
    main()
