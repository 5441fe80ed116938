"""A machine that does not see the run's directory is named before anything starts on it."""

from __future__ import annotations

from pathlib import Path

import pytest

from muxrl.orchestrator.config import load_config, prepare
from muxrl.orchestrator.errors import NotShared
from muxrl.orchestrator.launch.whole_run import run_experiment
from muxrl.orchestrator.supervise import shared_folder
from muxrl.orchestrator.supervise.shared_folder import check_shared

NODES = {"1": "left (10.0.0.1)", "2": "right (10.0.0.2)"}


def test_machines_that_do_not_see_the_folder_are_named_with_a_remedy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen = {"1", "2"}
    monkeypatch.setattr(shared_folder, "_other_nodes", lambda _: NODES)
    monkeypatch.setattr(shared_folder, "_ask", lambda *_: seen)
    check_shared(tmp_path)
    seen.remove("2")
    with pytest.raises(NotShared) as refusal:
        check_shared(tmp_path)
    assert f"machine right (10.0.0.2) does not see {tmp_path}" in str(refusal.value)
    assert "under the same path (runs_dir or --run-dir" in str(refusal.value)
    seen.remove("1")
    with pytest.raises(NotShared, match=r"machines left \(10.*\), right \(10.*\) do not see"):
        check_shared(tmp_path)


@pytest.mark.ray
@pytest.mark.usefixtures("running_ray")
class TestOnRay:
    def test_a_single_machine_is_not_asked(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(shared_folder, "_ask", lambda *_: pytest.fail("asked"))
        check_shared(tmp_path)
        assert not list(tmp_path.iterdir())

    def test_a_machine_looks_for_the_marker_and_its_content(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Here this machine is asked as if it were another one."""
        import ray

        here = ray.get_runtime_context().get_node_id()
        monkeypatch.setattr(shared_folder, "_other_nodes", lambda _: {here: "here"})
        check_shared(tmp_path)
        assert not list(tmp_path.iterdir()), "the marker is left"
        absent, other = tmp_path / ".seen-1", tmp_path / ".seen-2"
        other.write_text(".seen-3")
        assert shared_folder._ask({here: "here"}, absent) == set()
        assert shared_folder._ask({here: "here"}, other) == set()

    def test_a_run_on_a_machine_that_does_not_see_its_directory_starts_nothing(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        chase = prepare(load_config("chase", ["address=auto", "simulation.record=1.0", *_SMALL]))
        monkeypatch.setattr(shared_folder, "_other_nodes", lambda _: NODES)
        monkeypatch.setattr(shared_folder, "_ask", lambda *_: {"2"})
        result = run_experiment(chase, run_dir=tmp_path / "run")
        assert (result.outcome, result.exit_code) == ("failed", 1)
        assert "machine left (10.0.0.1) does not see" in result.problem
        assert not list((tmp_path / "run").glob(".seen-*"))
        assert not any((tmp_path / "run" / "logs").iterdir())


_SMALL = [f"servers.{server_id}.resources.num_cpus=0.1" for server_id in ("qmix", "ppo", "a2c")] + [
    "simulation.num_cpus=0.1"
]
"""Resources with which all processes fit on two CPUs."""
