"""HTTP, one JSON message a request: for everyone who is not in a hurry, and for status.

Errors are answered with the refusal's own HTTP status.
"""

from __future__ import annotations

import uuid
from collections.abc import Awaitable, Callable

import msgspec
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from muxrl.protocol.codec import decode_json, encode_json
from muxrl.protocol.errors import MessageTooLarge, ProtocolError, Unauthorized
from muxrl.protocol.messages import (
    AbortEpisode,
    Batch,
    BatchReply,
    EndEpisode,
    Refused,
    StartEpisode,
)
from muxrl.servers.app import AnyItem, PolicyServerApp

Endpoint = Callable[[PolicyServerApp, Request], Awaitable[object]]


async def _body(app: PolicyServerApp, request: Request) -> bytes:
    """Reads a request's body.

    Raises:
        MessageTooLarge: over the limit, which is noticed while it comes in.
    """
    limit = app.spec.max_message_bytes
    parts: list[bytes] = []
    size = 0
    async for part in request.stream():
        size += len(part)
        if size > limit:
            raise MessageTooLarge(
                f"the body is over the server's limit of {limit} bytes (limits.max_message_bytes)"
            )
        parts.append(part)
    return b"".join(parts)


async def _get_spec(app: PolicyServerApp, request: Request) -> object:
    return app.spec


async def _get_status(app: PolicyServerApp, request: Request) -> object:
    return app.status()


async def _get_health(app: PolicyServerApp, request: Request) -> object:
    status = app.status()
    return {"status": status.phase, "server_id": status.server_id, "problem": status.problem}


async def _post_batch(app: PolicyServerApp, request: Request) -> object:
    batch = decode_json(await _body(app, request), Batch)
    return BatchReply(await app.answered(batch.items))


async def _post_start(app: PolicyServerApp, request: Request) -> object:
    body = msgspec.json.decode(await _body(app, request) or b"{}", type=dict)
    return await _one(app, StartEpisode, {"episode_id": uuid.uuid4().hex, **body})


async def _post_end(app: PolicyServerApp, request: Request) -> object:
    body = msgspec.json.decode(await _body(app, request) or b"{}", type=dict)
    return await _one(app, EndEpisode, {**body, "episode_id": request.path_params["episode_id"]})


async def _post_abort(app: PolicyServerApp, request: Request) -> object:
    body = msgspec.json.decode(await _body(app, request) or b"{}", type=dict)
    return await _one(app, AbortEpisode, {**body, "episode_id": request.path_params["episode_id"]})


async def _post_shutdown(app: PolicyServerApp, request: Request) -> object:
    if not app.token:
        raise Unauthorized(
            f"server {app.spec.server_id!r} has no token, so nobody may stop it from outside; "
            "set servers.NAME.token"
        )
    app.shutdown()
    return {"status": "stopping"}


async def _one(app: PolicyServerApp, kind: type[AnyItem], fields: dict[str, object]) -> object:
    item = decode_json(encode_json({"type": kind.__struct_config__.tag, **fields}), kind)
    return (await app.answered([item]))[0]


def _json(value: object, code: int = 200) -> Response:
    headers = {"Retry-After": "1"} if code == 429 else None
    return Response(encode_json(value), code, headers, media_type="application/json")


def make_asgi_app(app: PolicyServerApp) -> Starlette:
    """Returns the ASGI application of one server: HTTP, JSON in and out."""

    def guarded(endpoint: Endpoint) -> Callable[[Request], Awaitable[Response]]:
        async def handle(request: Request) -> Response:
            try:
                app.authorize(request.headers.get("authorization"))
                value = await endpoint(app, request)
            except ProtocolError as error:
                app.num_refused += 1
                return _json(Refused("", code=error.code, message=error.message), error.code)
            except msgspec.DecodeError as error:
                app.num_refused += 1
                return _json(Refused("", code=400, message=f"not JSON: {error}"), 400)
            return _json(value, value.code if isinstance(value, Refused) else 200)

        return handle

    return Starlette(
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
