"""How often a process is started again, and how long others wait for it."""

from __future__ import annotations

import asyncio
import pickle
from collections import deque
from pathlib import Path
from threading import Thread
from typing import Any, cast

import pytest

from muxrl.client.adapters import SimulationError
from muxrl.client.env_loop import SimulationFailed
from muxrl.orchestrator.config import ExperimentConfig, SimulationConfig, TimeoutsConfig
from muxrl.orchestrator.errors import RunFailed
from muxrl.orchestrator.records.run_directory import RunDirectory
from muxrl.orchestrator.supervise.episodes import Patience
from muxrl.orchestrator.supervise.life import Supervisor
from muxrl.orchestrator.supervise.process import pop_all
from muxrl.orchestrator.supervise.restarts import Quota
from muxrl.orchestrator.supervise.simulations import Simulations
from muxrl.servers.config import RestartsConfig

DEATH = RunFailed("server 'ppo' died; its log: ppo.log")


def quota(max_restarts: int, within_s: float = 100.0) -> Quota:
    return Quota(RestartsConfig(max_restarts, within_s), "servers.ppo.restarts")


def test_a_process_that_dies_again_and_again_ends_the_run_with_the_reason() -> None:
    restarts = quota(2)
    restarts.take(DEATH, now=0.0)
    restarts.take(DEATH, now=1.0)
    with pytest.raises(RunFailed) as failure:
        restarts.take(DEATH, now=2.0)
    assert str(failure.value) == (
        f"{DEATH}; the process was started again 2 times within 100 s, as often as "
        "servers.ppo.restarts.max allows, and 2 times in all"
    )


def test_a_process_that_fails_again_at_the_same_place_ends_the_run() -> None:
    at_5, at_6 = (RunFailed("KeyError, so a failed", f"env.py:{line} KeyError") for line in (5, 6))
    restarts = quota(9)
    restarts.take(at_5, now=0.0)
    restarts.take(at_6, now=1.0)
    restarts.take(at_5, now=100.0)
    for death in (DEATH, DEATH):  # these deaths have no known place
        restarts.take(death, now=100.5)
    with pytest.raises(RunFailed, match=r"^KeyError, so a failed; the same line raised before"):
        restarts.take(at_6, now=100.9)


@pytest.mark.parametrize("raises", [KeyError("up"), ConnectionError("gone"), SimulationError("no")])
def test_the_place_of_a_fault_is_a_line_of_the_user_s_unless_the_fault_came_from_outside(
    raises: Exception,
) -> None:
    def step() -> None:
        raise raises

    try:
        step()
    except Exception as error:
        failed = pickle.loads(pickle.dumps(SimulationFailed.of("step", error)))
    assert str(raises) in str(failed)
    assert (failed.place == "") is isinstance(raises, OSError)
    assert (str(Path(__file__)) in failed.place) is isinstance(raises, KeyError | SimulationError)


def test_restarts_of_long_ago_do_not_count() -> None:
    restarts = quota(1)
    for now in (0.0, 100.0, 250.0):
        restarts.take(DEATH, now)
    with pytest.raises(RunFailed, match=r"again once within 100 s, .* and 3 times in all"):
        restarts.take(DEATH, now=349.9)
    restarts.take(DEATH, now=350.0)


def test_without_restarts_the_run_ends_with_the_problem_itself() -> None:
    with pytest.raises(RunFailed) as failure:
        quota(0).take(DEATH, now=0.0)
    assert failure.value is DEATH


def test_simulations_wait_until_a_lost_server_is_noticed_and_listens_again() -> None:
    timeouts = TimeoutsConfig(start_s=50.0, report_s=7.0, update_s=300.0)
    assert Patience.of(timeouts) == Patience(57.0, 300.0)


def test_the_first_report_of_a_simulation_waits_for_each_environment_to_be_made() -> None:
    config = ExperimentConfig(
        simulation=SimulationConfig(num_envs_per_process=3),
        timeouts=TimeoutsConfig(start_s=50.0, make_env_s=700.0),
    )
    nobody: Any = None
    simulations = Simulations(Supervisor(config, nobody), nobody, nobody)
    assert simulations._simulations[0]._first_s == 50.0 + 3 * 700.0


def test_an_error_of_a_gateway_that_cannot_be_started_is_reported(tmp_path: Path) -> None:
    class Full:
        """A machine on which no process can be started."""

        def start(self, *what: Any, **how: Any) -> Any:
            raise OSError(24, "Too many open files")

    config = ExperimentConfig(simulation=SimulationConfig(env="external"))
    supervisor = Supervisor(config, RunDirectory.create_at(tmp_path / "run"))
    supervisor.workers = cast(Any, Full())
    supervisor.may_restart = True

    async def no_server_has_died() -> None: ...

    simulations = Simulations(supervisor, cast(Any, print), no_server_has_died)

    async def begin() -> None:
        assert simulations.gateway is not None
        simulations.gateway.begin()
        await supervisor.unless_lost(asyncio.Event().wait())

    with pytest.raises(RunFailed, match=r"the gateway failed: OSError: .*Too many open files"):
        asyncio.run(asyncio.wait_for(begin(), 10.0))


def test_episodes_that_end_during_a_report_are_in_it_or_in_the_next() -> None:
    ended: deque[int] = deque()
    playing = Thread(target=lambda: [ended.append(n) for n in range(100_000)])
    playing.start()
    found: list[int] = []
    while playing.is_alive():
        found += pop_all(ended)
    assert found + pop_all(ended) == list(range(100_000))
