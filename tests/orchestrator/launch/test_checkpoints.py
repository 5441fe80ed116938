"""When a checkpoint is due; it holds all servers at one moment, or does not exist."""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import Callable, Collection, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from muxrl.orchestrator.config import CheckpointConfig
from muxrl.orchestrator.config.schema import BestConfig
from muxrl.orchestrator.errors import NotSaved
from muxrl.orchestrator.launch.checkpoints import Checkpoints
from muxrl.orchestrator.launch.tally import Tally
from muxrl.orchestrator.records.metrics import MetricsWriter, read_metrics
from muxrl.orchestrator.records.rows import EvaluationRow
from muxrl.orchestrator.records.run_directory import RunDirectory
from muxrl.orchestrator.storage.checkpoints import (
    CheckpointFolder,
    Manifest,
    SavedServer,
    best_name,
)
from muxrl.orchestrator.supervise.simulation_process import EpisodeSeeds, SimulationReport
from muxrl.servers.episodes.warnings import Warnings


class World:
    """Servers and simulations that note in order what they are asked."""

    def __init__(
        self,
        path: Path,
        *,
        judged: Collection[str] | None = None,
        before: World | None = None,
        num_judged: int | None = None,
        **config: Any,
    ) -> None:
        self.asked: list[str] = []
        self.problem: Exception | None = None
        self.late: list[str] = []
        self.restarting: list[str] = []
        self.num_episodes_begun = {"simulation-0": 7}
        self.env_steps = 100
        self.run = before.run if before else RunDirectory.create_at(path / "tag")
        self.metrics = MetricsWriter(self.run)
        self.tally = Tally()
        self.warnings = Warnings(lambda: self.tally.env_steps)
        records: Any = self
        self.folder = CheckpointFolder(self.run.checkpoints)
        self.checkpoints = Checkpoints(
            CheckpointConfig(**config),
            self.folder,
            records,
            Manifest.read(self.folder.path / "last") if before else None,
            judged,
            num_judged,
        )

    def write(self, *, is_last: bool = False) -> bool:
        world: Any = self
        evaluations: Any = SimpleNamespace(is_running=False, due_at=None)
        return asyncio.run(
            self.checkpoints.write(
                world, world, evaluations, update_s=1.0, look=self.report_now, is_last=is_last
            )
        )

    def report(self) -> None:
        self.tally.add("simulation-0", SimulationReport(self.env_steps, [{"a": 1.0}]))

    def judge(self, env_steps: int, returns: Any, **metrics: Any) -> None:
        """Writes a checkpoint and gives it the result of an evaluation."""
        self.env_steps = env_steps
        assert self.write()
        self.checkpoints.note_evaluation(env_steps)
        row = EvaluationRow(env_steps=env_steps, replaced=None, returns=returns, metrics=metrics)
        self.checkpoints.judge(row)

    # --- as servers and as simulations

    async def hold(self, grace_s: float, update_s: float) -> list[str]:
        self.asked.append("hold")
        return self.late

    async def any_down(self) -> None:
        await asyncio.Event().wait()

    async def report_now(self) -> None:
        self.report()

    async def save(self, draft: Path, update_s: float) -> dict[str, SavedServer]:
        self.asked.append("save")
        (draft / "ppo").mkdir()
        (draft / "ppo" / "state").write_text("weights")
        self.metrics.server("ppo", {"env_steps": self.env_steps})
        if self.problem is not None:
            raise self.problem
        return {"ppo": SavedServer("PPO", 3, {})}

    def release(self) -> None:
        self.asked.append("release")

    async def finish_training(self, update_s: float) -> None:
        self.asked.append("finish")


Make = Callable[..., World]


@pytest.fixture
def make(tmp_path: Path) -> Iterator[Make]:
    worlds: list[World] = []

    def made(**config: Any) -> World:
        worlds.append(World(tmp_path, **config))
        return worlds[-1]

    yield made
    for world in worlds:
        world.metrics.close()


