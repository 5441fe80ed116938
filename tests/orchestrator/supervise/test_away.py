"""What travels between the run's directory and machines that do not see it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from muxrl.orchestrator.config import load_config, prepare
from muxrl.orchestrator.storage.checkpoints import hash_files
from muxrl.orchestrator.supervise import process
from muxrl.orchestrator.supervise.away import Luggage, pack, place_for, unpack, unpacked
from muxrl.orchestrator.supervise.process import ProcessReport


def write_two(folder: Path) -> None:
    (folder / "state").mkdir(parents=True)
    (folder / "about.json").write_text("{}")
    (folder / "state" / "weights").write_bytes(b"\0\1")


def test_a_checkpoint_is_sent_only_where_its_folder_is_not_seen(tmp_path: Path) -> None:
    with place_for(tmp_path / "ppo") as (place, files):
        write_two(place)
    assert (place, files) == (tmp_path / "ppo", {})
    with place_for(tmp_path / "on another machine" / "ppo") as (place, files):
        write_two(place)
        written = hash_files(place)
    assert not place.exists()
    unpack(files, tmp_path / "back")
    assert hash_files(tmp_path / "back") == written == hash_files(tmp_path / "ppo")


@pytest.mark.ray
@pytest.mark.usefixtures("running_ray")
@pytest.mark.parametrize("key", ["resume_from", "initialize_from"])
def test_a_server_on_another_machine_begins_from_what_it_is_sent(tmp_path: Path, key: str) -> None:
    import ray

    write_two(tmp_path / "ppo")
    plan = prepare(load_config("cartpole_ppo")).servers["ppo"]
    plan = replace(plan, **{key: str(tmp_path / "ppo")})
    assert Luggage.of(plan) is None  # there is one machine
    here = ray.get_runtime_context().get_node_id()
    for node_id, is_same in ((here, True), ("another", False)):
        with unpacked(plan, Luggage(node_id, ray.put(pack(tmp_path / "ppo")))) as found:
            assert (found == plan) is is_same
            assert hash_files(Path(getattr(found, key))) == hash_files(tmp_path / "ppo")
    assert not Path(getattr(found, key)).exists()


def test_a_log_comes_with_the_reports(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each line once, and not those of an earlier process of that name."""
    log = tmp_path / "ppo.log"
    log.write_text("of the one before\n")
    monkeypatch.setattr(process, "_away", process.AwayLog(log))
    with log.open("a") as file:
        file.write("first\n")
    piece = ProcessReport().log
    assert piece is not None
    assert (piece.text, piece.end) == (b"first\n", log.stat().st_size)
    with log.open("a") as file:
        file.write("second\n")
    piece = ProcessReport().log
    assert piece is not None
    assert piece.text == b"second\n"
