"""The rim of a policy server: HTTP and WebSocket in, errors turned into answers.

Exceptions become answers here and nowhere else. A refused item is answered as such; the other
items of its frame, the other episodes and the connection go on.
"""

from __future__ import annotations

import asyncio
import hmac
import logging
import time
import uuid
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

import msgspec
from starlette.applications import Starlette
from starlette.datastructures import Headers
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send

from protocol.codec import decode_batch, decode_json, encode, encode_json
from protocol.errors import MessageTooLarge, ProtocolError, Unauthorized
from protocol.messages import (
    ERROR_STORY_CHARS,
    AbortEpisode,
    AnyReply,
    Batch,
    BatchReply,
    EndEpisode,
    Refused,
    Reply,
    ServerSpec,
    StartEpisode,
    Status,
    Step,
)
from servers.batcher import Batcher
from servers.episode_store import EpisodeStore
from servers.episodes import PendingStep
from servers.feed import Feed

logger = logging.getLogger(__name__)

AnyItem = StartEpisode | Step | EndEpisode | AbortEpisode
WEBSOCKET_PATH = "/v1/ws"
_EXPIRY_INTERVAL_S = 5.0
_IDLE_EXPIRIES_LOGGED = 5


@dataclass
class Rim:
    """What the endpoints share.

    Args:
        address: "host:port", for messages.
    """

    spec: ServerSpec
    address: str
    token: str
    store: EpisodeStore
    batcher: Batcher
    feed: Feed
    status: Callable[[], Status]
    shutdown: Callable[[], None]
    num_refused: int = 0

    # --- items --------------------------------------------------------------------------

    async def answer(self, items: list[AnyItem]) -> list[AnyReply]:
        """Answers the items of a frame, in order; nothing is raised."""
        now = time.monotonic()
        outcomes: list[Reply | PendingStep] = []
        for item in items:
            try:
                outcomes.append(self.store.accept(item, now))
            except ProtocolError as error:
                outcomes.append(self._refuse(item, error))
            except Exception as error:
                logger.exception("an item of episode %s failed", item.episode_id)
                outcomes.append(self._refuse(item, _internal(error)))
        self.store.finish_frame()
        pending = [outcome for outcome in outcomes if isinstance(outcome, PendingStep)]
        if pending:
            if not self.feed.is_open and any(step.is_gated for step in pending):
                await self.feed.wait_open()
            try:
                await self.batcher.submit(pending)
            except ProtocolError as error:
                return [
                    self._refuse(item, error) if isinstance(outcome, PendingStep) else outcome  # type: ignore[misc]
                    for item, outcome in zip(items, outcomes, strict=True)
                ]
        return [o.answer if isinstance(o, PendingStep) else o for o in outcomes]  # type: ignore[misc]

    def _refuse(self, item: AnyItem, error: ProtocolError) -> Refused:
        self.num_refused += 1
        where = f"t={item.t} of " if isinstance(item, Step | EndEpisode) else ""
        story = (
            f"server {self.spec.server_id!r} ({self.address}) refused {where}episode "
            f"{item.episode_id}: {error.message}"
        )
        return Refused(
            item.episode_id,
            code=error.code,
            message=story[:ERROR_STORY_CHARS],
            agent_id=error.agent_id,
            expected=error.expected,
            got=error.got,
        )

    # --- access -------------------------------------------------------------------------

    def authorize(self, header: str | None) -> None:
        """Raises `Unauthorized` unless the header bears the token, or none is asked for."""
        if not self.token:
            return
        given = (header or "").removeprefix("Bearer ").encode()
        if not hmac.compare_digest(given, self.token.encode()):
            raise Unauthorized(
                f"server {self.spec.server_id!r} ({self.address}) wants the header "
                "'Authorization: Bearer TOKEN' with its token; "
                + ("none came" if header is None else "another one came")
            )

    # --- WebSocket ----------------------------------------------------------------------

    async def converse(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answers frames until the client goes; binary is msgpack, text is JSON.

        It speaks ASGI itself: a framework's wrappers would cost as much as the rest of a step.
        """
        await receive()  # websocket.connect
        try:
            self.authorize(Headers(scope=scope).get("authorization"))
        except Unauthorized as error:
            self.num_refused += 1
            await _deny(send, error)
            return
        await send({"type": "websocket.accept"})
        while True:
            event = await receive()
            if event["type"] != "websocket.receive":
                return
            frame = event.get("bytes")
            if frame is None:
                frame = event["text"]
            try:
                reply = BatchReply(await self.answer(decode_batch(frame).items))
            except ProtocolError as error:
                self.num_refused += 1
                reply = BatchReply([Refused("", code=error.code, message=error.message)])
            try:
                if isinstance(frame, str):
                    text = encode_json(reply).decode()
                    await send({"type": "websocket.send", "text": text})
                else:
                    await send({"type": "websocket.send", "bytes": encode(reply)})
            except OSError:  # the client has gone; it asks again when it is back
                return

    # --- HTTP ---------------------------------------------------------------------------

    async def body(self, request: Request) -> bytes:
        """Reads a request's body.

        Raises:
            MessageTooLarge: over the limit, which is noticed while it comes in.
        """
        limit = self.spec.max_message_bytes
        parts: list[bytes] = []
        size = 0
        async for part in request.stream():
            size += len(part)
            if size > limit:
                raise MessageTooLarge(
                    f"the body is over the server's limit of {limit} bytes "
                    "(limits.max_message_bytes)"
                )
            parts.append(part)
        return b"".join(parts)


def _internal(error: Exception) -> ProtocolError:
    problem = ProtocolError(f"an error in the server itself, see its log: {error!r}")
    problem.code = 500
    return problem


async def _deny(send: Send, error: Unauthorized) -> None:
    """Answers a WebSocket handshake with 401 and the reason."""
    body = encode_json(Refused("", code=error.code, message=error.message))
    headers = [(b"content-type", b"application/json")]
    await send({"type": "websocket.http.response.start", "status": error.code, "headers": headers})
    await send({"type": "websocket.http.response.body", "body": body})


Endpoint = Callable[[Rim, Request], Awaitable[object]]


async def _get_spec(rim: Rim, request: Request) -> object:
    return rim.spec


async def _get_status(rim: Rim, request: Request) -> object:
    return rim.status()


async def _get_health(rim: Rim, request: Request) -> object:
    status = rim.status()
    return {"status": status.phase, "server_id": status.server_id, "problem": status.problem}


async def _post_batch(rim: Rim, request: Request) -> object:
    batch = decode_json(await rim.body(request), Batch)
    return BatchReply(await rim.answer(batch.items))


async def _post_start(rim: Rim, request: Request) -> object:
    body = msgspec.json.decode(await rim.body(request) or b"{}", type=dict)
    return await _one(rim, StartEpisode, {"episode_id": uuid.uuid4().hex, **body})


async def _post_end(rim: Rim, request: Request) -> object:
    body = msgspec.json.decode(await rim.body(request) or b"{}", type=dict)
    return await _one(rim, EndEpisode, {**body, "episode_id": request.path_params["episode_id"]})


async def _post_abort(rim: Rim, request: Request) -> object:
    body = msgspec.json.decode(await rim.body(request) or b"{}", type=dict)
    return await _one(rim, AbortEpisode, {**body, "episode_id": request.path_params["episode_id"]})


async def _post_shutdown(rim: Rim, request: Request) -> object:
    if not rim.token:
        raise Unauthorized(
            f"server {rim.spec.server_id!r} has no token, so nobody may stop it from outside; "
            "set servers.NAME.token"
        )
    rim.shutdown()
    return {"status": "stopping"}


async def _one(rim: Rim, kind: type[AnyItem], fields: dict[str, object]) -> object:
    item = decode_json(encode_json({"type": kind.__struct_config__.tag, **fields}), kind)
    return (await rim.answer([item]))[0]


def _json(value: object, code: int = 200) -> Response:
    headers = {"Retry-After": "1"} if code == 429 else None
    return Response(encode_json(value), code, headers, media_type="application/json")


def make_app(rim: Rim) -> ASGIApp:
    """Returns the ASGI application of one server."""

    def guarded(endpoint: Endpoint) -> Callable[[Request], Awaitable[Response]]:
        async def handle(request: Request) -> Response:
            try:
                rim.authorize(request.headers.get("authorization"))
                value = await endpoint(rim, request)
            except ProtocolError as error:
                rim.num_refused += 1
                return _json(Refused("", code=error.code, message=error.message), error.code)
            except msgspec.DecodeError as error:
                rim.num_refused += 1
                return _json(Refused("", code=400, message=f"not JSON: {error}"), 400)
            return _json(value, value.code if isinstance(value, Refused) else 200)

        return handle

    http = Starlette(
        routes=[
            Route("/v1/spec", guarded(_get_spec)),
            Route("/v1/status", guarded(_get_status)),
            Route("/v1/health", guarded(_get_health)),
            Route("/v1/step", guarded(_post_batch), methods=["POST"]),
            Route("/v1/episodes", guarded(_post_start), methods=["POST"]),
            Route("/v1/episodes/{episode_id}/end", guarded(_post_end), methods=["POST"]),
            Route("/v1/episodes/{episode_id}/abort", guarded(_post_abort), methods=["POST"]),
            Route("/v1/shutdown", guarded(_post_shutdown), methods=["POST"]),
        ]
    )

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "websocket" and scope["path"] == WEBSOCKET_PATH:
            await rim.converse(scope, receive, send)
        else:
            await http(scope, receive, send)

    return app


async def expire_episodes(store: EpisodeStore) -> None:
    """Closes idle episodes until cancelled."""
    while True:
        await asyncio.sleep(_EXPIRY_INTERVAL_S)
        expired = store.expire(time.monotonic())
        if expired:
            logger.warning(
                "%d idle episodes closed as truncated: %s",
                len(expired),
                ", ".join(expired[:_IDLE_EXPIRIES_LOGGED]),
            )
