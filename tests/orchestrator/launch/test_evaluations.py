"""Evaluations whose policies change are dropped or begun again; a final one adds conditions."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from tests.servers.scripted_store import make_plan

from muxrl.orchestrator.config import load_config, prepare
from muxrl.orchestrator.launch.evaluation import Evaluations, final_conditions
from muxrl.orchestrator.records.conditions import Condition
from muxrl.orchestrator.records.metrics import MetricsWriter, read_metrics
from muxrl.orchestrator.records.run_directory import RunDirectory
from muxrl.orchestrator.supervise.episodes import Played
from muxrl.orchestrator.supervise.life import Supervisor
from muxrl.orchestrator.supervise.process import ProcessReport
from muxrl.servers.episodes.warnings import Warnings


class Player:
    """Plays nothing: notes which conditions are asked for, and returns what the test gives it."""

    def __init__(self) -> None:
        self.asked: list[str | None] = []
        self.problem: Exception | None = None
        self.caller = None
        self.is_up = asyncio.Event()
        self.is_up.set()
        self._called: asyncio.Future[Any] = asyncio.Future()

    def call(self, method: str, conditions: Any, *how: Any) -> asyncio.Future[Any]:
        assert method == "evaluate"
        self.asked += [condition.key for condition in conditions]
        self._called = asyncio.Future()
        if self.problem is not None:
            self._called.set_exception(self.problem)
        return self._called

    async def play(self, *values: float, num_truncated: int = 0) -> None:
        returns = [{"agent_0": (value,), "agent_1": (value,)} for value in values]
        self._called.set_result([Played(one, {}, num_truncated=num_truncated) for one in returns])
        await settled()


async def settled() -> None:
    """Lets all coroutines go on as far as they can."""
    for _ in range(10):
        await asyncio.sleep(0)


class Evaluated:
    """The evaluations of a run."""

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
        run = RunDirectory.create_at(path / "tag")
        self.file, self.metrics = run.metrics / "evaluation.jsonl", MetricsWriter(run)
        self.player, self.warnings = Player(), Warnings()
        player: Any = self.player
        records: Any = SimpleNamespace(metrics=self.metrics, warnings=self.warnings)
        self.evaluations = Evaluations(
            prepare(config),
            Supervisor(config, run),
            records,
            gateway=player,
        )
        if not is_external:
            self.evaluations._gateway = None

    async def begin(self, env_steps: int, time_s: float = 1.0, **how: Any) -> None:
        self.evaluations.begin(env_steps, time_s, **how)
        await settled()

    def rows(self) -> list[tuple[str | None, float]]:
        found = read_metrics(self.file)
        return [(row["replaced"], row["returns"]["agent_0"][0]) for row in found]


Test = Callable[[Evaluated], Coroutine[Any, Any, None]]
Run = Callable[..., None]


@pytest.fixture
def run(tmp_path: Path) -> Run:
    """Gives a function that runs a test of the evaluations of a run."""

    def run(test: Test, *, is_external: bool = False) -> None:
        async def with_evaluations() -> None:
            evaluated = Evaluated(tmp_path, is_external=is_external)
            await test(evaluated)
            evaluated.metrics.close()

        asyncio.run(with_evaluations())

    return run


def test_an_evaluation_whose_policies_change_in_the_first_condition_begins_again(
    run: Run,
) -> None:
    async def test(evaluated: Evaluated) -> None:
        await evaluated.begin(4_000)
        evaluated.evaluations.note_server_restart("one", 3_000)
        for value in (0.0, 1.0, 2.0, 3.0):
            await evaluated.player.play(value)
        assert evaluated.rows() == [(None, 1.0), ("one", 2.0), ("other", 3.0)]
        assert evaluated.player.asked == [None, None, "one", "other"]

    run(test)


@pytest.mark.parametrize("is_final", [True, False])
def test_what_was_played_with_other_policies_is_dropped(run: Run, is_final: bool) -> None:
    async def test(evaluated: Evaluated) -> None:
        evaluations = evaluated.evaluations
        await evaluated.begin(4_000, is_final=is_final)
        await evaluated.player.play(1.0)
        evaluations.note_server_restart("other", 0)
        await evaluated.player.play(2.0)
        assert evaluated.rows() == [(None, 1.0)]
        assert not evaluations.is_running
        why = "is incomplete: server 'other' was lost meanwhile" if is_final else ""
        assert why in evaluations.given_up
        assert bool(evaluations.given_up) == is_final
        await evaluated.begin(5_000)
        await evaluated.player.play(3.0)
        assert evaluated.rows()[1:] == [(None, 3.0)]

    run(test)


def test_external_simulations_play_all_conditions_at_once(run: Run) -> None:
    """Otherwise the simulations would train between two conditions."""

    async def test(external: Evaluated) -> None:
        await external.begin(4_000)
        assert external.player.asked == [None, "one", "other"]
        await external.player.play(1.0, 2.0, 3.0)
        assert external.rows() == [(None, 1.0), ("one", 2.0), ("other", 3.0)]
        assert external.player.asked == [None, "one", "other"]
        assert not external.evaluations.is_running
        await external.begin(9_000, is_final=True, not_updated={"one"})
        await external.player.play(1.0, 2.0, 3.0)
        assert external.player.asked[3:] == [None, "one", "other", "other:untrained"]

    run(test, is_external=True)


@pytest.mark.parametrize("is_final", [True, False])
@pytest.mark.parametrize("values", [(), (1.0, 2.0)])
def test_an_unfinished_evaluation_is_reported_only_if_it_is_the_last(
    run: Run, is_final: bool, values: tuple[float, ...]
) -> None:
    async def test(external: Evaluated) -> None:
        await external.begin(4_000, is_final=is_final)
        await external.player.play(*values)
        assert external.rows() == [(None, 1.0), ("one", 2.0)][: len(values)]
        assert not external.evaluations.is_running
        assert ("no simulation played all" in external.evaluations.given_up) == is_final

    run(test, is_external=True)


@pytest.mark.parametrize("is_final", [True, False])
def test_a_gateway_that_cannot_evaluate_is_not_waited_for(run: Run, is_final: bool) -> None:
    """A gateway cannot evaluate while a server behind it is lost for longer than it waits."""

    async def test(external: Evaluated) -> None:
        lost = RuntimeError("server 'one' cannot be reached")
        external.player.problem = lost
        await external.begin(4_000, is_final=is_final)
        await external.evaluations.wait()
        why = f"the gateway could not play its episodes: {lost}"
        told = f"the evaluation at the end is incomplete: {why}"
        assert external.evaluations.given_up == (told if is_final else "")

    run(test, is_external=True)


def test_an_evaluation_reports_its_condition_and_progress(run: Run) -> None:
    async def test(evaluated: Evaluated) -> None:
        evaluations, said = evaluated.evaluations, []
        await evaluated.begin(4_000, is_final=True)
        for value in (1.0, 2.0, 3.0, 4.0):
            evaluations.note(ProcessReport(under_way=(40, 7_000)))
            said.append(evaluations.text)
            await evaluated.player.play(value)
        how_far = "40 of 100 episodes, 7,000 env steps into one"
        assert said == [
            f"evaluation at the end, {who}: {how_far}"
            for who in ("all as learned", "one at random", "other at random", "one untrained")
        ]
        assert evaluations.text == "evaluation at the end, other untrained: 0 of 100 episodes"
        await evaluated.player.play(5.0)
        assert evaluations.text == ""

    run(test)


def test_an_evaluation_reports_how_many_episodes_were_too_long(run: Run) -> None:
    async def test(evaluated: Evaluated) -> None:
        await evaluated.begin(4_000)
        for num in (3, 0, 2):
            await evaluated.player.play(0.0, num_truncated=num)
        (warning,) = evaluated.warnings.found
        assert (warning.what, warning.num) == ("evaluation episodes truncated", 5)
        assert warning.text.startswith("evaluation episodes had not ended after 27,000 env steps")

    run(test)


WON = list(np.random.default_rng(0).choice([-1.0, 1.0], 40))
AGAINST = {"a": WON, "b": [-one for one in WON]}
DRAWN = {"a": [0.0] * 40, "b": [0.0] * 40}
A, B = Condition("both", "a", ("a",)), Condition("both", "b", ("b",))


def untrained(condition: Condition) -> Condition:
    return Condition(condition.server_id, condition.side, condition.agents, is_untrained=True)


def test_each_server_with_an_update_is_compared_with_its_untrained_policy() -> None:
    learning = {"one": make_plan("a"), "other": make_plan("b")}
    # The returns sum to zero, but no server is on both sides.
    returns = dict.fromkeys((None, *learning), AGAINST)
    found = list(final_conditions(returns, learning, {"other"}))
    assert found == [Condition("other", is_untrained=True)]
    assert list(final_conditions(returns, learning, ())) == []


def test_a_server_on_both_sides_is_replaced_on_one_side_at_a_time() -> None:
    learning = {"both": make_plan("ab")}
    returns = {None: DRAWN, "both": AGAINST}
    found = list(final_conditions(returns, learning, {"both"}))
    assert found == [A, B, untrained(A), untrained(B)]
    assert list(final_conditions(returns, learning, ())) == [A, B]


def test_a_team_on_both_sides_is_not_replaced_in_part_by_its_untrained_policy() -> None:
    returns = {None: AGAINST, "both": DRAWN}
    learning = {"both": make_plan("ab", groups={"team": ("a", "b")})}
    assert list(final_conditions(returns, learning, {"both"})) == [A, B]
    teams = {"both": make_plan("ab", groups={"a": ("a",), "b": ("b",)})}
    assert len(list(final_conditions(returns, teams, {"both"}))) == 4
