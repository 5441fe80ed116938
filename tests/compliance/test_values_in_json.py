"""Observations and actions of every space are written in JSON as docs/protocol.md shows them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import requests
from tests.compliance.real_servers import make_plan, running

from muxrl.protocol.spaces import (
    Box,
    DictSpace,
    Discrete,
    MultiBinary,
    MultiDiscrete,
    Space,
    TupleSpace,
)

MASKED = DictSpace({"observation": Box((1,)), "action_mask": Box((2,), "int8", 0, 1)})
# By agent id: observation space, observation to send, action space, expected form of the action.
AGENTS: dict[str, tuple[Space, Any, Space, Any]] = {
    "box": (Box((2,), low=0, high=1), [0.5, 9.0], Box((2,), low=0, high=5), [float, float]),
    "a number": (Box(()), 1.5, Box((1, 1), low=-1, high=1), [[float]]),
    "discrete": (Discrete(3, start=1), 3, Discrete(3, start=1), int),
    "multi: discrete|,/%é☃": (MultiDiscrete((2, 3)), [1, 2], MultiDiscrete((2, 3)), [int, int]),
    "multi binary": (MultiBinary(3), [1, 0, 1], MultiBinary(2), [int, int]),
    "dict": (MASKED, {"observation": [0.1], "action_mask": [1, 0]}, Discrete(2), int),
    "tuple": (TupleSpace((Box((1,)), Discrete(2))), [[0.1], 1], Discrete(2), int),
}


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    agents = {agent_id: (sees, does) for agent_id, (sees, _, does, _) in AGENTS.items()}
    with running(make_plan("RANDOM", agents)) as server:
        yield f"http://{server.address}/v1/step"


def say(url: str, *items: dict[str, Any]) -> list[dict[str, Any]]:
    replies = requests.post(url, json={"items": items}, timeout=10).json()["replies"]
    assert isinstance(replies, list)
    return replies


def kinds(value: Any) -> Any:
    return [kinds(part) for part in value] if isinstance(value, list) else type(value)


def test_every_space_has_its_form_and_every_text_is_an_agent_s_id(url: str) -> None:
    seen = {agent_id: sent for agent_id, (_, sent, _, _) in AGENTS.items()}
    start = {"type": "start", "episode_id": "forms"}
    _, reply = say(url, start, {**start, "type": "step", "t": 0, "observations": seen})
    found = {agent_id: kinds(action) for agent_id, action in reply["actions"].items()}
    assert found == {agent_id: form for agent_id, (_, _, _, form) in AGENTS.items()}
    assert all(0 <= number <= 5 for number in reply["actions"]["box"])
    assert reply["actions"]["dict"] == 0, "its mask allows nothing else"


def test_a_logged_action_of_another_space_is_refused(url: str) -> None:
    start = {"type": "start", "episode_id": "logged wrong"}
    step = {**start, "type": "step", "t": 0, "observations": {"discrete": 1}}
    _, refused = say(url, start, {**step, "logged_actions": {"discrete": 4}})
    assert (refused["code"], refused["agent_id"]) == (422, "discrete")
    assert "action of agent 'discrete'" in refused["message"]


@pytest.mark.parametrize(
    ("agent_id", "wrong", "got"),
    [
        ("box", [1.0, None], "null at index [1]"),
        ("box", ["x", 1.0], "str 'x' at index [0]"),
        ("box", [1.0, 10**400], "an integer beyond 64 bits at index [1]"),
        ("box", None, "null"),
        ("discrete", 0, "0"),
        ("discrete", 1.5, "float '1.5'"),
        ("multi binary", [1, 0, 2], "[1, 0, 2]"),
        ("dict", {"observation": [0.1]}, "keys ['observation']"),
    ],
)
def test_a_refusal_says_what_came_and_where(url: str, agent_id: str, wrong: Any, got: str) -> None:
    start = {"type": "start", "episode_id": f"wrong {agent_id} {got}"}
    step = {**start, "type": "step", "t": 0, "observations": {agent_id: wrong}}
    other = {**start, "episode_id": f"beside {agent_id} {got}"}
    _, refused, begun = say(url, start, step, other)
    assert begun["type"] == "started", "others of its frame go on"
    address = url.split("/")[2]
    assert refused["message"].startswith(
        f"server 'random' ({address}) refused t=0 of episode {start['episode_id']}: "
    )
    assert (refused["type"], refused["code"], refused["agent_id"]) == ("refused", 422, agent_id)
    assert refused["got"] == got
