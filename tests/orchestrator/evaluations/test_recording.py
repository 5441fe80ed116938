"""`muxrl evaluate --record` and `--video` write what was played."""

from __future__ import annotations

import os
from collections import Counter
from datetime import datetime
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from PIL import Image, ImageSequence
from tests.client.scripted_servers import CountingSimulation
from tests.orchestrator.commanded import Muxrl
from tests.orchestrator.records.recorded import play

from muxrl.client.adapters import make_simulation
from muxrl.experiments.simulations.torus_chase import TorusChase
from muxrl.orchestrator.config import ExperimentConfig, SimulationConfig, to_yaml
from muxrl.orchestrator.errors import CannotEvaluate
from muxrl.orchestrator.evaluations import filming
from muxrl.orchestrator.evaluations.evaluate import evaluate_run
from muxrl.orchestrator.evaluations.filming import Filmed
from muxrl.orchestrator.records.played import Recorded, keep_share
from muxrl.orchestrator.records.run_directory import RunDirectory
from muxrl.servers.config import ServerConfig

TAG = SimulationConfig("mpe2.simple_tag_v3:parallel_env", {"max_cycles": 5})
CHASE = SimulationConfig("muxrl.experiments.simulations.torus_chase:TorusChase", {"num_steps": 5})


def run_of(root: Path, simulation: SimulationConfig) -> Path:
    """Returns a run whose agents all act at random, so that there is nothing to restore."""
    config = ExperimentConfig(
        "fixed", simulation=simulation, servers={"random": ServerConfig("RANDOM", ["*"])}
    )
    run = RunDirectory.create(root, "fixed", datetime(2026, 11, 23))
    run.write_config(to_yaml(config))
    return run.path


def test_a_recording_holds_what_was_played(tmp_path: Path) -> None:
    record = tmp_path / "played.jsonl"
    result = evaluate_run(run_of(tmp_path, CHASE), num_episodes=3, seed=7, record=record)
    frame = pd.read_json(record, lines=True)
    assert Counter(frame["seed"]) == dict.fromkeys((7, 8, 9), 5 * 5)  # five agents, five steps
    returns = frame.groupby(["agent", "seed"])["reward"].sum()
    for agent, by_episode in result.episode_returns.items():
        assert [returns[agent, seed] for seed in (7, 8, 9)] == pytest.approx(by_episode)
    assert frame.groupby("t")["truncated"].mean().tolist() == [0, 0, 0, 0, 1]
    assert frame["final_observation"].notna().sum() == 3 * 5
    one = frame.iloc[0]
    assert np.shape(one["observation"]) == np.shape(frame.iloc[-1]["final_observation"])
    assert one["action"] in range(5)


class Wanders(TorusChase):
    def reset(self, seed: int | None = None, options: Any = None) -> Any:
        os.chdir("/")
        return super().reset(seed, options)


def test_an_environment_that_leaves_the_folder_moves_no_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = run_of(tmp_path, SimulationConfig(f"{__name__}:Wanders", {"num_steps": 5}))
    monkeypatch.chdir(tmp_path)
    evaluate_run(run.relative_to(tmp_path), num_episodes=1, record=Path("played.jsonl"))
    assert Path.cwd() == tmp_path
    assert Path("played.jsonl").stat().st_size
    assert len(list((run / "evaluations").iterdir())) == 1


def test_parquet_holds_the_same_as_json_lines(tmp_path: Path) -> None:
    run = run_of(tmp_path, CHASE)
    for name in ("played.jsonl", "played.parquet"):
        evaluate_run(run, num_episodes=3, seed=7, record=tmp_path / name)
    lines = pd.read_json(tmp_path / "played.jsonl", lines=True)
    frame = pd.read_parquet(tmp_path / "played.parquet")
    for name in ("seed", "t", "agent", "reward", "truncated"):
        assert frame[name].tolist() == lines[name].tolist()
    # JSON has six digits.
    assert np.allclose(np.stack(frame["observation"]), np.stack(lines["observation"]), atol=1e-6)
    assert [one.tolist() for one in frame["action"]] == [[one] for one in lines["action"]]


def recorded(run: Path, simulation: SimulationConfig, seed: int) -> None:
    """Records an episode in a run's directory, as the run's simulations do."""
    made = make_simulation(simulation.env, simulation.kwargs)
    kept = keep_share(made, run / "episodes" / "simulation-0", 1.0)
    play(kept, seed, lambda *_: 1)
    kept.close()


def test_a_recorded_episode_is_shown_and_filmed(tmp_path: Path, muxrl: Muxrl) -> None:
    run, film = run_of(tmp_path, TAG), tmp_path / "film"
    told = muxrl("replay", run, code=2).err
    assert "has recorded no episodes; with simulation.record" in told
    recorded(run, TAG, 3)
    recorded(run, TAG, 4)
    first, *rows = muxrl("replay", run).out.splitlines()
    assert first == "seed 4, one of 2 recorded episodes"
    assert rows[0].startswith("t=0 adversary_0 sees [")
    assert rows[-1].startswith("t=4 agent_0 sees [")
    assert rows[-1].endswith(" truncated")
    muxrl("replay", run, "--seed", "3", "--video", film)
    assert [path.name for path in film.iterdir()] == ["episode-3.gif"]
    assert "no episode with the seed 5" in muxrl("replay", run, "--seed", "5", code=2).err


