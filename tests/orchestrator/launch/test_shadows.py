"""A run with a shadow: its records and report, and the shadow that acts after a resume."""

from __future__ import annotations

import json
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from tests.faults.hosted import Host
from tests.faults.started import PATIENCE_S

from muxrl import load_policy
from muxrl.client import PolicyClient
from muxrl.client.errors import EpisodeAborted, RunIsOver
from muxrl.orchestrator.config import ConfigError, load_config, prepare
from muxrl.orchestrator.launch.resuming import find_checkpoint
from muxrl.orchestrator.launch.whole_run import run_experiment
from muxrl.orchestrator.measure.number_text import signed_lines
from muxrl.orchestrator.measure.results import results_of
from muxrl.orchestrator.measure.statistics import mean_interval
from muxrl.orchestrator.records.frames import evaluation_frame
from muxrl.orchestrator.records.recorded_run import RecordedRun
from muxrl.orchestrator.records.run_directory import RunDirectory
from muxrl.orchestrator.watch.run_view import RunView

pytestmark = pytest.mark.timeout(300)

SETTINGS = {"num_steps_sampled_before_learning_starts": 50, "train_batch_size_per_learner": 16}
CONFIG: dict[str, Any] = {
    "simulation": {"env": "muxrl.experiments.simulations.zero_cost:ZeroCost",
                   "kwargs": {"num_agents": 3, "num_steps": 20}, "num_envs_per_process": 2},
    "servers": {
        "dqn": {"algorithm": "DQN", "agents": ["agent_0", "agent_1"], "settings": SETTINGS},
        "sac": {"algorithm": "SAC", "shadow": "dqn", "settings": SETTINGS},
        "rest": {"algorithm": "RANDOM", "agents": ["agent_2"]},
    },
    "stop": {"env_steps": 400},
    "evaluation": {"interval_env_steps": 200, "num_episodes": 4, "final_num_episodes": 6},
    "trackers": [],
}  # fmt: skip


def launched(host: Host, *arguments: str) -> str:
    process, _ = host.launch(["launch", *arguments, "--no-progress"])
    said: str = process.communicate(timeout=PATIENCE_S)[0]
    assert process.returncode == 0, said
    return said


def test_no_shadow_is_promoted_in_a_new_run(tmp_path: Path) -> None:
    config = load_config(CONFIG, {"servers.dqn.replace_by": "sac"})
    with pytest.raises(ConfigError, match=r"servers.dqn.replace_by: is only for a resumed run"):
        run_experiment(prepare(config), tmp_path / "run")
    assert not (tmp_path / "run").exists()


def acting_in(folder: Path) -> str:
    policy: Any = load_policy(folder)["agent_0"]
    assert isinstance(policy.server_id, str)
    return policy.server_id


def test_a_shadow_learns_is_measured_and_acts_once_it_is_promoted(
    tmp_path: Path, host: Host
) -> None:
    (tmp_path / "config.yaml").write_text(yaml.safe_dump(CONFIG))
    folder = tmp_path / "run"
    said = launched(host, str(tmp_path / "config.yaml"), "--run-dir", str(folder))
    run = RecordedRun.read(folder)
    assert run.assignment == "dqn:agent_0,agent_1|random:agent_2"
    assert run.server_of == {"agent_0": "dqn", "agent_1": "dqn", "agent_2": "rest"}
    assert run.env_steps["sac"] == run.env_steps["dqn"] == 400
    _, manifest, _ = find_checkpoint(RunDirectory(folder))
    assert manifest.servers["sac"].files
    assert acting_in(folder / "checkpoints" / "last") == "dqn"
    assert acting_in(folder / "checkpoints" / "last" / "sac") == "sac"
    (report,) = [one for one in results_of([run]).servers if one.server_id == "sac"]
    assert report.shadow == "dqn"
    assert report.has_updates
    assert report.train_return is None

    def returns(who: str, env_steps: int = 400) -> np.ndarray[Any, Any]:
        rows = run.evaluations.loc[(env_steps, who)]
        return rows[[("return", "agent_0"), ("return", "agent_1")]].mean(axis=1).to_numpy()

    final, over = report.final, report.over_acting
    assert final is not None
    assert over is not None
    assert over.advantage is not None
    assert final.untrained is not None
    assert final.random is not None
    assert final.num_episodes == len(returns("dqn=sac")) == 6
    assert final.learned.mean == pytest.approx(returns("dqn=sac").mean())
    assert final.random.mean == pytest.approx(returns("dqn").mean())
    assert final.untrained.mean == pytest.approx(returns("dqn=sac:untrained").mean())
    expected = mean_interval([returns("dqn=sac") - returns("")])
    assert over.advantage == expected
    difference = " ".join(signed_lines(expected))
    assert f"(over dqn: {difference})" in (folder / "summary.md").read_text()
    assert "(over dqn: " in said
    assert any(
        line.startswith("sac (SAC) learned from the steps of dqn; in its place, after 400 env step")
        for line in results_of([run]).headline
    )
    shown = {one["id"]: one["roles"][0] for one in RunView(folder).read()["servers"]}
    assert shown["sac"]["training"] == []
    assert [point[1] for point in shown["sac"]["evaluated"]] == pytest.approx(
        [returns("dqn=sac", n).mean() for n in (0, 200, 400)]
    )

    launched(host, "--resume", str(folder), "servers.dqn.replace_by=sac", "stop.env_steps=600")
    run = RecordedRun.read(folder)
    assert run.assignment == "sac:agent_0,agent_1|random:agent_2"
    assert run.server_of["agent_0"] == acting_in(folder) == "sac"
    of = {one.server_id: one for one in results_of([run]).servers}
    final = of["sac"].final
    assert final is not None
    assert (final.env_steps, final.learned.mean) == (600, pytest.approx(returns("", 600).mean()))
    before = of["dqn"].final
    assert before is not None
    assert before.env_steps <= 400
    (curve,) = of["sac"].seed_curves
    assert curve[1][1] == pytest.approx(returns("dqn=sac", 200).mean())
    assert len(run.training["sac"].returns)
    assert run.training["sac"].env_steps.min() >= 400
    assert run.training["dqn"].env_steps.max() <= 400

    frame = evaluation_frame([folder])
    frame = frame[frame["agent"] == "agent_0"].fillna({"replaced": ""})
    acted = frame.groupby(["env_steps", "replaced"])["algorithm"].agg(list)
    assert {*acted[200, ""]} == {*acted[0, "dqn"]} == {"DQN"}
    assert {*acted[200, "dqn=sac"]} == {*acted[600, ""]} == {*acted[600, "sac"]} == {"SAC"}

    process, _ = host.launch(
        ["launch", "--resume", str(folder), "servers.dqn.replace_by=''", "stop.env_steps=700"]
    )
    said: str = process.communicate(timeout=PATIENCE_S)[0]
    assert process.returncode
    assert "has no weights of dqn: a server that a shadow has repl" in said


