"""Formulas in the documents' code are learned with as they are, in tasks with known values."""

from __future__ import annotations

import importlib
import re
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from gymnasium import Env, spaces
from pettingzoo import ParallelEnv

from muxrl.client.env_loop import EnvLoop, EpisodeResult
from muxrl.experiments.studies.case_table import Measure, train
from muxrl.orchestrator.config import load_config
from muxrl.orchestrator.launch.in_process import Served, serve
from muxrl.orchestrator.launch.parameters import ParameterProgress
from muxrl.orchestrator.supervise.simulation_process import EpisodeSeeds

pytestmark = pytest.mark.learning

DOCS = Path(__file__).parents[2] / "docs"
BLOCK = re.compile(r"^```(?:python|yaml)\n(.*?)^```", re.DOTALL | re.MULTILINE)
FORMULA = re.compile(r"def (?:shape_rewards|learn)\b|next_when:")
"""A block with one of these is about learning: rewards, estimates, or a curriculum."""
LEARNED = {"own-trainer.md": ["class Bandit", "class Diary"], "concepts.md": ["parameters:"]}
"""By page: a text in each such block; the tests below learn with these blocks."""


def block(page: str, has: str) -> str:
    (found,) = (code for code in BLOCK.findall((DOCS / page).read_text()) if has in code)
    return str(found)


def test_each_formula_of_a_page_is_learned_with() -> None:
    for page in (*DOCS.rglob("*.md"), *DOCS.parent.glob("*.md")):
        formulas = [code for code in BLOCK.findall(page.read_text()) if FORMULA.search(code)]
        known = LEARNED.get(page.name, [])
        assert [code for code in formulas if not any(has in code for has in known)] == []
        assert len(formulas) == len(known), page


@pytest.fixture
def shown(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str, str], str]:
    """Gives a function that makes a module of a page's block and returns its class's path."""
    monkeypatch.syspath_prepend(tmp_path)

    def show(page: str, has: str) -> str:
        name = f"shown_{has.split()[-1].lower()}"
        (tmp_path / f"{name}.py").write_text(block(page, has))
        importlib.invalidate_caches()
        monkeypatch.delitem(sys.modules, name, raising=False)
        return f"{name}:{has.split()[-1]}"

    return show


# --- the potential --------------------------------------------------------------------------

GAMMA = 0.99
POTENTIAL = np.array([6.0, 0.0, 0.0])
NEXT = [[1, None], [2, 0], [None, 2]]
PAYS = [[-0.5, 1.0], [-0.5, -0.5], [3.0, -0.5]]
BEST = [0, 0, 0]


def best_values() -> np.ndarray:
    """Returns the values of all actions, found by value iteration."""
    values = np.zeros((3, 2))
    for _ in range(2_000):
        best = values.max(axis=1)
        values = np.array([
            [pay + (0.0 if to is None else GAMMA * best[to])
             for pay, to in zip(pays, tos, strict=True)]
            for pays, tos in zip(PAYS, NEXT, strict=True)
        ])  # fmt: skip
    return values


class Corridor(Env[np.ndarray, np.int64]):
    """Three places; the first action is the best, and leads from the last place to the end.

    A place is observed as its potential and one-hot. Episodes begin anywhere, and are truncated
    soon.
    """

    observation_space = spaces.Box(0.0, 6.0, (4,), np.float32)
    action_space = spaces.Discrete(2)

    def observed(self) -> np.ndarray:
        return np.array([POTENTIAL[self.place], *np.eye(3)[self.place]], np.float32)

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[np.ndarray, Any]:
        super().reset(seed=seed)
        self.place, self.t = int(self.np_random.integers(3)), 0
        return self.observed(), {}

    def step(self, action: np.int64) -> tuple[np.ndarray, float, bool, bool, Any]:
        pay, to = PAYS[self.place][action], NEXT[self.place][action]
        self.place, self.t = self.place if to is None else to, self.t + 1
        return self.observed(), pay, to is None, self.t == 4, {}


class TableQ:
    """Q-learning in a table, which becomes exact in this task, as nothing in it is random."""

    learns_from = "newest"
    batch_env_steps = 1

    def __init__(self, policy: Any) -> None:
        self.values = np.zeros((3, 2))
        self.epsilon = 1.0
        self.epsilons: set[float] = set()

    def act(self, rows: Any) -> Any:
        best = self.values[rows.observations[:, 1:].argmax(axis=1)].argmax(axis=1)
        at_random = rows.should_explore * (rows.rng.random(len(rows)) < self.epsilon)
        return np.where(at_random, rows.rng.integers(2, size=len(rows)), best)

    def learn(self, trajectories: Any) -> dict[str, float]:
        self.epsilons.add(self.epsilon)
        for one in trajectories:
            places = one.observations[:, 1:].argmax(axis=1)
            for t in range(len(one)):
                is_end = one.is_terminated and t == len(one) - 1
                after = 0.0 if is_end else GAMMA * self.values[places[t + 1]].max()
                self.values[places[t], one.actions[t]] = one.rewards[t] + after
        return {}

    def state(self) -> dict[str, Any]:
        return {"values": self.values, "epsilon": self.epsilon}

    def load(self, state: dict[str, Any]) -> None:
        self.values, self.epsilon = state["values"], state["epsilon"]


