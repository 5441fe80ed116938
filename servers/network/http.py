"""HTTP with one JSON message per request: for status, and for clients without WebSocket.

A refusal has an HTTP status code of its own.
"""

from __future__ import annotations

import asyncio
import functools
import time
import uuid
from collections.abc import Awaitable, Callable
from typing import Any

import msgspec
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import Route

from muxrl.protocol.codec import decode_json, encode_json
from muxrl.protocol.errors import (
    Forbidden,
    MalformedMessage,
    MessageTooLarge,
    ProtocolError,
    Unauthorized,
)
from muxrl.protocol.messages import (
    Aborted,
    AbortEpisode,
    AnyItem,
    Batch,
    BatchReply,
    Ended,
    EndEpisode,
    Health,
    PolicyWeights,
    Refused,
    ServerSpec,
    Started,
    StartEpisode,
    Status,
    Stopping,
)
from muxrl.protocol.openapi import Endpoint, openapi
from muxrl.protocol.run_messages import RUN_REQUESTS
from muxrl.servers.network.exposition import CONTENT_TYPE, exposition
from muxrl.servers.network.front import Front, internal_error

Handler = Callable[[Front, Request], Awaitable[object]]


async def _body(app: Front, request: Request) -> bytes:
    """Reads a request's body.

    Raises:
        MessageTooLarge: the body is over the limit; the rest of it is not read.
    """
    limit = app.spec.max_message_bytes
    parts: list[bytes] = []
    size = 0
    async for part in request.stream():
        size += len(part)
        if size > limit:
            raise MessageTooLarge(
                f"the body is over the server's limit of {limit} bytes (limits.max_message_bytes)",
                expected=f"at most {limit} bytes",
            )
        parts.append(part)
    request.state.here_at = time.perf_counter()
    return b"".join(parts)


def _health(app: Front) -> Response:
    health = app.health()
    return _json(health, 503 if health.problem else 200)


def _document(app: Front) -> object:
    return document()


def _metrics(app: Front) -> Response:
    text = exposition(app.measures(), app.spec.server_id)
    return Response(text, headers={"Content-Type": CONTENT_TYPE})


def _get(answer: Callable[[Front], object]) -> Handler:
    """Returns the handler of a request that carries nothing but its path."""

    async def handle(app: Front, request: Request) -> object:
        return answer(app)

    return handle


async def _post_batch(app: Front, request: Request) -> object:
    return BatchReply(await app.answered(app.messages.read_json(await _body(app, request))))


async def _post_shutdown(app: Front, request: Request) -> object:
    if not app.token:
        raise Unauthorized(
            f"server {app.spec.server_id!r} has no token, so nobody may stop it from outside; "
            "give it one"
        )
    if app.on_shutdown is None:
        raise Forbidden(
            f"server {app.spec.server_id!r} belongs to a run, which would start it again; "
            "'muxrl stop RUN' ends the run"
        )
    app.on_shutdown()
    return Stopping()


async def _post_run(name: str, app: Front, request: Request) -> object:
    if not app.token:
        raise Unauthorized(
            f"server {app.spec.server_id!r} has no token, so no run may ask it for anything; "
            "give it one"
        )
    if name not in app.run_requests:
        raise Forbidden(
            f"server {app.spec.server_id!r} does not answer requests of runs; servers that do are "
            "started by muxrl.serving, or name these requests in the 'offers' of their spec"
        )
    kind, _ = RUN_REQUESTS[name]
    body = await _body(app, request)
    app.messages.check_json(body)
    asked = decode_json(body or b"{}", kind)

    def answered() -> msgspec.Struct:
        try:
            return app.run_requests[name](asked)
        except StopIteration as error:  # maybe raised by a trainer's code; futures cannot carry it
            raise RuntimeError("StopIteration") from error

    return await asyncio.to_thread(answered)


async def _post_item(kind: type[AnyItem], app: Front, request: Request) -> object:
    """Answers the single item of a request, made of the fields in the body and in the path.

    Raises:
        MalformedMessage: the body is not JSON, not such an item, or of another episode.
        MessageTooLarge: the body is over a limit.
    """
    fields = app.messages.read_fields(await _body(app, request) or b"{}")
    for name, value in request.path_params.items():
        parsed = decode_json(bytes(fields[name]), Any) if name in fields else value
        if str(parsed) != value:
            raise MalformedMessage(
                f"the path says {name} {value!r}, the body {parsed!r}; leave it out of the body",
                expected=repr(value),
                got=repr(parsed),
            )
    given = {"episode_id": uuid.uuid4().hex, **fields, **request.path_params}
    item = app.messages.read_item(given, kind)
    return (await app.answered([item]))[0]


