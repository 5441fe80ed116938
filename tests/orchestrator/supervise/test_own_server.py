"""A server in a process of its own: its requests, and the errors for one that lacks something."""

from __future__ import annotations

import dataclasses
import json
import os
import signal
import sys
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import msgspec
import pytest
import requests
from tests.compliance.real_servers import wait_until
from tests.servers.scripted_store import ACTS, SEES, make_plan, seen
from tests.servers.trainers.brought import Counting

from muxrl.client import MultiplexingClient
from muxrl.orchestrator.errors import ConfigError, ProcessEnded, RunFailed
from muxrl.orchestrator.supervise.own_server import OwnServer, ask_own_servers, with_token
from muxrl.orchestrator.supervise.server_process import COSTS
from muxrl.orchestrator.sweeps import plan as sweep_plans
from muxrl.orchestrator.sweeps.load import load_sweep
from muxrl.protocol.codec import encode_json
from muxrl.servers.checkpoints.checkpoint import ABOUT_FILE
from muxrl.servers.config import EXTERNAL, ServerPlan
from muxrl.servers.fixed_policies.loaded_policies import load_checkpoint
from muxrl.servers.serving import Serving

TOKEN = "a-token-of-the-tests"
PATIENCE_S = 20.0
Foreign = tuple[str, dict[str, Any]]


@pytest.fixture
def serving() -> Iterator[Serving]:
    one = Serving(Counting, "127.0.0.1", 0, TOKEN, lambda: None)
    yield one
    one.stop()


def plan_at(address: str, **fields: Any) -> ServerPlan:
    plan = make_plan("ab")
    known = {"algorithm": EXTERNAL, "address": address, "token": TOKEN, "while_learning": "auto"}
    return dataclasses.replace(plan, **known | fields)


def ask(serving: Serving, path: str, asked: dict[str, Any]) -> requests.Response:
    url, bearer = f"http://{serving.address}/v1/{path}", {"Authorization": f"Bearer {TOKEN}"}
    return requests.post(url, json=asked, headers=bearer, timeout=PATIENCE_S)


def play(address: str, num_steps: int = 4) -> dict[str, Any]:
    """Plays a training episode; returns the actions of its last step."""
    with MultiplexingClient([address], token=TOKEN) as client:
        episode = client.start_episode()
        for t in range(num_steps):
            actions = client.get_action(episode, {a: seen(a, t) for a in "ab"})
            client.log_returns(episode, dict.fromkeys("ab", 1.0))
        client.end_episode(episode, {a: seen(a, num_steps) for a in "ab"})
    return actions


def wait_for_iteration(server: OwnServer, iteration: int) -> None:
    wait_until(lambda: server.status().iteration >= iteration)


NO_CHOICE = {
    "policy_id": "default",
    "observation_space": {"type": "box", "shape": [1]},
    "action_space": {"type": "discrete", "n": 0},
}


@pytest.mark.parametrize(
    ("name", "asked", "code", "story"),
    [
        ("check", {"plan": {"agents": {}}}, 200, "server 'learner' has no agents"),
        ("begin", {"plan": {"agents": {}}}, 422, "server 'learner' has no agents"),
        ("begin", {"plan": {"agents": {"a": NO_CHOICE}}}, 422, "n (counts) have to be positive"),
        ("check", {"plan": {"agents": {"a": NO_CHOICE}}}, 200, "n (counts) have to be positive"),
        ("begin", {"plan": {"limits": {"max_episodes": 2**64}}}, 422, "out of range"),
        ("finish", {"timeout_s": 1e308}, 400, "`float` <= 1000000000"),
        ("save", {"path": "/x", "timeout_s": -1}, 400, "`float` >= 0"),
        ("save", {"path": "/\0", "timeout_s": 1}, 422, "absolute path"),
        ("save", {"path": ".", "timeout_s": 1}, 422, "absolute path, not '.'"),
    ],
)
def test_invalid_requests_of_a_run_are_refused(
    serving: Serving, name: str, asked: dict[str, Any], code: int, story: str
) -> None:
    plan = msgspec.to_builtins(dataclasses.replace(plan_at(serving.address), server_id="learner"))
    if name in ("finish", "save"):
        assert ask(serving, "run/begin", {"plan": plan}).ok
    if "plan" in asked:
        asked = {"plan": plan | asked["plan"]}
    answer = ask(serving, f"run/{name}", asked)
    assert answer.status_code == code
    assert story in answer.text