def in_corridor(env_steps: int, measure: Measure, **server: Any) -> Any:
    config = load_config({
        "simulation": {"env": f"{__name__}:Corridor"},
        "servers": {"all": {"agents": ["agent"], "while_learning": "wait", **server}},
    })  # fmt: skip
    (figures,) = train(config, env_steps, None, measure).values()
    return figures


def test_with_the_pages_potential_the_best_policy_stays_the_best(
    shown: Callable[[str, str], str],
) -> None:
    """By Ng, Harada and Russell 1999, the values are less by the potential and else unchanged."""
    learned: dict[str, Any] = {}

    def measure(served: Served) -> dict[str, float]:
        server = served.servers["all"]
        learned["trainer"] = server.policies.acting.learners["default"]  # type: ignore[attr-defined]
        learned["records"] = server.policies.drain_records()
        return {}

    diary = shown("own-trainer.md", "class Diary")
    in_corridor(3_000, measure, algorithm=f"{__name__}:TableQ", callbacks=diary)
    trainer = learned["trainer"]
    expected = best_values()
    assert expected.argmax(axis=1).tolist() == BEST
    np.testing.assert_allclose(trainer.values, expected - POTENTIAL[:, None], atol=1e-5)
    # The page's callback lowers epsilon for 9,000 env steps.
    told = learned["records"][-1]
    assert trainer.epsilon == pytest.approx(0.2 - told["env_steps"] / 50_000, abs=1e-4)
    assert min(trainer.epsilons) >= 0.02
    assert len(trainer.epsilons) > 1_000
    assert -2.5 <= told["learner"]["callbacks"]["last_return"] <= 3.0


# --- the bandit and the curriculum ----------------------------------------------------------


class Cues(ParallelEnv[str, np.ndarray, int]):
    """A game that pays for each action of each cue as the table says; the best action wins.

    Its `reset` gets the parameters of the page.
    """

    metadata = {"name": "cues"}
    table = np.array([[1.0, 0.25, -0.5], [0.0, 2.0, 0.5]])
    possible_agents = ["one"]
    told: list[Mapping[str, float]] = []

    def observation_space(self, agent: str) -> spaces.Box:
        return spaces.Box(0.0, 1.0, (2,), np.float32)

    def action_space(self, agent: str) -> spaces.Discrete:
        return spaces.Discrete(3)

    def reset(self, seed: int | None = None, options: Any = None) -> Any:
        self.told.append(options or {})
        self.agents, self.cue = ["one"], int(np.random.default_rng(seed).integers(2))
        return {"one": np.eye(2, dtype=np.float32)[self.cue]}, {"one": {}}

    def step(self, actions: Mapping[str, int]) -> Any:
        self.agents, action = [], actions["one"]
        won = {"win": float(action == self.table[self.cue].argmax())}
        seen = {"one": np.zeros(2, np.float32)}
        return (seen, {"one": self.table[self.cue, action]}, {"one": True}, {"one": False},
                {"one": won})  # fmt: skip


def test_the_pages_bandit_learns_through_the_pages_curriculum(
    shown: Callable[[str, str], str], monkeypatch: pytest.MonkeyPatch
) -> None:
    told: list[Mapping[str, float]] = []
    monkeypatch.setattr(Cues, "told", told)
    curriculum = yaml.safe_load(block("concepts.md", "parameters:"))["simulation"]["parameters"]
    del curriculum["side"]  # this parameter is for two agents
    config = load_config({
        "simulation": {"env": f"{__name__}:Cues", "parameters": curriculum,
                       "metrics": {"win": "last"}},
        "servers": {"all": {"algorithm": shown("own-trainer.md", "class Bandit"), "agents": ["*"]}},
    })  # fmt: skip
    lessons: list[float] = []
    with serve(config) as served, served.client() as client:
        progress = ParameterProgress(config.simulation.parameters, {})
        loop = EnvLoop(
            [served.simulation()], client, seeds=EpisodeSeeds(0), parameters=progress.now(0),
            metrics=config.simulation.metrics,
        )  # fmt: skip

        def note(episode: EpisodeResult) -> None:
            progress.note(episode.returns, episode.metrics)
            loop.parameters = progress.now(loop.num_env_steps)
            lessons.append(loop.parameters["distance"])

        loop.run(on_episode=note, should_stop=lambda: loop.num_env_steps >= 2_000)
        served.check()
        served.servers["all"].finish_training()
        learners: Any = served.servers["all"].policies.acting
        bandit = learners.learners["default"]
        greedy = {r.returns["one"] for r in served.evaluate(20)}
    np.testing.assert_allclose(bandit.sums / bandit.counts, Cues.table)
    assert greedy == {1.0, 2.0}, "the best of each cue"
    assert sorted(lessons) == lessons
    assert set(lessons) == {2, 4, 8}
    for lesson in (2, 4):
        assert lessons.count(lesson) >= 49, "a lesson takes 50 episodes"
    trained = [one for one in told if one][: len(lessons)]
    assert {one["size"] for one in trained} == {8}
    assert all(0.0 <= one["wind"] <= 2.0 for one in trained)
    assert len({one["wind"] for one in trained}) > 100
    for env_steps, speed in ((0, 1.0), (50_000, 2.0), (100_000, 3.0), (200_000, 3.0)):
        assert progress.now(env_steps)["speed"] == speed
