"""All refusals are counted, and logged without flooding the log."""

from __future__ import annotations

import functools
from typing import Any

import pytest
import requests
from tests.compliance.real_servers import SEES, TOKEN, make_plan, running
from tests.compliance.right_client import Echo

from muxrl.servers.network.front import Refusals
from muxrl.servers.trainers.interface import Rows


def test_each_code_is_logged_at_once_and_then_every_ten_seconds(
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
        "422: no action for a_100 (99 more refusals with this code since the last one logged)",
        "410: unknown episode",
        "422: no action for b (19 more refusals with this code since the last one logged)",
    ]
    assert {record.levelname for record in caplog.records} == {"WARNING"}


def test_an_error_of_the_server_itself_has_its_traceback_as_often(
    caplog: pytest.LogCaptureFixture,
) -> None:
    refusals = Refusals()
    for tenth in range(120):
        refusals.add(500, "an error in the server itself", tenth / 10, KeyError("what it lacks"))
    assert [(r.levelname, bool(r.exc_info)) for r in caplog.records] == [("ERROR", True)] * 2
    assert caplog.text.count("KeyError: 'what it lacks'") == 2


@pytest.mark.parametrize("story", ["agent 'a\n2026 ERROR all is lost'", "\x1b[2J", "x" * 10_000])
def test_text_from_a_client_stays_in_one_line_of_the_log(
    story: str, caplog: pytest.LogCaptureFixture
) -> None:
    Refusals().add(422, story, 0.0)
    (line,) = caplog.messages
    assert line.isprintable()
    assert len(line) < 2_100


def test_a_running_server_logs_what_it_answered_its_client(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with running(make_plan("RANDOM", SEES)) as server:
        url = f"http://{server.address}"
        answer = requests.post(f"{url}/v1/episodes/never/end", json={"t": 1}, timeout=20)
        told = answer.json()["message"]
        assert requests.post(f"{url}/v1/step", data=b"{", timeout=20).status_code == 400
        end = {"t": 1, "episode_id": "other"}
        other = requests.post(f"{url}/v1/episodes/never/end", json=end, timeout=20)
    assert answer.status_code == 410
    assert other.status_code == 400
    assert "episode_id 'never', the body 'other'" in other.json()["message"]
    assert "refused t=1 of episode never" in told
    refusals = [r.getMessage() for r in caplog.records if r.name == "muxrl.servers.network.front"]
    assert refusals[0] == f"410: {told}"
    assert refusals[1].startswith("400: ")


BEARER = {"Authorization": f"Bearer {TOKEN}"}
post = functools.partial(requests.post, headers=BEARER, timeout=9)


class Sulking(Echo):
    """A trainer that raises instead of acting while `is_sulking`."""

    is_sulking = False

    def act(self, rows: Rows) -> Any:
        if self.is_sulking:
            raise ArithmeticError("no such luck")
        return super().act(rows)


def test_health_fails_while_acting_fails(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    plan = make_plan(f"{__name__}:Sulking", {"a": SEES["a"]}, server_id="s", token=TOKEN)

    def health() -> tuple[int, str]:
        answer = requests.get(f"{url}/health", headers=BEARER, timeout=9)
        return answer.status_code, answer.json()["problem"]

    def step(t: int) -> str:
        item = {"type": "step", "episode_id": "e", "t": t, "observations": {"a": [0.5, 0.5]}}
        return str(post(f"{url}/step", json={"items": [item]}).json()["replies"][0])

    with running(plan) as server:
        url = f"http://{server.address}/v1"
        assert post(f"{url}/episodes", json={"episode_id": "e"}).ok
        assert health() == (200, "")
        monkeypatch.setattr(Sulking, "is_sulking", True)
        for _ in range(5):
            assert "ArithmeticError: no such luck" in step(0)
        code, problem = health()
        assert (code, problem.endswith("ArithmeticError: no such luck")) == (503, True)
        monkeypatch.setattr(Sulking, "is_sulking", False)
        assert "actions" in step(0)
        assert health() == (200, "")
        monkeypatch.setattr(server.policies.store, "problem", "idle episodes could not be closed")
        assert health() == (503, "idle episodes could not be closed")
    assert len([record for record in caplog.records if record.exc_info]) == 1


def test_a_request_that_raises_outside_of_any_item_is_answered() -> None:
    """A `StopIteration` is answered, too, although no future can hold one."""
    with running(make_plan("RANDOM", SEES, token=TOKEN)) as server:
        server.answer_run({"report": lambda asked: next(iter(())), "finish": lambda asked: 1 / 0})
        for name, error in (("report", "StopIteration"), ("finish", "division by zero")):
            asked = {"timeout_s": 1.0} if name == "finish" else {}
            answer = post(f"http://{server.address}/v1/run/{name}", json=asked)
            assert answer.status_code == 500
            assert error in answer.json()["message"]