def play_and_log(address: str) -> None:
    """Plays until the run is over; in training every second step has actions of the simulation."""
    with PolicyClient(address, patience_s=PATIENCE_S) as client:
        while True:
            try:
                episode = client.start_episode()
                for t in range(10):
                    seen = {"a": [0.1 * t], "b": [0.0]}
                    if t % 2 and not client.is_evaluation:
                        client.log_action(episode, seen, {"a": 1, "b": 2})
                        rewards = {"a": 1.0, "b": 0.0}
                    else:
                        rewards = {"a": float(client.get_action(episode, seen)["a"] == 1), "b": 0.0}
                    client.log_returns(episode, rewards)
                client.end_episode(episode)
            except RunIsOver:
                return
            except EpisodeAborted:  # training is over, or an evaluation begins
                continue


def test_a_shadow_learns_from_an_external_simulation(tmp_path: Path, host: Host) -> None:
    spaces = {"observation_space": {"type": "box", "shape": [1]},
              "action_space": {"type": "discrete", "n": 3}}  # fmt: skip
    servers: dict[str, Any] = CONFIG["servers"]
    config = CONFIG | {
        "simulation": {"env": "external", "agents": {"a": spaces, "b": spaces}},
        "servers": {
            "dqn": servers["dqn"] | {"agents": ["a"]},
            "sac": servers["sac"],
            "rest": servers["rest"] | {"agents": ["b"]},
        },
        "stop": {"env_steps": 405},
    }
    (tmp_path / "config.yaml").write_text(yaml.safe_dump(config))
    folder = tmp_path / "run"
    options = ["--run-dir", str(folder), "--no-progress"]
    process, _ = host.launch(["launch", str(tmp_path / "config.yaml"), *options])
    gateway, deadline = folder / "gateway.json", time.monotonic() + PATIENCE_S
    while not gateway.exists() and process.poll() is None and time.monotonic() < deadline:
        time.sleep(0.02)
    address = json.loads(gateway.read_text())["address"]
    thread = threading.Thread(target=play_and_log, args=[address], daemon=True)
    thread.start()
    said: str = process.communicate(timeout=PATIENCE_S)[0]
    assert process.returncode == 0, said
    thread.join(PATIENCE_S)
    assert not thread.is_alive()

    run = RecordedRun.read(folder)
    # No observation follows the step that uses up the budget, so servers do not count it.
    assert run.env_steps["sac"] == run.env_steps["dqn"] == 404
    assert run.weights_seq_no["sac"] > 0
    assert run.num_logged_actions.keys() == {"dqn", "rest"}
    assert run.num_logged_actions["dqn"] >= 180
    (report,) = [one for one in results_of([run]).servers if one.server_id == "sac"]
    assert report.final is not None
    assert report.final.num_episodes == len(run.evaluations.loc[(405, "dqn=sac")]) == 6
    assert report.over_acting is not None
