"""Files and frames of version 0.1 are read, compared, evaluated, exported and resumed today."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import requests
from msgspec.structs import replace
from tests.faults.hosted import Host
from tests.faults.started import PATIENCE_S
from tests.past.figures import PAST, figures, outputs
from tests.past.talk import frames, serving
from websockets.sync.client import connect

from muxrl import RunResult, load_policy
from muxrl.client import network_transport
from muxrl.client.errors import ServerUnavailable
from muxrl.client.websocket import WebSocketTransport
from muxrl.orchestrator import cli
from muxrl.protocol.codec import decode_batch, decode_batch_reply, decode_json
from muxrl.protocol.messages import BatchReply, Refused, ServerSpec

EXPECTED = json.loads((PAST / "expected.json").read_text())


def assert_alike(now: Any, then: Any, at: str) -> None:
    """Asserts that everything then there is unchanged; there may be more keys now."""
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


def test_report_comparison_listing_page_and_frames_are_as_they_were(past: Path) -> None:
    assert_alike(figures(past), EXPECTED["figures"], "")


def test_a_server_describes_itself_as_it_did() -> None:
    text = (PAST / "spec.json").read_text()
    with serving() as address:
        now = requests.get(f"http://{address}/v1/spec", timeout=30)
    described = decode_json(now.content, ServerSpec)
    assert described.takes_rows  # scripted servers took no rows then
    assert described.takes_seed
    assert described.gives_log_probs
    before = replace(described, takes_rows=False, takes_seed=False, gives_log_probs=False)
    assert decode_json(text.encode(), ServerSpec) == before
    assert_alike(now.json(), json.loads(text), "")


def test_a_client_of_another_protocol_version_refuses_the_server(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(network_transport, "PROTOCOL_VERSION", 2)
    with serving() as address:
        transport = WebSocketTransport(address)
        with pytest.raises(ServerUnavailable, match="speaks protocol version 1, this client 2"):
            transport.fetch_spec()
        transport.close()


def ask(address: str, transport: str, sent: Sequence[bytes]) -> list[bytes]:
    """Returns a server's answer to each frame, without muxrl's own client."""
    if transport == "http":
        with requests.Session() as session:
            return [
                session.post(f"http://{address}/v1/step", data=frame, timeout=30).content
                for frame in sent
            ]
    received = []
    with connect(f"ws://{address}/v1/ws", compression=None) as socket:
        for frame in sent:
            socket.send(frame)
            answer = socket.recv(timeout=30)
            assert isinstance(answer, bytes)
            received.append(answer)
    return received


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
        assert without_address(decode_batch_reply(frame)) == without_address(
            decode_batch_reply(then)
        )


def without_address(batch: BatchReply) -> list[Any]:
    """Returns the replies; a refusal's message without the server's address at its beginning."""
    for reply in batch.replies:
        if isinstance(reply, Refused):
            reply.message = reply.message.partition(") refused ")[2]
    return list(batch.replies)


def final_returns(run: Path) -> dict[str, list[float]]:
    """Returns the agents' returns in the last evaluation of all learned policies."""
    rows = (run / "metrics" / "evaluation.jsonl").read_text().splitlines()
    finals = [row for row in map(json.loads, rows) if row["is_final"] and not row["replaced"]]
    return dict(finals[-1]["returns"])


@pytest.mark.usefixtures("rllib")
def test_policies_earn_what_they_earned(past: Path) -> None:
    """Policies are greedy, and the episodes are those of the run's last evaluation."""
    run = past / "one"
    assert sorted(load_policy(run)) == ["agent_0", "agent_1", "agent_2"]
    assert cli.main(["evaluate", str(run), "--episodes", "5"]) == 0
    (written,) = (run / "evaluations").iterdir()
    assert_alike(json.loads(written.read_text())["episode_returns"], final_returns(run), "")


def test_exported_networks_give_the_same_outputs(past: Path) -> None:
    found = outputs(past)
    for server_id, then in EXPECTED["outputs"].items():
        np.testing.assert_allclose(found[server_id], then, atol=1e-4, err_msg=server_id)


@pytest.mark.faults
@pytest.mark.timeout(300)
def test_a_run_of_version_0_1_is_resumed(past: Path, host: Host) -> None:
    path = past / "one"
    before = RunResult.read(path).frame()
    launched, _ = host.launch(["launch", "--resume", str(path), "stop.env_steps=440"])
    assert launched.wait(PATIENCE_S) == 0, launched.communicate()
    again = RunResult.read(path)
    assert again.outcome == "done", again.cause
    assert again.env_steps >= 440
    kept = before[before["env_steps"] < 400]
    after = again.frame()
    assert len(kept) > 0
    assert after[after["env_steps"] < 400].equals(kept)
    assert after["env_steps"].max() >= 440
