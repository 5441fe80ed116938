"""The protocol over HTTP as an OpenAPI 3.1 document, made from the message types.

Every server answers ``GET /v1/openapi.json`` with it, and ``docs/openapi.json`` is a copy
(`make docs`). What JSON Schema cannot say, such as the order of steps, is in ``docs/protocol.md``.
"""

from __future__ import annotations

import inspect
from typing import Any, NamedTuple

import msgspec

from muxrl.protocol import PROTOCOL_VERSION
from muxrl.protocol.episode import MAX_ID_CHARS
from muxrl.protocol.errors import REFUSALS
from muxrl.protocol.messages import (
    Aborted,
    AbortEpisode,
    ActionRows,
    Batch,
    BatchReply,
    Ended,
    EndEpisode,
    Health,
    Item,
    PolicyWeights,
    Refused,
    ServerSpec,
    Started,
    StartEpisode,
    Status,
    StepRows,
    Stopping,
)
from muxrl.protocol.run_messages import RUN_REQUESTS

Schema = dict[str, Any]
_REF = "#/components/schemas/{name}"
_VALUES = ("observations", "final_observations", "logged_actions", "actions", "logits", "states")
"""Fields whose values are as the agents' spaces say, or arrays."""
_VALUE: Schema = {
    "title": "Value",
    "description": "Of a space: Box, MultiDiscrete and MultiBinary are nested lists of numbers, "
    "Discrete an integer, Dict an object, Tuple a list.",
    "anyOf": [
        {"type": ["number", "boolean"]},
        {"type": "array", "items": {"$ref": _REF.format(name="Value")}},
        {"type": "object", "additionalProperties": {"$ref": _REF.format(name="Value")}},
    ],
}
_TEXT: Schema = {"type": "string"}
_NOT_OF_CLASSES = {
    404: "no such path, or an id with a '/' in it",
    405: "not with this method",
    500: "an error in the server itself; its log has the traceback",
}
"""Codes that no class of `muxrl.protocol.errors` stands for."""


class Endpoint(NamedTuple):
    """A path with a method.

    `answers`: what may come with a 200, any object if empty. `codes`: its refusals, beside those
    that every request may get.
    """

    method: str
    path: str
    summary: str
    answers: tuple[type[msgspec.Struct], ...] = ()
    body: type[msgspec.Struct] | None = None
    codes: tuple[int, ...] = ()


_ANYWHERE = (400, 401, 403, 500, 503)
# An episode that has ended is not aborted any more, nor the other way.
_CLOSED = (Ended, Aborted)
ENDPOINTS = (
    Endpoint(
        "get", "/v1/spec", "What the server is: agents, spaces, groups, limits.", (ServerSpec,)
    ),
    Endpoint("get", "/v1/health", "Whether it is ready; 503 while there is a problem.", (Health,)),
    Endpoint("get", "/v1/status", "Where acting and learning stand.", (Status,)),
    Endpoint("get", "/v1/openapi.json", "This document."),
    Endpoint(
        "get", "/v1/policies", "The networks that act, for clients that act in the server's place.",
        (PolicyWeights,),
    ),
    Endpoint("get", "/metrics", "What it counts, as Prometheus reads it."),
    Endpoint(
        "post", "/v1/step",
        "Answers any items of any episodes, in order; each that is refused has its own code.",
        (BatchReply,), Batch, (413,),
    ),
    Endpoint(
        "post", "/v1/episodes", "Opens an episode; an id is made if none is given.",
        (Started,), StartEpisode, (409, 410, 413, 422, 423, 429),
    ),
    Endpoint(
        "post", "/v1/episodes/{episode_id}/end", "Closes an episode.",
        _CLOSED, EndEpisode, (404, 409, 410, 413, 422, 423),
    ),
    Endpoint(
        "post", "/v1/episodes/{episode_id}/abort", "Closes an episode early.",
        _CLOSED, AbortEpisode, (404, 413, 423),
    ),
    Endpoint("post", "/v1/shutdown", "Ends a `muxrl serve`; wants a token.", (Stopping,)),
    *(
        Endpoint(
            "post", f"/v1/run/{name}", (asked.__doc__ or "").partition("\n")[0], (answer,), asked,
            (413, 422),
        )
        for name, (asked, answer) in RUN_REQUESTS.items()
    ),
    Endpoint(
        "get", "/v1/ws", "Upgrades to a WebSocket: batches in msgpack or JSON.", codes=(404,)
    ),
)  # fmt: skip