def test_all_servers_save_while_simulations_are_held(make: Make) -> None:
    world = make()
    assert world.write()
    assert world.asked == ["hold", "save", "release"]
    manifest = Manifest.read(world.folder.path / "100")
    assert manifest.num_episodes_begun == {"simulation-0": 7}
    # Rows that came with the checkpoint are before it; later rows are after it.
    world.metrics.server("ppo", {"env_steps": 120})
    world.metrics.cut_back(manifest.metrics_bytes, manifest.env_steps)
    assert read_metrics(world.run.metrics / "ppo.jsonl") == [{"env_steps": 100}]


def test_the_last_checkpoint_ends_learning_and_leaves_simulations_held(make: Make) -> None:
    world = make()
    assert world.write(is_last=True)
    assert world.asked == ["hold", "finish", "save"]


@pytest.mark.parametrize(
    ("problem", "late", "restarting", "story"),
    [
        (NotSaved("no checkpoint of server 'ppo': OSError: full"), [], [], "server 'ppo': OSError"),
        (OSError(28, "No space left on device"), [], [], "no checkpoint: .*No space left"),
        (None, ["simulation-1"], [], "no checkpoint: simulation-1 did not pause in time"),
        (None, ["simulation-1"], ["ppo"], "while ppo is being started again"),
    ],
)
def test_a_checkpoint_that_cannot_be_written_leaves_nothing_and_is_tried_again(
    make: Make, problem: Exception | None, late: list[str], restarting: list[str], story: str
) -> None:
    world = make(interval_env_steps=50)
    world.write()
    world.problem, world.late, world.env_steps = problem, late, 150
    world.restarting = restarting
    assert not world.write()
    assert world.asked[-1] == "release"
    with pytest.raises(AssertionError, match=story):
        raise AssertionError(world.checkpoints.problem)
    assert sorted(p.name for p in world.folder.path.iterdir()) == ["100", "last"]
    assert not world.checkpoints.is_due
    world.problem, world.late, world.env_steps = None, [], 200
    world.restarting = []
    world.report()
    assert world.checkpoints.is_due
    assert world.write()
    assert world.checkpoints.problem == ""
    assert world.folder.env_steps == [200, 100]
    (warning,) = world.warnings.found
    assert (warning.what, warning.num) == ("checkpoints refused", 1)
    assert re.search(story, warning.text)


def test_steps_since_the_last_checkpoint_are_reported_as_lost(make: Make) -> None:
    world = make()
    world.report()
    assert world.checkpoints.lost == "all that was learned is lost: the run has no checkpoint"
    world.write()
    assert world.checkpoints.lost == ""
    world.problem, world.env_steps = OSError(30, "Read-only file system"), 15_420
    world.write(is_last=True)
    expected = (
        "what was learned in the 15,320 env steps after the newest checkpoint, at 100 env steps, "
        "is lost"
    )
    assert world.checkpoints.lost == expected
    resumed = make(before=world)
    resumed.tally.restore(world.tally.state())
    assert resumed.checkpoints.lost == expected


