"""Who may open the page, and which files it shows."""

from __future__ import annotations

import http.client
import socket
import subprocess
from urllib.parse import quote, urlsplit

import pytest
from tests.orchestrator.records.recorded import whole_run
from tests.orchestrator.watch.conftest import MUXRL, Site


def ask(site: Site, path: str, **headers: str) -> tuple[int, str]:
    connection = http.client.HTTPConnection(urlsplit(site.address).netloc, timeout=20)
    try:
        connection.request("GET", path, headers=headers)
        answer = connection.getresponse()
        # A stream of events does not end: its first line is enough.
        is_stream = answer.getheader("content-type", "").startswith("text/event-stream")
        return answer.status, (answer.readline() if is_stream else answer.read()).decode()
    finally:
        connection.close()


@pytest.mark.parametrize("path", ["/", "/events"])
@pytest.mark.parametrize(
    "headers",
    [
        {"Host": "evil.example"},
        {"Host": "127.0.0.1.evil.example"},
        {"Origin": "http://evil.example"},
        {"Origin": "null"},
        {"Origin": "http://127.0.0.1:1"},
    ],
)
def test_foreign_pages_are_refused(site: Site, path: str, headers: dict[str, str]) -> None:
    status, text = ask(site, path, **headers)
    assert status == 403
    assert "loopback names only" in text
    assert "plan.json" not in text


def test_only_runs_in_the_folder_are_shown(site: Site) -> None:
    run = whole_run(site.root)
    status, text = ask(site, f"/events?of={quote(run.name)}")
    assert status == 200
    assert '"kind":"run"' in text
    (site.root / "out").symlink_to("/")
    name = site.root.name
    for other in ("..", f"../{name}/..", f"../{name}-of-others", "/etc", "out/etc", "\0"):
        status, text = ask(site, f"/events?of={quote(other, safe='')}")
        assert (status, "shows only what lies in its folder" in text) == (404, True), other


def test_a_missing_folder_is_refused_by_name() -> None:
    done = subprocess.run([*MUXRL, "watch", "nowhere"], capture_output=True, text=True, timeout=60)
    assert done.returncode == 2
    assert "there is no folder 'nowhere'" in done.stderr


def test_a_port_that_is_taken_is_named(site: Site) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = str(taken.getsockname()[1])
        command = [*MUXRL, "watch", site.root, "--port", port]
        done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.returncode == 2
    assert f"--port: cannot listen on port {port}" in done.stderr
