"""The command: a table, an exit code, and what cannot be tried."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.compliance.real_servers import SEES, TOKEN, make_plan, running
from tests.orchestrator.commanded import Muxrl
from tests.orchestrator.compliance.test_client_trial import erring


def test_a_server_with_a_token(tmp_path: Path, muxrl: Muxrl) -> None:
    token = tmp_path / "token"
    token.write_text(TOKEN + "\n")
    with running(make_plan("RANDOM", {"a": SEES["a"]}, token=TOKEN)) as server:
        told = muxrl("compliance", "--server", server.address, "--token-file", token).out
        refused = muxrl("compliance", "--server", server.address, code=1).out
    assert " 0 broken, " in told
    assert "rules: " in refused
    assert "expected 200; came 401" in refused


def test_a_client_of_a_config_s_simulation(muxrl: Muxrl) -> None:
    program = erring("finals")
    told = muxrl("compliance", "--client", "--", *program, code=1).out
    assert "expected final_observations['driver_0']; came none" in told
    told = muxrl("compliance", "--client", "--config", "twenty_lines", "--", *program, code=1)
    told = " ".join(told.out.split())  # without the ends of its lines
    assert "there is no agent 'toll' here" in told


@pytest.mark.parametrize(
    ("arguments", "story"),
    [
        (["--client"], "--client needs the client's command"),
        (["--server", "127.0.0.1:1", "--", "program"], "with --server there must be none"),
        (["--server", "nowhere"], "HOST:PORT"),
        (["--client", "--", "no-such-program"], "'no-such-program' cannot be started"),
        (["--server", "127.0.0.1:1", "--token-file", "/no/such/file"], "No such file"),
    ],
)
def test_what_cannot_be_tried_is_refused(arguments: list[str], story: str, muxrl: Muxrl) -> None:
    assert story in muxrl("compliance", *arguments, code=2).err