# An episode that has ended cannot be aborted any more, nor the other way round.
_CLOSED = (Ended, Aborted)
ENDPOINTS = (
    Endpoint(
        "get", "/v1/spec", "Returns the server's agents, spaces, groups and limits.",
        _get(lambda app: app.spec), (ServerSpec,),
    ),
    Endpoint(
        "get", "/v1/health", "Returns whether the server is ready; 503 while it has a problem.",
        _get(_health), (Health,),
    ),
    Endpoint(
        "get", "/v1/status", "Returns the progress of acting and learning.",
        _get(lambda app: app.status()), (Status,),
    ),
    Endpoint("get", "/v1/openapi.json", "Returns this document.", _get(_document)),
    Endpoint(
        "get", "/v1/policies", "Returns the networks that act, for clients that act by themselves.",
        _get(lambda app: Response(app.weights(), media_type="application/msgpack")),
        (PolicyWeights,),
    ),
    Endpoint("get", "/metrics", "Returns the server's metrics for Prometheus.", _get(_metrics)),
    Endpoint(
        "post", "/v1/step",
        "Answers items of any episodes, in order; the reply to a refused item has its own code.",
        _post_batch, (BatchReply,), Batch, (413,),
    ),
    Endpoint(
        "post", "/v1/episodes", "Opens an episode; the server makes an id if none is given.",
        functools.partial(_post_item, StartEpisode), (Started,), StartEpisode,
        (409, 410, 413, 422, 423, 429),
    ),
    Endpoint(
        "post", "/v1/episodes/{episode_id}/end", "Closes an episode.",
        functools.partial(_post_item, EndEpisode), _CLOSED, EndEpisode,
        (404, 409, 410, 413, 422, 423),
    ),
    Endpoint(
        "post", "/v1/episodes/{episode_id}/abort",
        "Closes an episode early, as truncated at its last full step.",
        functools.partial(_post_item, AbortEpisode), _CLOSED, AbortEpisode, (404, 413, 423),
    ),
    Endpoint(
        "post", "/v1/shutdown",
        "Ends a `muxrl serve` or `muxrl gateway`; refused by a server without a token.",
        _post_shutdown, (Stopping,),
    ),
    *(
        Endpoint(
            "post", f"/v1/run/{name}", (asked.__doc__ or "").partition("\n")[0],
            functools.partial(_post_run, name), (answer,), asked, (413, 422),
        )
        for name, (asked, answer) in RUN_REQUESTS.items()
    ),
    Endpoint(
        "get", "/v1/ws",
        "Upgrades to a WebSocket, whose frames are batches in msgpack or JSON.", codes=(404,),
    ),
)  # fmt: skip
"""All endpoints of a server; the last one is answered by `muxrl.servers.network.websocket`."""


@functools.cache
def document() -> dict[str, Any]:
    """Returns the OpenAPI document that is served."""
    return openapi(ENDPOINTS)


_CLOSE = {"Connection": "close"}  # a refused client shall not take up one of the connections
_HEADERS = {429: {"Retry-After": "1"}, Unauthorized.code: _CLOSE, Forbidden.code: _CLOSE}
"""Headers of a refusal, by its code."""


def _json(value: object, code: int = 200) -> Response:
    return Response(encode_json(value), code, _HEADERS.get(code), media_type="application/json")


def make_asgi_app(app: Front) -> Starlette:
    """Returns the ASGI application of one server."""

    def guarded(handler: Handler) -> Callable[[Request], Awaitable[Response]]:
        async def handle(request: Request) -> Response:
            try:
                app.check_access(request.headers.get)
                value = await handler(app, request)
            except ClientDisconnect:
                return Response(status_code=400)  # no client will read it
            except Exception as error:  # noqa: BLE001, the refusal is logged
                what = f"{request.method} {request.url.path[:100]}"
                known = error if isinstance(error, ProtocolError) else internal_error(error)
                value = app.refuse_message(what, known)
            if isinstance(value, Response):
                return value
            response = _json(value, value.code if isinstance(value, Refused) else 200)
            if (here_at := getattr(request.state, "here_at", None)) is not None:
                app.exchanges.add(time.perf_counter() - here_at)
            return response

        return handle

    async def no_such_route(request: Request, error: Exception) -> Response:
        """Answers 404 and 405 in the form of all other refusals."""
        assert isinstance(error, HTTPException)
        reason = f"there is no {request.method} {request.url.path[:100]}: {error.detail}"
        return _json(Refused("", code=error.status_code, message=reason), error.status_code)

    starlette = Starlette(
        exception_handlers={HTTPException: no_such_route},
        routes=[
            Route(e.path, guarded(e.handler), methods=[e.method.upper()])
            for e in ENDPOINTS
            if e.handler
        ],
    )
    # A redirect would lead to the host that the request names, whatever that is.
    starlette.router.redirect_slashes = False
    return starlette