def test_a_run_begins_reports_saves_and_goes_on_elsewhere(serving: Serving, tmp_path: Path) -> None:
    server = OwnServer(plan_at(serving.address, settings={"rate": 0.5}, keeps_untrained=True))
    started = server.start()
    assert started.offers == set(COSTS)
    play(serving.address)
    wait_for_iteration(server, 1)
    report = server.report()
    assert [record["iteration"] for record in report.records] == [1]
    assert report.records[0]["learner"]["default"] == {"loss": 1.0, "rows": 8.0}
    assert server.report(taken=1).records == []
    saved, _ = server.save(tmp_path / "draft", PATIENCE_S)
    assert (saved.iteration, saved.weights_seq_no) == (1, 1)
    assert ABOUT_FILE in saved.files
    about = json.loads((tmp_path / "draft" / ABOUT_FILE).read_text())
    assert about["settings"] == {"rate": 0.5}
    assert TOKEN not in str(about)
    server.finish_training(PATIENCE_S)
    # Its class can be imported here, too.
    assert about["trainer"] == "tests.servers.trainers.brought:Counting"
    assert load_checkpoint(tmp_path / "draft")["a"](seen("a", 0)) == 1

    # The same process serves the next run: from the checkpoint, then from scratch.
    again = OwnServer(plan_at(serving.address, resume_from=str(tmp_path / "draft")))
    assert "untrained" not in again.start().offers
    assert again.status().iteration == 1
    assert play(serving.address, num_steps=1) == {"a": 1, "b": 1}
    fresh = OwnServer(plan_at(serving.address))
    fresh.start()
    assert fresh.status().iteration == 0


def test_a_server_is_asked_before_a_run_whether_it_would_serve_the_plan(serving: Serving) -> None:
    def check(*given: dict[str, Any]) -> Any:
        return ask_own_servers([{"s": plan_at(serving.address, **fields)} for fields in given])

    right = {"settings": {"rate": 0.5}}
    assert check(right) == ({}, [])
    for fields, sentence in (
        ({"settings": {"rat": 0.5}}, "brought:Counting has no setting 'rat'; did you mean 'rate'?"),
        ({"callbacks": "nowhere:Diary"}, "'nowhere:Diary' cannot be imported"),
        ({"groups": {"team": ("a", "b")}}, "has groups (team), but tests.servers.trainers.brought"),
    ):
        ((problem, where),) = check(right, fields, right, fields)[0].items()
        assert sentence in problem
        assert where == [1, 3]
    running = OwnServer(plan_at(serving.address))
    running.start()
    play(serving.address)
    wait_for_iteration(running, 1)
    assert check({}) == ({}, [])
    assert running.status().iteration == 1  # the question has not disturbed the running server
    serving.stop()
    problems, (unasked,) = check({})
    assert not problems
    assert unasked.endswith("gave no answer; the check is repeated when the run begins")


def test_a_sweep_s_check_asks_the_server_for_each_setting(serving: Serving, tmp_path: Path) -> None:
    path = tmp_path / "sweep.yaml"
    server = {"address": serving.address, "token": TOKEN, "agents": ["*"]}
    values = {"servers.team.settings.rate": {"grid": [0.1, "big", 0.2]}}
    env = "muxrl.experiments.simulations.matrix_game:MatrixGame"
    experiment = {"simulation": {"env": env}, "servers": {"team": server}}
    experiment["stop"] = {"env_steps": 10}
    path.write_text(json.dumps({"experiment": experiment, "parameters": values}))
    config = load_sweep(str(path), [])
    assert len(sweep_plans.make_plan(config).trials) == 3
    with pytest.raises(ConfigError) as refusal:
        sweep_plans.make_plan(config, is_check=True)
    assert "'rate' must be a number, got the text 'big' (in 1 of 3 settings" in str(refusal.value)


def test_a_checkpoint_replaces_nothing_but_a_checkpoint(serving: Serving, tmp_path: Path) -> None:
    server = OwnServer(plan_at(serving.address))
    server.start()
    mine = tmp_path / "mine"
    mine.mkdir()
    (mine / "thesis.tex").write_text("years")
    with pytest.raises(RunFailed, match="exists and is not a checkpoint"):
        server.save(mine, PATIENCE_S)
    assert [path.name for path in mine.iterdir()] == ["thesis.tex"]
    server.save(tmp_path / "fine", PATIENCE_S)
    server.save(tmp_path / "fine", PATIENCE_S)


