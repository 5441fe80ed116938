"""Processes on machines of a Ray cluster: calls keep their order, and files travel with them."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tests.orchestrator.supervise.test_worker import Talker, got

from muxrl.orchestrator.config import ExperimentConfig, load_config, prepare
from muxrl.orchestrator.errors import Ended, RunFailed
from muxrl.orchestrator.storage.checkpoints import hash_files
from muxrl.orchestrator.supervise import cluster
from muxrl.orchestrator.supervise.cluster import ClusterWorkers
from muxrl.orchestrator.supervise.worker import Caller
from muxrl.orchestrator.supervise.working import in_own_thread
from muxrl.servers.config import ServerPlan

pytestmark = [pytest.mark.ray, pytest.mark.usefixtures("running_ray"), pytest.mark.timeout(300)]


class Distant(Talker):
    """The object of a process on another machine."""

    def __init__(self, plan: ServerPlan | None = None) -> None:
        super().__init__()
        path = plan and Path(plan.resume_from or plan.initialize_from)
        self.begun_from = path and (str(path), hash_files(path))

    def start(self) -> Any:
        return self.begun_from

    @in_own_thread
    def save(self, path: Path) -> dict[str, str]:
        write_two(path)
        return hash_files(path)

    def die(self) -> None:
        os.kill(os.getpid(), signal.SIGKILL)


def write_two(folder: Path) -> None:
    (folder / "state").mkdir(parents=True)
    (folder / "about.json").write_text("{}")
    (folder / "state" / "weights").write_bytes(b"\0\1")


@pytest.fixture
def workers(python_path: str) -> ClusterWorkers:
    return ClusterWorkers(ExperimentConfig())


@pytest.fixture
def distant(workers: ClusterWorkers, tmp_path: Path) -> Iterator[Caller]:
    """Gives a process of a run whose directory its machine does not see."""
    log = tmp_path / "logs" / "distant.log"
    log.parent.mkdir()
    log.write_text("of the one before\n")
    caller = workers.start("distant", Distant, log=log)
    yield caller
    caller.kill()


def test_calls_keep_their_order_and_exceptions_come_back(distant: Caller) -> None:
    for number in range(200):
        distant.call("say", str(number))
    assert got(distant.call("repeat")) == [str(number) for number in range(200)]
    error = got(distant.call("fail", "itself"))
    assert (type(error), str(error)) == (RunFailed, "no luck")


def test_a_checkpoint_and_each_line_of_the_log_come_back(distant: Caller, tmp_path: Path) -> None:
    draft = tmp_path / "on another machine" / "ppo"
    written = got(distant.call("save", draft))
    assert hash_files(draft) == written
    log = tmp_path / "logs" / "distant.log"
    for text in ("first", "second"):
        distant.call("say", text)
    got(distant.call("repeat"))
    # Both machines are the same here: each line is written, and comes back at least once.
    lines = log.read_text().splitlines()
    assert lines.count("first") >= 2
    assert lines.count("second") >= 2
    assert lines.count("of the one before") == 1


def test_a_process_that_dies_is_reported_with_the_cause(distant: Caller) -> None:
    for _ in range(2):
        error = got(distant.call("die"))
        assert isinstance(error, Ended)
        assert "SIGKILL" in str(error)
    distant.kill()
    assert isinstance(got(distant.call("repeat")), Ended)


@pytest.mark.parametrize("key", ["resume_from", "initialize_from"])
@pytest.mark.parametrize("is_same", [True, False])
def test_a_server_begins_from_a_checkpoint_that_it_may_not_see(
    workers: ClusterWorkers,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    key: str,
    *,
    is_same: bool,
) -> None:
    import ray

    write_two(tmp_path / "ppo")
    here = str(tmp_path / "ppo")
    plan = replace(prepare(load_config("cartpole_ppo")).servers["ppo"], **{key: here})
    checkpoint = [ray.put(cluster.pack(tmp_path / "ppo"))]
    monkeypatch.setattr(cluster, "_checkpoint_of", lambda arguments: checkpoint)
    node_id = ray.get_runtime_context().get_node_id() if is_same else "another"
    monkeypatch.setattr(cluster, "_node_id", lambda: node_id)
    caller = workers.start("ppo", Distant, plan, log=tmp_path / "logs" / "ppo.log")
    path, files = got(caller.call("start"))
    assert files == hash_files(tmp_path / "ppo")
    assert (path == here) is is_same
    assert Path(path).exists() is is_same, "what was brought is needed no longer"
    caller.kill()


def test_a_gcs_that_takes_no_connection_is_reported_in_time(
    workers: ClusterWorkers, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = [0.0]
    monkeypatch.setattr("time.monotonic", lambda: now[0])
    workers._looked_at = workers._seen_at = 0.0
    now[0] = 3.0
    workers.check()
    workers._head = ("127.0.0.1", 1)
    for now[0] in (6.0, 9.0, 12.0):
        workers.check()
    now[0] = 14.0
    with pytest.raises(RunFailed, match=r"Ray's GCS at 127.0.0.1:1 is lost"):
        workers.check()
