"""A run reports that it waits for external simulations, and its clock does not run yet."""

from __future__ import annotations

import contextlib
import time
from pathlib import Path

import pytest

from muxrl.client import PolicyClient
from muxrl.orchestrator.config import load_config, prepare
from muxrl.orchestrator.launch import run_records
from muxrl.orchestrator.launch.run import Run
from muxrl.orchestrator.records.run_directory import make_folder
from muxrl.orchestrator.records.run_status import read_status
from muxrl.orchestrator.supervise.local import workers_for

SPACE = {"type": "discrete", "n": 2}
CONFIG = {
    "simulation": {
        "env": "external",
        "agents": {"a": {"observation_space": SPACE, "action_space": SPACE}},
    },
    "servers": {"random": {"algorithm": "RANDOM", "agents": ["a"]}},
    "stop": {"time_s": 60.0},
    "evaluation": {"final_num_episodes": 0},
    "metrics_interval_s": 0.1,
    "trackers": [],
}


def test_a_run_without_simulations_reports_it_and_how_to_join(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run_records, "_SILENCE_S", 0.3)
    experiment = prepare(load_config(CONFIG))
    folder = make_folder(experiment, tmp_path / "run")
    heard: list[str] = []
    with contextlib.closing(Run(experiment, folder, on_warned=heard.append)) as run:
        rounds = run.play(workers_for(experiment.config))
        next(rounds)
        began = time.monotonic()
        while len(heard) < 2:
            next(rounds)
        address = run.addresses_text.rpartition("http://")[2]
        waiting = f"waiting for a simulation at {address}"
        for sentence in heard:
            assert sentence.startswith(f"{waiting} for ")
            assert f"PolicyClient('{address}')" in sentence
            assert sentence.endswith("; stop.time_s counts from the first env step")
        status = read_status(folder)
        assert status is not None
        assert (status.state, status.waiting_for) == ("running", waiting)
        assert run.snapshot().note == waiting
        with PolicyClient(address) as client:
            episode_id = client.start_episode()
            client.get_action(episode_id, {"a": 0})
            client.log_returns(episode_id, {"a": 1.0})
            client.end_episode(episode_id)
        while run.tally.env_steps == 0:
            next(rounds)
        next(rounds)
        status = read_status(folder)
        assert status is not None
        assert status.waiting_for == run.snapshot().note == ""
        assert run.tally.time_s < time.monotonic() - began - 0.6, "the clock has waited"
        assert run.end("interrupted").outcome == "interrupted"
    assert len(heard) == 2
