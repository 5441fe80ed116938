"""`muxrl gateway`: what it refuses before it looks for any server."""

from pathlib import Path

import pytest
from tests.orchestrator.records.recorded import new_run

from muxrl.orchestrator import cli
from muxrl.orchestrator.records.run_status import StatusFile


def test_a_run_that_has_ended_has_no_servers(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = new_run(tmp_path)
    (run.path / "servers.json").write_text('{"ppo": "127.0.0.1:1"}')
    StatusFile(run).enter("done", 100)
    assert cli.main(["gateway", "--run", str(run.path)]) == 2
    assert "has ended (done), and its servers with it" in capsys.readouterr().err


def test_a_run_without_servers_yet_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["gateway", "--run", str(new_run(tmp_path).path)]) == 2
    assert "no server listens yet" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "story"),
    [
        ([], "needs either the servers' addresses, HOST:PORT, or --run RUN"),
        (["127.0.0.1:1", "--run", "somewhere"], "needs either the servers' addresses"),
        (["127.0.0.1:1", "--host", "0.0.0.0"], "--token-file"),
        (["127.0.0.1:1", "--token-file", "no-such-file"], "cannot be read"),
    ],
)
def test_what_cannot_be_meant_is_refused(
    arguments: list[str], story: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["gateway", *arguments]) == 2
    assert story in capsys.readouterr().err
