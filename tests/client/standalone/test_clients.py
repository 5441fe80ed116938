"""Every standalone client plays the same episodes against a real server, and sees the same.

Its program (`scripted_episodes.py` or a translation of it) runs in a process of its own. On the way
connections are cut, answers are lost, the server is out of reach, and the server learns.
"""

from __future__ import annotations

import ast
import json
import re
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.client.standalone.rehearsal import act, rehearsal
from tests.compliance.gateways import gateway_to
from tests.compliance.links import Link
from tests.compliance.real_servers import TOKEN, make_plan, running

from muxrl.client.standalone.muxrl_client import PolicyClient, ServerUnavailable
from muxrl.orchestrator.compliance.client_trial import judge_client
from muxrl.orchestrator.config import load_config, prepare

ROOT = Path(__file__).parents[3]
CLIENTS = ROOT / "client" / "standalone"
HERE = Path(__file__).parent
PAGE = (ROOT / "docs" / "languages.md").read_text()
MORNINGS = ROOT / "experiments" / "examples" / "mornings"
ON_THE_PAGE = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
LOOPS = {
    "loop.py": ON_THE_PAGE[0],
    "Mornings.java": (MORNINGS / "Mornings.java").read_text(),
    "mornings.cpp": (MORNINGS / "mornings.cpp").read_text(),
}
"""By file name: the loops that the page shows."""
LANGUAGES = ["python", "java", "cpp"]

Seen = list[dict[str, Any]]
Command = tuple[str | Path, ...]


