"""A real server answers as its OpenAPI document says, to all requests that the document allows."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Any

import hypothesis
import pytest
import requests
import schemathesis
from schemathesis.checks import load_all_checks
from schemathesis.specs.openapi.checks import negative_data_rejection, positive_data_acceptance
from tests.compliance.real_servers import SEES, TOKEN, make_plan

from muxrl.protocol.run_messages import PlanProblems, SavedPart
from muxrl.servers.config import LimitsConfig
from muxrl.servers.network.http import ENDPOINTS, document
from muxrl.servers.run_service import RunService
from muxrl.servers.server import PolicyServer

BEARER = {"Authorization": f"Bearer {TOKEN}"}
OVER_HTTP = [endpoint for endpoint in ENDPOINTS if endpoint.path != "/v1/ws"]


@pytest.fixture
def url() -> Iterator[str]:
    """Gives the URL of a random server for at most 8 episodes, which may be shut down."""
    agents = {agent: SEES[agent] for agent in "ab"}
    limits = LimitsConfig(max_episodes=8)
    plan = make_plan("RANDOM", agents, token=TOKEN, limits=limits)
    server = PolicyServer(plan, on_shutdown=lambda: None)
    report = RunService(server).report
    server.answer_run(
        RunService(server).requests()
        | {
            "begin": lambda asked: server.spec(),  # a drawn plan is rarely whole
            "check": lambda asked: PlanProblems([]),
            "save": lambda asked: SavedPart(0, report()),  # the drawn path could be anywhere
        }
    )
    server.start()
    yield f"http://{server.address}"
    assert server.stop()


def test_the_document_is_served(url: str) -> None:
    answer = requests.get(f"{url}/v1/openapi.json", headers=BEARER, timeout=10)
    assert answer.json() == document()
    assert requests.get(f"{url}/v1/openapi.json", timeout=10).status_code == 401


@pytest.mark.parametrize(
    ("path", "mode"),
    [(e.path, "positive") for e in OVER_HTTP] + [(e.path, "negative") for e in OVER_HTTP if e.body],
)
def test_a_server_keeps_to_its_document(url: str, path: str, mode: str) -> None:
    """A server answers with documented codes and bodies, and with no error of its own."""
    schema = schemathesis.openapi.from_dict(document())
    operation = next(found.ok() for found in schema.get_all_operations() if found.ok().path == path)
    generation = schemathesis.GenerationMode(mode)
    load_all_checks()
    # In a batch, most items that cannot be answered are refused one by one within a 200, and ids
    # with unprintable characters by a 400. Only for a batch does the schema cover all that makes a
    # 400.
    unfit = [negative_data_rejection]
    if path != "/v1/step":
        unfit.append(positive_data_acceptance)
    codes: Counter[int] = Counter()
    known = ["v", "w", "x", "y", "z"]
    for episode_id in known if "{episode_id}" in path else []:
        start = {"episode_id": episode_id}
        assert requests.post(f"{url}/v1/episodes", json=start, headers=BEARER, timeout=10).ok

    @hypothesis.settings(
        max_examples=20,
        deadline=None,
        database=None,
        derandomize=True,
        suppress_health_check=list(hypothesis.HealthCheck),
    )
    @hypothesis.given(operation.as_strategy(generation_mode=generation))
    def answer(case: Any) -> None:
        case.body = with_whole_numbers(case.body)
        drawn = str(case.path_parameters)
        # The other half of the requests is for episodes that do not exist.
        if "{episode_id}" in path and len(drawn) % 2:
            case.path_parameters["episode_id"] = known[len(drawn) % 5]
        response = case.call(base_url=url, headers=BEARER)
        codes[response.status_code] += 1
        case.validate_response(response, headers=BEARER, excluded_checks=unfit)

    answer()
    assert sum(codes.values()) > (10 if operation.body else 0), codes
    assert 500 not in codes
    if generation.is_positive and path != "/v1/step":
        assert 200 in codes


def with_whole_numbers(value: Any) -> Any:
    """Replaces 3.0 by 3 throughout: JSON Schema takes it for an integer, the protocol does not."""
    if isinstance(value, float) and value.is_integer():
        return int(value)
    if isinstance(value, list):
        return [with_whole_numbers(part) for part in value]
    if isinstance(value, dict):
        return {key: with_whole_numbers(part) for key, part in value.items()}
    return value
