"""Refusals are all counted, and told in the log without flooding it."""

from __future__ import annotations

import pytest
import requests
from tests.compliance.real_servers import SEES, make_plan

from muxrl.servers.network.front import Refusals
from muxrl.servers.server import PolicyServer


def test_each_code_is_told_at_once_and_then_every_ten_seconds(
    caplog: pytest.LogCaptureFixture,
) -> None:
    refusals = Refusals()
    for tenth in range(120):
        refusals.add(422, f"no action for a_{tenth}", tenth / 10)
    refusals.add(410, "unknown episode", 12.0)
    refusals.add(422, "no action for b", 30.0)
    assert refusals.by_code == {422: 121, 410: 1}
    assert caplog.messages == [
        "422: no action for a_0",
        "422: no action for a_100 (99 more of this code since the last one here)",
        "410: unknown episode",
        "422: no action for b (19 more of this code since the last one here)",
    ]
    assert {record.levelname for record in caplog.records} == {"WARNING"}


@pytest.mark.parametrize("story", ["agent 'a\n2026 ERROR all is lost'", "\x1b[2J", "x" * 10_000])
def test_what_a_client_sends_stays_in_its_line(
    story: str, caplog: pytest.LogCaptureFixture
) -> None:
    Refusals().add(422, story, 0.0)
    (line,) = caplog.messages
    assert line.isprintable()
    assert len(line) < 2_100


def test_a_running_server_tells_its_log_what_its_client_was_told(
    caplog: pytest.LogCaptureFixture,
) -> None:
    server = PolicyServer(make_plan("RANDOM", SEES))
    url = f"http://{server.start()}"
    try:
        answer = requests.post(f"{url}/v1/episodes/never/end", json={"t": 1}, timeout=20)
        told = answer.json()["message"]
        assert requests.post(f"{url}/v1/step", data=b"{", timeout=20).status_code == 400
        end = {"t": 1, "episode_id": "other"}
        other = requests.post(f"{url}/v1/episodes/never/end", json=end, timeout=20)
    finally:
        server.stop()
    assert answer.status_code == 410
    assert other.status_code == 400
    assert "episode_id 'never', the body 'other'" in other.json()["message"]
    assert "refused t=1 of episode never" in told
    refusals = [r.getMessage() for r in caplog.records if r.name == "muxrl.servers.network.front"]
    assert refusals[0] == f"410: {told}"
    assert refusals[1].startswith("400: ")
