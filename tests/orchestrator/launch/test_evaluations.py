"""An evaluation in which a server is lost: its conditions are compared, or not played."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import Future
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest

from muxrl.orchestrator.config import load_config, prepare
from muxrl.orchestrator.launch.evaluation import Evaluations
from muxrl.orchestrator.records.metrics import MetricsWriter, read_metrics
from muxrl.orchestrator.records.run_directory import RunDirectory
from muxrl.orchestrator.supervise.episodes import Played
from muxrl.orchestrator.supervise.process import ProcessReport


class Evaluated:
    """Plays nothing: notes which conditions it is asked for, and gives back what it is told."""

    def __init__(self, path: Path, *, is_external: bool) -> None:
        config = load_config(
            {
                "name": "tag",
                "simulation": {"env": "muxrl.experiments.simulations.two_step_game:TwoStepGame"},
                "servers": {
                    "one": {"algorithm": "PPO", "agents": ["agent_0"]},
                    "other": {"algorithm": "PPO", "agents": ["agent_1"]},
                },
                "stop": {"env_steps": 9_000},
                "evaluation": {"interval_env_steps": 1_000},
            }
        )
        self.run = RunDirectory.create(path, "tag", datetime(2026, 11, 22))
        self.metrics = MetricsWriter(self.run)
        self.asked: list[str | None] = []
        self.problem: Exception | None = None
        player: Any = self
        self.evaluations = Evaluations(
            prepare(config), {}, self.run, self.metrics, player, pytest.fail, gateway=lambda: player
        )
        if not is_external:
            self.evaluations._gateway, self.evaluations._callers = None, {"evaluation": player}

    def call(self, method: str, conditions: Any, *how: Any) -> Future[Any]:
        assert method == "evaluate"
        self.asked += [condition.key for condition in conditions]
        self.called = Future[Any]()
        if self.problem is not None:
            self.called.set_exception(self.problem)
        return self.called

    def play(self, *values: float) -> None:
        self.evaluations._write(
            [Played({"agent_0": (value,), "agent_1": (value,)}, {}) for value in values]
        )

    def rows(self) -> list[tuple[str | None, float]]:
        found = read_metrics(self.run.metrics / "evaluation.jsonl")
        return [(row["replaced"], row["returns"]["agent_0"][0]) for row in found]


@pytest.fixture
def evaluated(tmp_path: Path) -> Iterator[Evaluated]:
    one = Evaluated(tmp_path, is_external=False)
    yield one
    one.metrics.close()


@pytest.fixture
def external(tmp_path: Path) -> Iterator[Evaluated]:
    one = Evaluated(tmp_path, is_external=True)
    yield one
    one.metrics.close()


def test_with_the_same_weights_it_goes_on(evaluated: Evaluated) -> None:
    evaluated.evaluations.begin(4_000, 1.0)
    evaluated.play(1.0)
    evaluated.evaluations.note_server_restart("one", 4_000)
    evaluated.play(2.0)
    evaluated.play(3.0)
    assert evaluated.rows() == [(None, 1.0), ("one", 2.0), ("other", 3.0)]
    assert not evaluated.evaluations.is_running


def test_one_whose_policies_changed_before_the_first_condition_was_played_begins_again(
    evaluated: Evaluated,
) -> None:
    evaluated.evaluations.begin(4_000, 1.0)
    evaluated.evaluations.note_server_restart("one", 3_000)
    for value in (0.0, 1.0, 2.0, 3.0):
        evaluated.play(value)
    assert evaluated.rows() == [(None, 1.0), ("one", 2.0), ("other", 3.0)]
    assert evaluated.asked == [None, None, "one", "other"]


@pytest.mark.parametrize("is_final", [True, False])
def test_what_was_played_with_other_policies_is_dropped(
    evaluated: Evaluated, is_final: bool
) -> None:
    evaluated.evaluations.begin(4_000, 1.0, is_final=is_final)
    evaluated.play(1.0)
    evaluated.evaluations.note_server_restart("other", 0)
    evaluated.play(2.0)
    assert evaluated.rows() == [(None, 1.0)]
    assert not evaluated.evaluations.is_running
    why = "is not whole: server 'other' was lost in it" if is_final else ""
    assert why in evaluated.evaluations.given_up
    assert bool(evaluated.evaluations.given_up) == is_final
    evaluated.evaluations.begin(5_000, 2.0)
    evaluated.play(3.0)
    assert evaluated.rows()[1:] == [(None, 3.0)]


def test_external_simulations_are_given_all_conditions_at_once(external: Evaluated) -> None:
    """Else they train between two of them."""
    external.evaluations.begin(4_000, 1.0)
    assert external.asked == [None, "one", "other"]
    external.play(1.0, 2.0, 3.0)
    assert external.rows() == [(None, 1.0), ("one", 2.0), ("other", 3.0)]
    assert external.asked == [None, "one", "other"]
    assert not external.evaluations.is_running
    external.evaluations.begin(9_000, 2.0, is_final=True, not_updated={"one"})
    external.play(1.0, 2.0, 3.0)
    assert external.asked[3:] == [None, "one", "other", "other:untrained"]


@pytest.mark.parametrize("is_final", [True, False])
@pytest.mark.parametrize("values", [(), (1.0, 2.0)])
def test_an_evaluation_that_nobody_plays_to_its_end_is_missed_at_the_end(
    external: Evaluated, is_final: bool, values: tuple[float, ...]
) -> None:
    external.evaluations.begin(4_000, 1.0, is_final=is_final)
    external.play(*values)
    assert external.rows() == [(None, 1.0), ("one", 2.0)][: len(values)]
    assert not external.evaluations.is_running
    assert ("no simulation came" in external.evaluations.given_up) == is_final


@pytest.mark.parametrize("is_final", [True, False])
def test_a_gateway_that_cannot_evaluate_is_not_waited_for(
    external: Evaluated, is_final: bool
) -> None:
    """As where a server behind it is lost for longer than it waits."""
    lost = RuntimeError("server 'one' cannot be reached")
    external.problem = lost
    external.evaluations.begin(4_000, 1.0, is_final=is_final)
    external.evaluations.wait(pytest.fail)
    told = f"the evaluation at the end is not whole: the gateway could not play it: {lost}"
    assert external.evaluations.given_up == (told if is_final else "")


def test_it_says_what_it_plays_and_how_far_it_is(evaluated: Evaluated) -> None:
    evaluations, said = evaluated.evaluations, []
    evaluations.begin(4_000, 1.0, is_final=True)
    for value in (1.0, 2.0, 3.0, 4.0):
        evaluations.note(ProcessReport(under_way=(40, 7_000)))
        said.append(evaluations.text)
        evaluated.play(value)
    how_far = "40 of 100 episodes, 7,000 env steps into one"
    assert said == [
        f"evaluation at the end, {who}: {how_far}"
        for who in ("all as learned", "one at random", "other at random", "one untrained")
    ]
    assert evaluations.text == "evaluation at the end, other untrained: 0 of 100 episodes"
    evaluated.play(5.0)
    assert evaluations.text == ""


def test_it_says_how_many_episodes_were_too_long(evaluated: Evaluated) -> None:
    told: list[int] = []
    evaluated.evaluations._on_truncated = told.append
    evaluated.evaluations.begin(4_000, 1.0)
    for num in (3, 0, 2):
        evaluated.evaluations._write([Played({}, {}, num_truncated=num)])
    assert told == [3, 2]
