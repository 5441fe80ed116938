"""`muxrl compliance` prints a table, ends with an exit code, and refuses what it cannot try."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.compliance.real_servers import SEES, TOKEN, make_plan, running
from tests.orchestrator.commanded import Muxrl
from tests.orchestrator.compliance.test_client_trial import erring


def test_a_server_with_a_token_is_tried(tmp_path: Path, muxrl: Muxrl) -> None:
    token = tmp_path / "token"
    token.write_text(TOKEN + "\n")
    with running(make_plan("RANDOM", {"a": SEES["a"]}, token=TOKEN)) as server:
        told = muxrl("compliance", "--server", server.address, "--token-file", token).out
        refused = muxrl("compliance", "--server", server.address, code=1).out
    assert " 0 broken, " in told
    assert "rules: " in refused
    assert "expected 200; came 401" in refused


def test_a_client_is_tried_with_the_simulation_of_a_config(muxrl: Muxrl) -> None:
    program = erring("finals")
    told = muxrl("compliance", "--client", "--", *program, code=1).out
    assert "expected final_observations['driver_0']; came none" in told
    told = muxrl("compliance", "--client", "--config", "twenty_lines", "--", *program, code=1)
    told = " ".join(told.out.split())  # joins the wrapped lines
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
def test_arguments_that_name_nothing_to_try_are_refused(
    arguments: list[str], story: str, muxrl: Muxrl
) -> None:
    assert story in muxrl("compliance", *arguments, code=2).err
