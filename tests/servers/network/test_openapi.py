"""The OpenAPI document is valid, committed as generated, and describes the protocol of the page."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from openapi_spec_validator import validate

from muxrl.servers.network import http

DOCS = Path(__file__).parents[3] / "docs"


@pytest.fixture(scope="module")
def document() -> dict[str, Any]:
    return http.document()


def rows(heading: str) -> list[list[str]]:
    """Returns the cells of the first table below a heading of the page, without its head."""
    section = (DOCS / "protocol.md").read_text().split(f"\n## {heading}\n")[1].split("\n## ")[0]
    return [row.split(" | ") for row in re.findall(r"^\| (.+) \|$", section, re.MULTILINE)][1:]


def test_the_document_is_valid_openapi(document: dict[str, Any]) -> None:
    validate(document)


def test_the_committed_file_is_the_generated_one(document: dict[str, Any]) -> None:
    committed = json.loads((DOCS / "openapi.json").read_text())
    assert committed == document, "run `make docs`"


def test_the_document_has_the_endpoints_of_the_page(document: dict[str, Any]) -> None:
    on_the_page = {row[0].strip("`").replace("ID", "{episode_id}") for row in rows("Endpoints")}
    in_the_file = {
        f"{method.upper()} {path}" for path, item in document["paths"].items() for method in item
    }
    assert in_the_file == on_the_page


def test_the_document_has_the_codes_of_the_page(document: dict[str, Any]) -> None:
    on_the_page = {code for row in rows("Refusals") for code in row[0].split(", ")}
    assert document["components"]["responses"].keys() == on_the_page


def test_each_code_but_a_wrong_method_is_an_answer_of_some_endpoint(
    document: dict[str, Any],
) -> None:
    answers = {
        code
        for item in document["paths"].values()
        for o in item.values()
        for code in o["responses"]
    }
    assert answers == document["components"]["responses"].keys() - {"405"} | {"101", "200"}


def parts(schema: Any, path: str = "") -> Iterator[tuple[str, dict[str, Any]]]:
    if isinstance(schema, dict):
        yield path, schema
        for key, value in schema.items():
            yield from parts(value, f"{path}/{key}")


def test_every_field_says_what_may_be_in_it(document: dict[str, Any]) -> None:
    known = {"type", "anyOf", "enum", "$ref"}
    schemas = document["components"]["schemas"]
    vague = [
        f"{path}/{name}"
        for path, schema in parts(schemas)
        for name, field in schema.get("properties", {}).items()
        if not known & field.keys()
        or (field.get("type") == "object" and "additionalProperties" not in field)
    ]
    assert not [field for field in vague if not field.startswith("/Box")]


def test_messages_of_one_item_need_neither_what_the_path_says_nor_an_id(
    document: dict[str, Any],
) -> None:
    bodies = {
        path: item["post"]["requestBody"]["content"]["application/json"]["schema"]
        for path, item in document["paths"].items()
        if path.startswith("/v1/episodes")
    }
    assert {path: body.get("required") for path, body in bodies.items()} == {
        "/v1/episodes": None,
        "/v1/episodes/{episode_id}/end": ["t"],
        "/v1/episodes/{episode_id}/abort": None,
    }
    assert all("type" not in body["properties"] for body in bodies.values())
    has_id = {path for path, body in bodies.items() if "episode_id" in body["properties"]}
    assert has_id == {"/v1/episodes"}
