"""HTTP with one JSON message a request: for status, and for clients without WebSocket.

A refusal is answered with its own HTTP status code.
"""

from __future__ import annotations

import uuid
from collections.abc import Awaitable, Callable

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import Route

from muxrl.protocol.codec import encode_json
from muxrl.protocol.errors import MessageTooLarge, ProtocolError, Unauthorized
from muxrl.protocol.messages import (
    AbortEpisode,
    BatchReply,
    EndEpisode,
    Refused,
    StartEpisode,
)
from muxrl.servers.app import PolicyServerApp
from muxrl.servers.batcher import AnyItem

Endpoint = Callable[[PolicyServerApp, Request], Awaitable[object]]


async def _body(app: PolicyServerApp, request: Request) -> bytes:
    """Reads a request's body.

    Raises:
        MessageTooLarge: it is over the limit; the rest of it is not read.
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
    return BatchReply(await app.answered(app.messages.read_json(await _body(app, request))))


async def _post_start(app: PolicyServerApp, request: Request) -> object:
    return await _one(app, request, StartEpisode, default={"episode_id": uuid.uuid4().hex})


async def _post_end(app: PolicyServerApp, request: Request) -> object:
    return await _one(app, request, EndEpisode)


async def _post_abort(app: PolicyServerApp, request: Request) -> object:
    return await _one(app, request, AbortEpisode)


async def _post_shutdown(app: PolicyServerApp, request: Request) -> object:
    if not app.token:
        raise Unauthorized(
            f"server {app.spec.server_id!r} has no token, so nobody may stop it from outside; "
            "set servers.NAME.token"
        )
    app.shutdown()
    return {"status": "stopping"}


async def _one(
    app: PolicyServerApp,
    request: Request,
    kind: type[AnyItem],
    default: dict[str, str] | None = None,
) -> object:
    """Answers the one item of a request: its body's fields, and those that its path gives.

    Raises:
        MalformedMessage: the body is not JSON, or not such an item.
        MessageTooLarge: it is over a limit.
    """
    fields = app.messages.read_fields(await _body(app, request) or b"{}")
    given = {**(default or {}), **fields, **request.path_params}
    item = app.messages.read_item(given, kind)
    return (await app.answered([item]))[0]


def _json(value: object, code: int = 200) -> Response:
    headers = {"Retry-After": "1"} if code == 429 else None
    return Response(encode_json(value), code, headers, media_type="application/json")


def make_asgi_app(app: PolicyServerApp) -> Starlette:
    """Returns the ASGI application of one server."""

    def guarded(endpoint: Endpoint) -> Callable[[Request], Awaitable[Response]]:
        async def handle(request: Request) -> Response:
            try:
                app.check_access(request.headers.get)
                value = await endpoint(app, request)
            except ProtocolError as error:
                app.num_refused += 1
                return _json(Refused("", code=error.code, message=error.message), error.code)
            except ClientDisconnect:
                return Response(status_code=400)  # nobody is there to read it
            return _json(value, value.code if isinstance(value, Refused) else 200)

        return handle

    async def no_such_route(request: Request, error: Exception) -> Response:
        """404 and 405, in the form of all other refusals."""
        assert isinstance(error, HTTPException)
        story = f"there is no {request.method} {request.url.path[:100]}: {error.detail}"
        return _json(Refused("", code=error.status_code, message=story), error.status_code)

    starlette = Starlette(
        exception_handlers={HTTPException: no_such_route},
        routes=[
            Route("/v1/spec", guarded(_get_spec)),
            Route("/v1/status", guarded(_get_status)),
            Route("/v1/health", guarded(_get_health)),
            Route("/v1/step", guarded(_post_batch), methods=["POST"]),
            Route("/v1/episodes", guarded(_post_start), methods=["POST"]),
            Route("/v1/episodes/{episode_id}/end", guarded(_post_end), methods=["POST"]),
            Route("/v1/episodes/{episode_id}/abort", guarded(_post_abort), methods=["POST"]),
            Route("/v1/shutdown", guarded(_post_shutdown), methods=["POST"]),
        ],
    )
    # A redirect would go to whatever the request calls us.
    starlette.router.redirect_slashes = False
    return starlette