def test_a_checkpoint_is_due_by_seconds_or_env_steps(make: Make, monkeypatch: Any) -> None:
    now = [1_000.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    world = make(interval_s=60.0, interval_env_steps=500)
    assert not world.checkpoints.is_due
    now[0] += 60.0
    assert world.checkpoints.is_due
    world.write()
    assert not world.checkpoints.is_due
    world.env_steps = 600
    world.report()
    assert world.checkpoints.is_due


def test_a_snapshot_is_due_at_each_multiple_and_kept(make: Make) -> None:
    world = make(interval_env_steps=80, keep_every_env_steps=100, keep_last=1)
    due = []
    for env_steps in range(10, 320, 10):
        world.env_steps = env_steps
        world.report()
        if world.checkpoints.is_due:
            due.append(env_steps)
            world.write()
    assert due == [80, 100, 180, 200, 280, 300]
    assert world.folder.env_steps == [300, 200, 100]


def test_snapshots_stay_if_a_run_is_resumed_with_another_interval(make: Make) -> None:
    def write(world: World, *moments: int) -> list[int]:
        for env_steps in moments:
            world.env_steps = env_steps
            assert world.write()
        return world.folder.env_steps

    world = make(keep_every_env_steps=100, keep_last=1)
    assert write(world, 100, 150, 200, 300, 350) == [350, 300, 200, 100]
    world = make(before=world, keep_every_env_steps=200, keep_last=1)
    assert write(world, 380, 400, 450) == [450, 400, 300, 200, 100]
    world = make(before=world, keep_last=1)
    assert write(world, 500, 600) == [600, 400, 300, 200, 100]


RETURNS = {
    100: {"a": [1.0], "b": [9.0]},
    200: {"a": [5.0], "b": [None]},
    300: {"a": [0.0], "b": [1.0]},
    400: {"a": [5.0], "b": [0.0]},
}


@pytest.mark.parametrize(
    ("judged", "keep", "best"),
    [
        (None, 1, {100: 10.0}),  # the sum over all agents, as in a sweep
        (["a"], 1, {200: 5.0}),
        (["a"], 3, {200: 5.0, 400: 5.0, 100: 1.0}),
        (["b"], 2, {100: 9.0, 300: 1.0}),
    ],
)
def test_the_last_checkpoint_and_the_best_by_their_evaluations_are_kept(
    make: Make, judged: list[str] | None, keep: int, best: dict[int, float]
) -> None:
    world = make(keep_last=1, best=BestConfig(keep=keep), judged=judged)
    for env_steps, returns in RETURNS.items():
        world.judge(env_steps, returns)
    world.env_steps = 500
    assert world.write()
    assert world.folder.env_steps == sorted({500, *best}, reverse=True)
    links = [world.folder.path / best_name(rank) for rank in range(keep)]
    assert [int(str(link.readlink())) for link in links] == [*best]
    assert Manifest.read(world.folder.path / "500").best == tuple(best.items())


def test_only_the_first_episodes_of_a_longer_evaluation_count(make: Make) -> None:
    world = make(best=BestConfig(), num_judged=2)
    world.judge(100, {"a": [2.0, 2.0]})
    world.judge(200, {"a": [1.0, 2.0, 9.0, 9.0]})
    assert (world.folder.path / "best").resolve().name == "100"


def test_the_best_checkpoints_are_chosen_anew_if_the_metric_has_changed(make: Make) -> None:
    first = make(best=BestConfig(of="one", keep=2), judged=["a"])

    def judge(world: World, env_steps: int) -> list[tuple[str, int]]:
        """Returns the best checkpoints by name, which are those in the newest manifest."""
        world.judge(env_steps, RETURNS[env_steps])
        best = Manifest.read(world.folder.path / "last").best
        names = {best_name(rank): at for rank, (at, _) in enumerate(best)}
        found = {p.name: int(str(p.readlink())) for p in world.folder.path.glob("best*")}
        assert found == names
        return sorted(names.items())

    assert judge(first, 100) == [("best", 100)]
    assert judge(first, 200) == [("best", 200), ("best-2", 100)]
    same = make(before=first, best=BestConfig(of="one", keep=2), judged=["a"])
    assert judge(same, 300) == [("best", 200), ("best-2", 100)]
    for other in (BestConfig(of="other"), BestConfig(of="one", mode="min")):
        world = make(before=first, best=other, judged=["b"])
        assert judge(world, 400) == [("best", 400)]


@pytest.mark.parametrize(
    ("config", "best"),
    [
        (BestConfig(name="win"), 200),
        (BestConfig(name="wait", mode="min"), 300),
        (BestConfig(name="wait"), 100),
    ],
)
def test_the_best_by_a_metric_is_kept(make: Make, config: BestConfig, best: int) -> None:
    """The metric is the episode's, or the mean over the agents that are judged."""
    world = make(keep_last=1, best=config, judged=["a"])
    for env_steps, win, wait in ((100, 0.0, 9.0), (200, 1.0, 5.0), (300, 0.5, 4.0)):
        wins, waits = {"__common__": [win, None]}, {"a": [wait], "b": [0.0]}
        world.judge(env_steps, {"a": [1.0], "b": [1.0]}, win=wins, wait=waits)
    assert int(str((world.folder.path / best_name(0)).readlink())) == best


def test_seeds_of_episodes_go_on_where_they_were() -> None:
    seeds = EpisodeSeeds(5)
    drawn = [next(seeds) for _ in range(6)]
    again = EpisodeSeeds(5, num_drawn=4)
    assert [next(again), next(again)] == drawn[4:]
    assert again.num_drawn == 6
    assert len({*drawn, next(EpisodeSeeds(6))}) == 7
