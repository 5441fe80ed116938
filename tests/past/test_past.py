"""Files and frames of version 0.1 are read, compared, evaluated and resumed as they were."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest
from tests.past.exchange import ask
from tests.past.figures import PAST, figures, unpack
from tests.past.talk import frames, serving

from muxrl import RunResult, evaluate, launch, load_policy
from muxrl.protocol.codec import decode_batch, decode_batch_reply
from muxrl.protocol.messages import BatchReply, Refused


@pytest.fixture
def past(tmp_path: Path) -> Path:
    unpack(tmp_path)
    return tmp_path


def assert_alike(now: Any, then: Any, at: str) -> None:
    """What there was is there; what is new beside it may be."""
    if isinstance(then, dict):
        assert then.keys() <= now.keys(), at
        for key, value in then.items():
            assert_alike(now[key], value, f"{at}/{key}")
    elif isinstance(then, list):
        assert len(now) == len(then), at
        for i, value in enumerate(then):
            assert_alike(now[i], value, f"{at}/{i}")
    elif isinstance(then, float) and isinstance(now, float):
        assert math.isclose(now, then, rel_tol=1e-9), at
    else:
        assert now == then, at


def test_report_comparison_and_frames_say_what_they_said(past: Path) -> None:
    assert_alike(figures(past), json.loads((PAST / "expected.json").read_text()), "")


@pytest.mark.parametrize("transport", ["websocket", "http"])
def test_a_conversation_is_answered_as_it_was(transport: str) -> None:
    recorded = [
        (bytes.fromhex(frame["sent"]), bytes.fromhex(frame["received"]))
        for frame in json.loads((PAST / "conversation.json").read_text())
        if frame["transport"] == transport
    ]
    sent = [frame for frame, _ in recorded]
    assert sent == list(frames(f"past-{transport}", as_json=transport == "http"))
    with serving() as address:
        answers = ask(address, transport, sent)
    for frame, (asked, then) in zip(answers, recorded, strict=True):
        if transport == "http":
            asked, frame, then = (data.decode() for data in (asked, frame, then))
        assert decode_batch(asked).items
        assert told(decode_batch_reply(frame)) == told(decode_batch_reply(then))


def told(batch: BatchReply) -> list[Any]:
    """The replies, less the address in a refusal's message."""
    for reply in batch.replies:
        if isinstance(reply, Refused):
            reply.message = reply.message.partition(") refused ")[2]
    return list(batch.replies)


@pytest.mark.usefixtures("rllib")
def test_policies_act_and_are_evaluated(past: Path) -> None:
    policies = load_policy(past / "one")
    assert sorted(policies) == ["agent_0", "agent_1", "agent_2"]
    found = evaluate(past / "one", num_episodes=2)
    assert {"team", "ppo"} <= set(found.servers)


@pytest.mark.ray
@pytest.mark.faults
@pytest.mark.timeout(300)
def test_a_run_is_resumed(past: Path) -> None:
    run = launch(past / "one", {"stop.env_steps": 440}, resume=True)
    assert run.outcome == "done"
    assert RunResult.read(past / "one").env_steps >= 440