def test_a_recording_that_cannot_be_played_again_is_reported(tmp_path: Path, muxrl: Muxrl) -> None:
    run = run_of(tmp_path, TAG)
    recorded(run, TAG, 3)
    file = run / "episodes" / "simulation-0" / "3.parquet"
    file.rename(file.with_name("4.parquet"))
    frame = pq.read_table(file.with_name("4.parquet"))
    other = frame.set_column(0, frame.schema.field("seed"), pa.array([4] * len(frame), pa.int64()))
    pq.write_table(other, file.with_name("4.parquet"))
    told = muxrl("replay", run, "--video", tmp_path / "film", code=1)
    assert "at step 0 agents observe something else" in told.out


def test_a_long_episode_is_filmed_with_one_look_at_each_row(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    looks: list[str] = []

    class Counted(dict[str, Any]):
        def __getitem__(self, key: str) -> Any:
            looks.append(key)
            return super().__getitem__(key)

    played = CountingSimulation(num_steps=300)
    rows: list[dict[str, Any]] = []
    recorded = Recorded(played, lambda of_one, _: rows.extend(map(Counted, of_one)))
    play(recorded, 3, lambda agent, t: t)
    monkeypatch.setattr(filming, "filmed_copy", lambda *_: CountingSimulation(num_steps=300))
    assert filming.film(run_of(tmp_path, TAG), rows, {}, tmp_path / "film") == ""
    assert len(rows) == 2 * 300
    assert looks.count("t") == len(rows)


def test_each_episode_is_filmed_frame_by_frame(tmp_path: Path) -> None:
    film, record = tmp_path / "film", tmp_path / "played.jsonl"
    run = run_of(tmp_path, TAG)
    result = evaluate_run(run, num_episodes=2, seed=4, video=film, record=record)
    assert result.num_steps == (5, 5)
    unseen = evaluate_run(run, num_episodes=2, seed=4)
    assert unseen.episode_returns == result.episode_returns
    assert sorted(path.name for path in film.iterdir()) == ["episode-4.gif", "episode-5.gif"]
    assert len(record.read_text().splitlines()) == 2 * 5 * 4
    with Image.open(film / "episode-4.gif") as picture:
        in_turn = ImageSequence.Iterator(picture)
        shown_ms, frames = zip(
            *((one.info["duration"], np.array(one.convert("RGB"))) for one in in_turn), strict=True
        )
    assert sum(shown_ms) == (5 + 1) * 100, "a frame like the one before is shown for longer"
    made = make_simulation(TAG.env, {**TAG.kwargs, "render_mode": "rgb_array"})
    made.reset(4)
    first = made.render()  # type: ignore[attr-defined]
    assert np.abs(frames[0].astype(int) - first).mean() < 2, "a GIF has 256 colours"
    made.close()


@pytest.mark.parametrize(
    ("simulation", "told"),
    [
        (CHASE, r"cannot be filmed: simulation .*: it takes .* 'render_mode': 'rgb_array'"),
        (SimulationConfig(f"{__name__}:Blind", {}), r"cannot be filmed: .* render\(\) gave None"),
    ],
)
def test_an_environment_that_renders_nothing_is_refused_at_once(
    tmp_path: Path, simulation: SimulationConfig, told: str
) -> None:
    with pytest.raises(CannotEvaluate, match=told):
        evaluate_run(run_of(tmp_path, simulation), num_episodes=1, video=tmp_path / "film")


def test_existing_files_are_not_overwritten(tmp_path: Path, muxrl: Muxrl) -> None:
    run, there = run_of(tmp_path, CHASE), tmp_path / "there"
    there.mkdir()
    for option in ("--record", "--video"):
        assert f"{there} exists already" in muxrl("evaluate", run, option, there, code=2).err


def test_a_picture_is_kept_though_the_environment_draws_over_it(tmp_path: Path) -> None:
    class Drawing(CountingSimulation):
        canvas = np.zeros((4, 4, 3), np.uint8)

        def render(self) -> Any:
            self.canvas += 40
            return self.canvas

    play(Filmed(Drawing(num_steps=2), tmp_path), 1, lambda *_: 0)
    with Image.open(tmp_path / "episode-1.gif") as picture:
        shades = [np.array(f.convert("L")).mean() for f in ImageSequence.Iterator(picture)]
    assert len(set(shades)) == len(shades) == 3


class Blind:
    """Takes a render mode, but renders nothing."""

    def __new__(cls, render_mode: str = "") -> Any:
        made: Any = TorusChase()
        made.render = lambda: None
        return made