def run(*command: str | Path) -> str:
    """Runs a command; returns what it prints, or fails with its errors."""
    done = subprocess.run(command, capture_output=True, text=True, timeout=200, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout


def compiler(name: str) -> str:
    """Returns a compiler's path; skips the test if it is not installed."""
    path = shutil.which(name)
    if path is None:
        pytest.skip(f"there is no {name} here")
    return path


def python(folder: Path, program: str) -> Command:
    """Copies the client beside the program; returns the command that runs it without
    site-packages."""
    for source in (CLIENTS / "muxrl_client.py", HERE / "scripted_episodes.py"):
        shutil.copy(source, folder)
    return sys.executable, "-S", "-E", folder / program


def java(folder: Path) -> Callable[[str], Command]:
    """Compiles the client and all programs; returns a function from a program to its command."""
    sources = [*CLIENTS.glob("*.java"), *HERE.glob("*.java"), folder / "Mornings.java"]
    flags = ["--release", "11", "-encoding", "UTF-8", "-Xlint:all", "-Werror"]
    run(compiler("javac"), *flags, "-d", folder, *sources)
    return lambda main: (compiler("java"), "-XX:TieredStopAtLevel=1", "-cp", folder, main)


def cpp(folder: Path, program: Path) -> Command:
    """Compiles the client and a program; returns the command that runs it."""
    flags = ["-std=c++17", "-Wall", "-Wextra", "-Wpedantic", "-Werror", "-I", CLIENTS]
    run(compiler("g++"), *flags, program, "-o", folder / program.stem)
    return (folder / program.stem,)


@pytest.fixture(scope="module")
def door() -> Iterator[Link]:
    """A link at the address where the page's loops look for a server."""
    with Link("127.0.0.1:9") as link:
        yield link


@pytest.fixture(scope="module")
def pool() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(10) as pool:
        yield pool


Commands = dict[tuple[str, str], Callable[[], Command]]


@pytest.fixture(scope="module")
def commands(
    pool: ThreadPoolExecutor, door: Link, tmp_path_factory: pytest.TempPathFactory
) -> Commands:
    """By language and program: a function that returns the command, or skips without its compiler.

    The page's loops connect to `door`.
    """
    folder = tmp_path_factory.mktemp("programs")
    for name, code in LOOPS.items():
        assert code.count("127.0.0.1:9900") == 1
        (folder / name).write_text(code.replace("127.0.0.1:9900", door.address))
    in_java = pool.submit(java, folder)
    episodes = pool.submit(cpp, folder, HERE / "scripted_episodes.cpp")
    loop = pool.submit(cpp, folder, folder / "mornings.cpp")
    # Compile first: the episodes are played against time limits, and need the cores.
    wait([in_java, episodes, loop])
    return {
        ("python", "episodes"): lambda: python(folder, "scripted_episodes.py"),
        ("python", "loop"): lambda: python(folder, "loop.py"),
        ("java", "episodes"): lambda: in_java.result()("muxrl.ScriptedEpisodes"),
        ("java", "shared"): lambda: in_java.result()("Shared"),
        ("java", "loop"): lambda: in_java.result()("Mornings"),
        ("cpp", "episodes"): episodes.result,
        ("cpp", "shared"): episodes.result,
        ("cpp", "loop"): loop.result,
    }


def play(command: Callable[[], Command]) -> Seen:
    """Runs a client's program; returns what it printed, and checks the server's counts."""
    built = command()
    with rehearsal() as (server, link):
        output = run(*built, link.address, TOKEN)
        assert link.num_swallowed == 1
        assert link.num_opened < 25, "connections are kept: there are 70 requests"
        counts = server.policies.store.counts
        # Counted are the two of four played episodes that are for training, and "outlast", with six
        # steps each, and "after it", with none.
        assert (counts.num_episodes, counts.num_env_steps) == (4, 18)
        assert server.status().num_open_episodes == 2, "those of ServerLost, ServerUnavailable"
        # Of the calls in `fail`, and one start while the server was stopping.
        assert server.status().num_refused == 6 + 1
    return [json.loads(line) for line in output.splitlines()]


@pytest.fixture(scope="module")
def plays(pool: ThreadPoolExecutor, commands: Commands) -> dict[str, Future[Seen]]:
    """By language: what the client saw. All play at the same time, since they mostly wait."""
    return {one: pool.submit(play, commands[one, "episodes"]) for one in LANGUAGES}


@pytest.fixture
def seen_by_python(plays: dict[str, Future[Seen]]) -> Seen:
    return plays["python"].result()


# --- Python ---------------------------------------------------------------------------------


def test_the_python_client_needs_python_3_8_alone() -> None:
    source = (CLIENTS / "muxrl_client.py").read_text()
    tree = ast.parse(source, feature_version=(3, 8))
    nodes = list(ast.walk(tree))
    imported = {
        alias.name for node in nodes if isinstance(node, ast.Import) for alias in node.names
    }
    imported |= {str(node.module) for node in nodes if isinstance(node, ast.ImportFrom)}
    assert imported == {
        "__future__", "collections.abc", "copy", "http.client", "json", "math", "os", "socket",
        "threading", "time", "typing", "urllib.parse", "uuid",
    }  # fmt: skip


def test_actions_follow_from_exactly_what_was_sent(seen_by_python: Seen) -> None:
    steps = [seen for seen in seen_by_python if "t" in seen]
    assert len(steps) == 4 * 5
    for step in steps:
        t, episode = step["t"], int(step["episode"][-1])
        b = np.array([[t / 7, -episode / 3], [0.5, -2.5e-7 * t]], np.float32)
        a = np.array([0.1 * t, episode / 8, 1e-3], np.float32)
        calls = {"a": t, "b": t, "c": (t - 1) // 2}
        sent = {"a": {"observation": a, "action_mask": [1, 0, 1, t % 2]}, "b": b}
        sent["c"] = (t + episode) % 5
        expected = {agent: act(agent, sent[agent], calls[agent]) for agent in step["actions"]}
        assert step["actions"].keys() == {"b", *("a" * (t < 4)), *("c" * (t % 2))}
        for agent, action in step["actions"].items():
            assert np.array_equal(np.array(action, np.float32), expected[agent]), step


def test_ends_are_answered_with_the_servers_counts(seen_by_python: Seen) -> None:
    ends = [seen for seen in seen_by_python if "num_steps" in seen]
    assert [end["num_steps"] for end in ends] == [6, 6, 6, 6, 6, 0]
    for end in ends[:4]:
        assert end["returns"] == pytest.approx({"a": 1.5, "b": -7.5, "c": 0.0})
    assert ends[4]["returns"] == {"b": 6.0}


def test_troubles_are_outlasted(seen_by_python: Seen) -> None:
    seen = [seen for seen in seen_by_python if "trouble" in seen]
    assert [one["trouble"] for one in seen] == ["half", "cut", "swallow", "outage", "none", "hold"]
    for t, one in enumerate(seen):
        assert one["actions"] == {"b": [(100 + t) / 2 + t, t]}


def test_errors_have_names_that_say_what_to_do(seen_by_python: Seen) -> None:
    errors = [seen for seen in seen_by_python if "error" in seen]
    assert [(error["error"], error.get("code")) for error in errors] == [
        ("RefusedByServer", 422),
        ("EpisodeMisuse", None),  # the episode is over
        ("RefusedByServer", 422),
        ("EpisodeMisuse", None),  # the episode is already open
        ("EpisodeMisuse", None),  # one agent's logged action is missing
        ("RefusedByServer", 422),  # NaN
        ("RefusedByServer", 413),
        ("RefusedByServer", 400),
        ("EpisodeLost", None),
        ("ServerUnavailable", None),  # a wrong token
        ("ServerUnavailable", None),  # an update that takes longer than the client waits
        ("ServerLost", None),
    ]
    assert all(error["has_message"] for error in errors)
    first = errors[0]
    assert (first["agent_id"], first["expected"], first["got"]) == (
        "b", "Box(2, 2) float32", "shape (3,)"
    )  # fmt: skip


@pytest.mark.parametrize("address", ["", "localhost", "ftp://localhost:1", "localhost:x"])
def test_a_text_that_is_no_address_is_refused(address: str) -> None:
    with pytest.raises(ValueError, match=r"HOST:PORT|[Pp]ort"):
        PolicyClient(address)


@pytest.mark.parametrize(
    ("body", "story"),
    [
        (b"<html>hello</html>", "answered 200 to GET /v1/spec: .*<html>"),
        (b'{"protocol_version": 2}', "speaks protocol version 2, this client 1"),
    ],
)
def test_an_address_of_something_else_than_a_muxrl_server_is_named(
    slow_once: str, body: bytes, story: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(SlowOnce, "spec", body)
    with pytest.raises(ServerUnavailable, match=f"server {slow_once} {story}"):
        PolicyClient(slow_once)


# --- other languages ------------------------------------------------------------------------


@pytest.mark.parametrize("language", ["java", "cpp"])
def test_another_language_sees_the_same(
    plays: dict[str, Future[Seen]], seen_by_python: Seen, language: str
) -> None:
    assert plays[language].result() == seen_by_python


# --- the page's loops -----------------------------------------------------------------------


@pytest.mark.parametrize("language", LANGUAGES)
def test_the_loops_run_as_they_stand_and_keep_all_rules(
    language: str, commands: Commands, door: Link, tmp_path: Path
) -> None:
    assert len(ON_THE_PAGE) == 1
    command = commands[language, "loop"]()
    (config,) = re.findall(r"```yaml\n(.*?)```", PAGE, re.DOTALL)
    (tmp_path / "mornings.yaml").write_text(config)
    agents = prepare(load_config(tmp_path / "mornings.yaml")).servers["a2c"].agents
    assert agents.keys() == {"driver_0", "driver_1"}
    with (
        running(replace(make_plan("RANDOM", {}), agents=agents)) as server,
        gateway_to(server, num_episodes=10) as gateway,
    ):
        door.target = gateway.address
        output = run(*command)
        episodes = gateway.gateway.episodes
        assert episodes.counts.num_episodes >= 10
        # Of two drivers on three roads each is paid -1 a morning alone on its road, -2 with the
        # other.
        returns = [sum(episode.returns.values()) / 2 for episode in episodes.ended]
        assert all(-40 <= each <= -20 for each in returns)
    assert len(output.splitlines()) == episodes.counts.num_episodes
    assert "20" in output
    port = int(gateway.address.rpartition(":")[2])
    verdicts = judge_client([str(part) for part in command], port=port)
    assert not [verdict for verdict in verdicts if verdict.outcome == "broken"], verdicts
    skipped = {verdict.rule: verdict.detail for verdict in verdicts if verdict.outcome == "skipped"}
    done = "no observation is sent for an agent that is done"
    assert skipped == {done: "no agent was done before the end of its episode"}


# --- one client for two ---------------------------------------------------------------------


class SlowOnce(BaseHTTPRequestHandler):
    """A server that answers the first starts of episodes late."""

    protocol_version = "HTTP/1.1"
    spec = b'{"protocol_version": 1}'
    delays_s: list[float]

    def do_GET(self) -> None:
        self._answer(self.spec)

    def do_POST(self) -> None:
        (item,) = json.loads(self.rfile.read(int(self.headers["Content-Length"])))["items"]
        if item["type"] == "start" and self.delays_s:
            time.sleep(self.delays_s.pop())
        kind = {"start": "started", "abort": "aborted"}[item["type"]]
        replies = [{"type": kind, "episode_id": item["episode_id"]}]
        self._answer(json.dumps({"replies": replies}).encode())

    def _answer(self, body: bytes) -> None:
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        """Logs nothing."""


@pytest.fixture
def slow_once() -> Iterator[str]:
    with ThreadingHTTPServer(("127.0.0.1", 0), SlowOnce) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"127.0.0.1:{server.server_port}"
        server.shutdown()


@pytest.mark.parametrize("language", ["java", "cpp"])
def test_a_second_thread_and_a_fork_are_refused(
    slow_once: str, commands: Commands, language: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    command = commands[language, "shared"]()
    # Refused while the program's other thread, which starts 0.5 s later, waits for an answer.
    monkeypatch.setattr(SlowOnce, "delays_s", [1.5], raising=False)
    said = run(*command, slow_once).splitlines()
    if language == "java":
        refusal = (
            "thread 'main' uses this client while thread 'waiting' waits for an answer; make a"
        )
        assert said == [f"{refusal} client in each thread", "started", "started"]
        return
    assert said[0].startswith("a thread uses this client while another one waits for an answer")
    assert said[1:3] == ["started", "started"]
    (forked,) = [line for line in said[3:] if line != "started"]
    assert "a fork of it, uses its connection; make a client in each process" in forked
    assert said[3:].count("started") == 1
