"""Makes an OpenAPI 3.1 document of the protocol over HTTP from the message types.

Every server answers ``GET /v1/openapi.json`` with it, and ``docs/openapi.json`` is a copy
(`make docs`). Rules that JSON Schema cannot state, such as the order of steps, are in
``docs/protocol.md``.
"""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable, Collection
from typing import Any, NamedTuple

import msgspec

from muxrl.protocol import PROTOCOL_VERSION
from muxrl.protocol.errors import REFUSALS
from muxrl.protocol.messages import Batch, BatchReply, Item, ItemInJson, Refused, ReplyInJson

Schema = dict[str, Any]
_REF = "#/components/schemas/{name}"
_VALUE: Schema = {
    "title": "Value",
    "description": "A value of a space: nested lists of numbers for Box, MultiDiscrete and "
    "MultiBinary, an integer for Discrete, an object for Dict, a list for Tuple.",
    "anyOf": [
        {"type": ["number", "boolean"]},
        {"type": "array", "items": {"$ref": _REF.format(name="Value")}},
        {"type": "object", "additionalProperties": {"$ref": _REF.format(name="Value")}},
    ],
}
_TEXT: Schema = {"type": "string"}
_NOT_OF_CLASSES = {
    404: "There is no such path, or an id has a '/' in it.",
    405: "The path does not accept this method.",
    500: "An error in the server itself; its log has the traceback.",
}
"""Codes that no class of `muxrl.protocol.errors` has."""


class Endpoint(NamedTuple):
    """A path with a method.

    `answers`: possible answers with a 200, any object if empty. `codes`: its refusals, besides the
    ones that every request may get. `handler`: the function of a server that answers it.
    """

    method: str
    path: str
    summary: str
    handler: Callable[..., Awaitable[object]] | None = None
    answers: tuple[type[msgspec.Struct], ...] = ()
    body: type[msgspec.Struct] | None = None
    codes: tuple[int, ...] = ()


_ANYWHERE = (400, 401, 403, 500, 503)
_IN_JSON: dict[type[msgspec.Struct], tuple[str, Any]] = {
    Batch: ("items", list[ItemInJson]),
    BatchReply: ("replies", list[ReplyInJson]),
}
"""Messages that may have rows of arrays, which are in msgpack only: their fields in JSON."""


def openapi(endpoints: Collection[Endpoint]) -> Schema:
    """Returns the OpenAPI document as plain data."""
    kinds = {kind for e in endpoints for kind in (*e.answers, e.body) if kind} | {Refused}
    in_order = sorted(map(_in_json, kinds), key=lambda kind: kind.__name__)
    _, schemas = msgspec.json.schema_components(in_order, ref_template=_REF)
    for schema in schemas.values():
        if "description" in schema:
            schema["description"] = inspect.cleandoc(schema["description"])
    paths: dict[str, Schema] = {}
    for endpoint in endpoints:
        paths.setdefault(endpoint.path, {})[endpoint.method] = _operation(endpoint, schemas)
    meanings = {cls.code: inspect.getdoc(cls) for cls in REFUSALS} | _NOT_OF_CLASSES
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "muxrl policy server",
            "version": str(PROTOCOL_VERSION),
            "summary": "How simulations talk to a policy server, or to the gateway of several.",
            "license": {"name": "Apache-2.0", "identifier": "Apache-2.0"},
        },
        "servers": [{"url": "/"}],
        # A server without a token asks for none.
        "security": [{}, {"token": []}],
        "paths": paths,
        "components": {
            "schemas": {**schemas, "Value": _VALUE},
            "responses": {
                str(code): {"description": meaning, "content": _json(Refused)}
                for code, meaning in sorted(meanings.items())
            },
            "securitySchemes": {"token": {"type": "http", "scheme": "bearer"}},
        },
    }


def _operation(endpoint: Endpoint, schemas: dict[str, Schema]) -> Schema:
    operation: Schema = {"summary": endpoint.summary, "operationId": _name(endpoint)}
    if "{episode_id}" in endpoint.path:
        in_path = {**schemas["Step"]["properties"]["episode_id"], "pattern": "^[^/]+$"}
        operation["parameters"] = [
            {"name": "episode_id", "in": "path", "required": True, "schema": in_path}
        ]
    if endpoint.body is not None:
        body: Schema = {"$ref": _REF.format(name=endpoint.body.__name__)}
        if issubclass(endpoint.body, Item):
            body = _without_id(schemas[endpoint.body.__name__], endpoint)
        operation["requestBody"] = {
            "required": "$ref" in body or "required" in body,
            "content": {"application/json": {"schema": body}},
        }
    if endpoint.path == "/v1/ws":
        answers: Schema = {"101": {"description": "It is a WebSocket from now on."}}
    else:
        content = _json(*endpoint.answers)
        if endpoint.path == "/metrics":
            content = {"text/plain": {"schema": _TEXT}}
        elif endpoint.path == "/v1/policies":  # arrays, as in a frame of msgpack
            content = {"application/msgpack": content.pop("application/json")}
        answers = {"200": {"description": endpoint.summary, "content": content}}
    for code in sorted((*_ANYWHERE, *endpoint.codes)):
        answers[str(code)] = {"$ref": f"#/components/responses/{code}"}
    return {**operation, "responses": answers}


def _name(endpoint: Endpoint) -> str:
    words = endpoint.path.removesuffix(".json").split("/")
    return "_".join([endpoint.method, *(w for w in words if w.isalpha())])


def _in_json(kind: type[msgspec.Struct]) -> type[msgspec.Struct]:
    """Returns a message type without the items or replies that JSON does not have."""
    if kind not in _IN_JSON:
        return kind
    return msgspec.defstruct(
        kind.__name__, [_IN_JSON[kind]], bases=(kind,), namespace={"__doc__": kind.__doc__}
    )


def _json(*kinds: type[msgspec.Struct]) -> Schema:
    schemas = [{"$ref": _REF.format(name=kind.__name__)} for kind in kinds]
    schema = {"anyOf": schemas} if len(schemas) > 1 else next(iter(schemas), {"type": "object"})
    return {"application/json": {"schema": schema}}


def _without_id(schema: Schema, endpoint: Endpoint) -> Schema:
    """Returns the schema of an item without its type, and without its id if the path has it."""
    gone = {"type"} | ({"episode_id"} if "{episode_id}" in endpoint.path else set())
    properties = {key: value for key, value in schema["properties"].items() if key not in gone}
    required = [key for key in schema["required"] if key in properties and key != "episode_id"]
    rest = {key: value for key, value in schema.items() if key not in ("properties", "required")}
    return {**rest, "properties": properties, **({"required": required} if required else {})}
