"""The command: a table, an exit code, and what cannot be tried."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.compliance.real_servers import SEES, TOKEN, make_plan
from tests.orchestrator.compliance.test_client_trial import erring

from muxrl.orchestrator.cli import main
from muxrl.servers.server import PolicyServer


def test_a_server_with_a_token(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    token = tmp_path / "token"
    token.write_text(TOKEN + "\n")
    server = PolicyServer(make_plan("RANDOM", {"a": SEES["a"]}, token=TOKEN))
    server.start()
    try:
        assert main(["compliance", "--server", server.address, "--token-file", str(token)]) == 0
        assert main(["compliance", "--server", server.address]) == 1
    finally:
        assert server.stop()
    told = capsys.readouterr().out
    assert "rules: " in told
    assert " 0 broken, " in told
    assert "expected 200; came 401" in told


def test_a_client_of_a_config_s_simulation(capsys: pytest.CaptureFixture[str]) -> None:
    program = erring("finals")
    assert main(["compliance", "--client", "--", *program]) == 1
    told = capsys.readouterr().out
    assert "expected final_observations['driver_0']; came none" in told
    assert main(["compliance", "--client", "--config", "twenty_lines", "--", *program]) == 1
    told = " ".join(capsys.readouterr().out.split())  # without the ends of its lines
    assert "there is no agent 'toll' here" in told


@pytest.mark.parametrize(
    ("arguments", "story"),
    [
        (["--client"], "--client needs a program"),
        (["--server", "127.0.0.1:1", "--", "program"], "--server has none"),
        (["--server", "nowhere"], "HOST:PORT"),
        (["--client", "--", "no-such-program"], "'no-such-program' cannot be started"),
        (["--server", "127.0.0.1:1", "--token-file", "/no/such/file"], "No such file"),
    ],
)
def test_what_cannot_be_tried_is_refused(
    arguments: list[str], story: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["compliance", *arguments]) == 2
    assert story in capsys.readouterr().err