def test_plans_that_cannot_be_served_are_refused_with_the_server_s_reason(serving: Serving) -> None:
    for fields, sentence in (
        ({"settings": {"rat": 0.5}}, "Counting has no setting 'rat'; did you mean 'rate'?"),
        ({"resume_from": "/nowhere"}, "server 'scripted' cannot resume from '/nowhere'"),
        ({"token": "some-other-token"}, "another one came"),
    ):
        with pytest.raises(RunFailed) as refusal:
            OwnServer(plan_at(serving.address, **fields)).start()
        assert sentence in str(refusal.value)
    answer = ask(serving, "episodes", {})
    assert answer.status_code == 503
    assert "waits for a run to begin" in answer.json()["message"]
    OwnServer(plan_at(serving.address)).start()  # the process still waits for a run


# --- servers of other people ---------------------------------------------------------------

AGENT = {"policy_id": "p", "observation_space": SEES, "action_space": ACTS}


@pytest.fixture
def foreign() -> Iterator[Foreign]:
    """Gives the address and the spec of a server that answers only its spec and its status."""
    spec: dict[str, Any] = {
        "protocol_version": 1,
        "server_id": "scripted",
        "algorithm": "THEIRS",
        "agents": {"a": AGENT, "b": AGENT},
        "something_newer": 1,
    }

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            status = {"server_id": "scripted", "phase": "ready", "iteration": 7}
            body = encode_json(spec if self.path == "/v1/spec" else status)
            self.send_response(200)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: Any) -> None:
            """Logs nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield "{}:{}".format(*server.server_address), spec
    server.shutdown()
    thread.join()
    server.server_close()


def test_a_server_that_offers_nothing_is_asked_for_its_status_alone(
    foreign: Foreign, tmp_path: Path
) -> None:
    server = OwnServer(plan_at(foreign[0]))
    assert server.start().offers == set()
    report = server.report()
    assert (report.status.iteration, report.records) == (7, [])
    assert server.save(tmp_path / "draft", 1.0)[0].files == {}
    assert server.finish_training(1.0).status.iteration == 7
    server.abort_episodes("x")
    server.set_paused(True)


@pytest.mark.parametrize(
    ("changes", "agents", "story"),
    [
        (
            {"protocol_version": 0, "agents": "in another form"},
            "ab",
            "speaks version 0 of the protocol, this muxrl version 1; install the same version",
        ),
        ({"server_id": "mine"}, "ab", r": its id is 'mine'; name it servers\.mine in the config"),
        ({}, "abc", ": expected agents a, b, c; it does not serve c"),
        (
            {"agents": {"a": AGENT, "b": {**AGENT, "observation_space": ACTS}}},
            "ab",
            ": the observation space of agent 'b' is Box.*the server has Discrete",
        ),
    ],
)
def test_a_server_that_does_not_match_the_config_is_refused(
    foreign: Foreign, changes: dict[str, Any], agents: str, story: str
) -> None:
    address, spec = foreign
    spec |= changes
    with pytest.raises(RunFailed, match=f"^server 'scripted' at {address} ?{story}"):
        OwnServer(dataclasses.replace(plan_at(address), agents=make_plan(agents).agents)).start()


# --- commands --------------------------------------------------------------------------------


def started_by(*command: str) -> OwnServer:
    return OwnServer(with_token(plan_at("", command=[sys.executable, *command], token="")))


def test_a_command_that_was_killed_is_noticed() -> None:
    server = started_by("-m", "muxrl.serving", "tests.servers.trainers.brought:Counting")
    try:
        server.start()
        assert server.status().phase == "ready"
        assert server._program is not None
        os.kill(server._program._popen.pid, signal.SIGKILL)
        with pytest.raises(ProcessEnded) as lost:
            server.report()
        assert str(lost.value) == "servers.scripted.command has ended by SIGKILL"
    finally:
        server.stop()


def test_a_command_is_started_for_a_question_and_ended() -> None:
    server = started_by("-m", "muxrl.serving", "tests.servers.trainers.brought:FailsToBegin")
    (problem,) = server.check([server.plan])
    assert "cannot be made for policy 'default': RuntimeError: no such device" in problem
    with pytest.raises(ProcessEnded, match=r"servers\.scripted\.command has ended"):
        server.status()


def test_a_command_that_ends_at_once_is_not_waited_for() -> None:
    began = time.monotonic()
    with pytest.raises(RunFailed, match=r"servers\.scripted\.command has ended with exit code 3"):
        started_by("-c", "import sys; sys.exit(3)").start()
    assert time.monotonic() - began < PATIENCE_S


def test_a_program_that_does_not_exist_is_named() -> None:
    plan = with_token(plan_at("", command=["no-such-program"]))
    with pytest.raises(RunFailed, match="no-such-program cannot be started: No such file"):
        OwnServer(plan).start()