def openapi() -> Schema:
    """Returns the document, as plain data."""
    kinds = {kind for e in ENDPOINTS for kind in (*e.answers, e.body) if kind} | {Refused}
    in_order = sorted(kinds, key=lambda kind: kind.__name__)
    _, schemas = msgspec.json.schema_components(in_order, ref_template=_REF)
    _leave_out_rows(schemas)
    for name, schema in schemas.items():
        _describe(name, schema)
    paths: dict[str, Schema] = {}
    for endpoint in ENDPOINTS:
        paths.setdefault(endpoint.path, {})[endpoint.method] = _operation(endpoint, schemas)
    stories = {cls.code: inspect.getdoc(cls) for cls in REFUSALS} | _NOT_OF_CLASSES
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "muxrl policy server",
            "version": str(PROTOCOL_VERSION),
            "summary": "How a simulation speaks to a policy server, or to the gateway of several.",
            "license": {"name": "Apache-2.0", "identifier": "Apache-2.0"},
        },
        "servers": [{"url": "/"}],
        # Of a server without a token nothing is asked.
        "security": [{}, {"token": []}],
        "paths": paths,
        "components": {
            "schemas": {**schemas, "Value": _VALUE},
            "responses": {
                str(code): {"description": story, "content": _json(Refused)}
                for code, story in sorted(stories.items())
            },
            "securitySchemes": {"token": {"type": "http", "scheme": "bearer"}},
        },
    }


def _operation(endpoint: Endpoint, schemas: dict[str, Schema]) -> Schema:
    operation: Schema = {"summary": endpoint.summary, "operationId": _name(endpoint)}
    if "{episode_id}" in endpoint.path:
        in_path = {**_ID, "pattern": "^[^/]+$"}
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
    words = (
        endpoint.path.removeprefix("/v1")
        .lstrip("/")
        .replace("/{episode_id}", "")
        .replace(".json", "")
    )
    return f"{endpoint.method}_{words.replace('/', '_')}"


def _json(*kinds: type[msgspec.Struct]) -> Schema:
    schemas = [{"$ref": _REF.format(name=kind.__name__)} for kind in kinds]
    schema = {"anyOf": schemas} if len(schemas) > 1 else next(iter(schemas), {"type": "object"})
    return {"application/json": {"schema": schema}}


def _leave_out_rows(schemas: dict[str, Schema]) -> None:
    """Takes out what JSON does not have."""
    gone = {_REF.format(name=kind.__name__) for kind in (StepRows, ActionRows)}
    for name, field in (("Batch", "items"), ("BatchReply", "replies")):
        one_of = schemas[name]["properties"][field]["items"]
        one_of["anyOf"] = [part for part in one_of["anyOf"] if part["$ref"] not in gone]
        mapping = one_of["discriminator"]["mapping"]
        one_of["discriminator"]["mapping"] = {k: v for k, v in mapping.items() if v not in gone}
    for kind in (StepRows, ActionRows):
        del schemas[kind.__name__]


_ID: Schema = {"type": "string", "minLength": 1, "maxLength": MAX_ID_CHARS}


def _describe(name: str, schema: Schema) -> None:
    """Adds what the types do not say."""
    if "description" in schema:
        schema["description"] = inspect.cleandoc(schema["description"])
    properties = schema.get("properties", {})
    for field in _VALUES:
        if field in properties:
            properties[field]["additionalProperties"] = {"$ref": _REF.format(name="Value")}
    if "state" in properties:
        properties["state"].update({"type": ["array", "null"], "items": {"type": "number"}})
    if "plan" in properties:
        properties["plan"]["additionalProperties"] = True
    if name == "DenseLayer":
        properties["weight"].update({"type": "array", "items": {"type": "array"}})
        properties["bias"].update({"type": ["array", "null"], "items": {"type": "number"}})
    if name == "GruLayer":
        for field in ("weight_x", "weight_h"):
            properties[field].update({"type": "array", "items": {"type": "array"}})
        for field in ("bias_x", "bias_h"):
            properties[field].update({"type": "array", "items": {"type": "number"}})
    if name in {kind.__name__ for kind in Item.__subclasses__()}:
        properties["episode_id"] = _ID
        if "t" in properties:
            properties["t"]["minimum"] = 0


def _without_id(schema: Schema, endpoint: Endpoint) -> Schema:
    """Returns the schema of an item whose kind, and perhaps id, are in the path."""
    gone = {"type"} | ({"episode_id"} if "{episode_id}" in endpoint.path else set())
    properties = {key: value for key, value in schema["properties"].items() if key not in gone}
    required = [key for key in schema["required"] if key in properties and key != "episode_id"]
    rest = {key: value for key, value in schema.items() if key not in ("properties", "required")}
    return {**rest, "properties": properties, **({"required": required} if required else {})}
