"""`muxrl gateway` refuses wrong arguments before it looks for any server."""

from pathlib import Path

import pytest
from tests.orchestrator.commanded import Muxrl
from tests.orchestrator.records.recorded import new_run

from muxrl.orchestrator.records.run_status import StatusFile


def test_a_run_that_has_ended_is_refused(tmp_path: Path, muxrl: Muxrl) -> None:
    run = new_run(tmp_path)
    (run.path / "servers.json").write_text('{"ppo": "127.0.0.1:1"}')
    StatusFile(run).enter("done", 100)
    told = muxrl("gateway", "--run", run.path, code=2)
    assert "has ended (done), and its servers with it" in told.err


def test_a_run_without_servers_yet_is_refused(tmp_path: Path, muxrl: Muxrl) -> None:
    assert "no server listens yet" in muxrl("gateway", "--run", new_run(tmp_path).path, code=2).err


@pytest.mark.parametrize(
    ("arguments", "story"),
    [
        ([], "needs either the servers' addresses, HOST:PORT, or --run RUN"),
        (["127.0.0.1:1", "--run", "somewhere"], "needs either the servers' addresses"),
        (["127.0.0.1:1", "--host", "0.0.0.0"], "--token-file"),
        (["127.0.0.1:1", "--token-file", "no-such-file"], "cannot be read"),
    ],
)
def test_arguments_that_are_incomplete_or_contradict_are_refused(
    arguments: list[str], story: str, muxrl: Muxrl
) -> None:
    assert story in muxrl("gateway", *arguments, code=2).err
