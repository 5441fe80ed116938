"""The suite passes clients that keep the rules and finds each error of a script that breaks one."""

from __future__ import annotations

import re
import sys

import pytest

from muxrl.orchestrator.compliance import client_trial
from muxrl.orchestrator.compliance.client_trial import judge_client
from muxrl.orchestrator.compliance.notes import RULES
from muxrl.orchestrator.compliance.verdicts import Verdict
from muxrl.orchestrator.errors import ConfigError

PYTHON_CLIENT = """
import sys
from muxrl.client import EpisodeLost, MultiplexingClient
with MultiplexingClient([sys.argv[1]], transport=sys.argv[2]) as client:
    for _ in range(7):
        try:
            e = client.start_episode()
            for t in range(4):
                seen = {agent: [0.0, t] for agent in ["driver_0", "driver_1"][t > 2:]}
                client.get_action(e, seen)
                client.log_returns(e, {"driver_1": 1.0}, terminations={"driver_0": t >= 2})
            client.end_episode(e, {"driver_1": [1.0, 2.0]}, truncated=True)
        except EpisodeLost:
            pass
"""
# Sends one request after another by hand; `error` names the mistake that the script makes.
ERRING = """
import http.client, json, sys
host, error = sys.argv[1].removeprefix("http://"), sys.argv[2]
connection = http.client.HTTPConnection(host)

def say(item, tries=2):
    for _ in range(tries):
        try:
            connection.request("POST", "/v1/step", json.dumps({"items": [item]}))
            return json.loads(connection.getresponse().read())["replies"][0]
        except (OSError, http.client.HTTPException):
            connection.close()
            if error == "repeats":
                item = item | {"rewards": {"toll": 7.0}}

for n in range(7):
    e = {"episode_id": "same" if error == "starts" else f"e{n}"}
    if say({"type": "start", **e}).get("code") == 503 and error != "503":
        say({"type": "start", **e})
    for t in range(3):
        seen = {"toll": [1.0, 2.0] if error == "values" else [1.0]}
        step = {"type": "step", **e, "t": t + (error == "order" and t), "observations": seen}
        if error == "messages":
            step["t"] = str(t)
        if t == 2:
            step["observations"] = {"driver_0": [0, 0]} | (seen if error == "done" else {})
            step["terminations"] = {"toll": True}
            if error == "done":
                say(step | {"observations": {"driver_0": [0, 0]}})
                step |= {"t": 3, "terminations": {}}
        if say(step).get("code") == 410 and error != "410":
            break
    else:
        end = {"type": "end", **e, "t": 3, "is_truncated": True}
        if error != "finals":
            end["final_observations"] = {"driver_0": [1, 1]}
        if error != "closed":
            say(end)
sys.exit(error == "exit")
"""


def outcomes(verdicts: list[Verdict]) -> dict[str, str]:
    return dict(zip(RULES, (verdict.outcome for verdict in verdicts), strict=True))


@pytest.mark.parametrize("transport", ["websocket", "http"])
def test_the_python_client_keeps_all_rules(transport: str) -> None:
    command = [sys.executable, "-c", PYTHON_CLIENT, "{gateway}", transport]
    assert set(outcomes(judge_client(command)).values()) == {"ok"}


def test_the_script_without_an_error_keeps_all_rules() -> None:
    assert set(outcomes(judge_client(erring("nothing"))).values()) == {"ok"}


def erring(error: str) -> list[str]:
    return [sys.executable, "-c", ERRING, "{gateway}", error]


@pytest.mark.parametrize("agents_return", [False, True])
def test_agents_come_back_if_the_config_says_so(agents_return: bool) -> None:
    program = (
        PYTHON_CLIENT.replace("[t > 2:]", "[t == 2:]")
        .replace('"driver_0": t >= 2', '"driver_0": t == 1')
        .replace("end_episode(e, {", 'end_episode(e, {"driver_0": [1.0, 2.0], ')
    )
    command = [sys.executable, "-c", program, "{gateway}", "http"]
    found = outcomes(judge_client(command, agents_return=agents_return))
    assert (found["done"] == "ok") is agents_return
    assert (set(found.values()) == {"ok"}) is agents_return


@pytest.mark.parametrize("rule", [rule for rule in RULES if rule != "turns"])
def test_each_error_is_found(rule: str) -> None:
    verdicts = judge_client(erring(rule))
    assert outcomes(verdicts)[rule] == "broken", verdicts
    story = next(v.detail for v, r in zip(verdicts, RULES, strict=True) if r == rule)
    assert re.match(r"expected .+; came .+", story, re.DOTALL)


def test_a_frame_that_is_sent_before_the_last_answer_is_found() -> None:
    program = """
import json, sys
from websockets.sync.client import connect
with connect(sys.argv[1].replace("http", "ws") + "/v1/ws", proxy=None) as websocket:
    for n in range(3):
        websocket.send(json.dumps({"items": [{"type": "start", "episode_id": str(n)}]}))
        websocket.recv()
    for t in range(3):
        step = {"type": "step", "episode_id": "2", "t": t, "observations": {"toll": [1]}}
        websocket.send(json.dumps({"items": [step]}))
    for t in range(3):
        websocket.recv()
"""
    verdicts = judge_client([sys.executable, "-c", program, "{gateway}"])
    assert outcomes(verdicts)["turns"] == "broken"
    assert outcomes(verdicts)["closed"] == "broken"


def test_a_program_that_does_not_end_is_stopped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client_trial, "_OWN_END_S", 1.0)
    program = PYTHON_CLIENT + "\nimport time; time.sleep(600)"
    verdicts = judge_client([sys.executable, "-c", program, "{gateway}", "http"])
    assert outcomes(verdicts) == {rule: "skipped" if rule == "exit" else "ok" for rule in RULES}
    verdicts = judge_client([sys.executable, "-c", "import time; time.sleep(600)"], timeout_s=0.5)
    assert outcomes(verdicts)["exit"] == "broken"


def test_a_missing_program_is_named() -> None:
    with pytest.raises(ConfigError, match="'no-such-program' cannot be started"):
        judge_client(["no-such-program"])
