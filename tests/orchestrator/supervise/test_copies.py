"""Each copy of an environment in a run has a number of its own; its episodes end at a bound."""

from __future__ import annotations

from typing import Any

import gymnasium
import pytest
from tests.client.scripted_servers import CountingSimulation

from muxrl.orchestrator.config.schema import SimulationConfig
from muxrl.orchestrator.supervise.episodes import Bounded, make_copy

MADE: list[tuple[int, int, int]] = []


def of_rllib(config: Any) -> Any:
    MADE.append((config["index"], config.worker_index, config.vector_index))
    return gymnasium.make("CartPole-v1")


def test_every_copy_of_a_run_has_a_number_of_its_own() -> None:
    MADE.clear()
    simulation = SimulationConfig(
        f"{__name__}:of_rllib", {"index": "{index}"}, num_processes=2, num_envs_per_process=3
    )
    for process in range(3):  # the last process is the evaluation's
        for number in range(3):
            make_copy(simulation, process, number).close()
    assert [index for index, *_ in MADE] == list(range(9))
    assert len({rest for _, *rest in MADE for rest in [tuple(rest)]}) == 9
    assert [worker for _, worker, _ in MADE] == [1] * 3 + [2] * 3 + [3] * 3


@pytest.mark.parametrize(("own", "bound", "is_truncated"), [(9, 4, True), (4, 4, False)])
def test_an_episode_is_truncated_at_its_bound(own: int, bound: int, is_truncated: bool) -> None:
    bounded = Bounded(CountingSimulation(num_steps=own), bound)
    for number in range(2):
        bounded.reset(number)
        results = [bounded.step({"a": 0, "b": 0}) for _ in range(4)]
        assert [result.is_over for result in results] == [False, False, False, True]
        last = results[-1]
        assert last.observations == {}
        assert last.final_observations.keys() == {"a", "b"}
        assert last.truncations == ({"a": True, "b": True} if is_truncated else {})
        assert bounded.num_steps == 0
    assert (bounded.num_ended, bounded.num_truncated) == (2, 2 * is_truncated)
