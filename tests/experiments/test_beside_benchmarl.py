from __future__ import annotations

import subprocess
import sys
import time
from contextlib import nullcontext
from typing import Any

import numpy as np
import pytest

from muxrl.experiments.studies.beside_benchmarl import measure
from muxrl.experiments.studies.beside_benchmarl.measure import NUM_AGENTS, Meter, evaluate, make_env
from muxrl.experiments.studies.beside_benchmarl.settings import CASES, OURS, SETTINGS
from muxrl.orchestrator.config import prepare

BUSY = "import time\nwhile time.process_time() < 0.3: pass\ninput()"


def stand_still(observations: Any, state: np.ndarray) -> dict[str, int]:
    return dict.fromkeys(observations, 0)


class TestEvaluate:
    def test_returns_are_the_environments_own_rewards_mean_over_agents(self) -> None:
        env = make_env()
        env.reset(seed=7)
        expected = 0.0
        while env.agents:
            rewards = env.step(dict.fromkeys(env.agents, 0))[1]
            expected += sum(rewards.values()) / NUM_AGENTS
        (measured,) = evaluate(lambda _: nullcontext(stand_still), num_episodes=1, first_seed=7)
        assert measured == pytest.approx(expected)

    def test_the_policy_sees_all_agents_and_the_state_at_every_step(self) -> None:
        seen = []

        def act(observations: Any, state: np.ndarray) -> dict[str, int]:
            seen.append(np.array_equal(state, np.concatenate(list(observations.values()))))
            return stand_still(observations, state)

        evaluate(lambda _: nullcontext(act), num_episodes=2)
        assert seen == [True] * 2 * measure.EPISODE_STEPS

    def test_continuous_actions_are_those_of_the_same_world(self) -> None:
        pushes = np.zeros(5, np.float32)
        (moved,) = evaluate(
            lambda _: nullcontext(lambda observations, _: dict.fromkeys(observations, pushes)),
            has_continuous_actions=True,
            num_episodes=1,
        )
        (stood,) = evaluate(lambda _: nullcontext(stand_still), num_episodes=1)
        assert moved == pytest.approx(stood)


@pytest.mark.usefixtures("rllib")
@pytest.mark.parametrize("algorithm", CASES)
def test_our_side_takes_all_settings_of_the_case(algorithm: str) -> None:
    from muxrl.experiments.studies.beside_benchmarl.muxrl_side import config_of

    case = CASES[algorithm]
    for setting in SETTINGS:
        plan = prepare(config_of(case, OURS, setting, seed=0), needs_stop=False).servers[algorithm]
        assert plan.settings == dict(case.settings[setting].ours)


class TestMeter:
    def test_the_clock_stands_still_while_it_measures(self, monkeypatch: Any) -> None:
        busy = iter((0.0, 5.0, 9.0, 9.5))
        monkeypatch.setattr(measure, "processor_time_s", lambda: next(busy))
        monkeypatch.setattr(measure, "evaluate", lambda *_, **__: np.array([1.0, 3.0]))
        meter = Meter()
        meter.measure(0, lambda _: nullcontext(stand_still))
        for _ in range(2):
            meter.resume()
            meter.measure(500, lambda _: nullcontext(stand_still))
        meter.measure(500, lambda _: nullcontext(stand_still))
        assert [point.processor_s for point in meter.points] == [0.0, 5.0, 5.5, 5.5]
        assert meter.points[-1].return_mean == 2.0

    def test_processor_time_counts_child_processes(self) -> None:
        before = measure.processor_time_s()
        with subprocess.Popen([sys.executable, "-c", BUSY], stdin=subprocess.PIPE) as child:
            deadline = time.monotonic() + 30.0
            while measure.processor_time_s() - before < 0.25 and time.monotonic() < deadline:
                time.sleep(0.02)
            assert measure.processor_time_s() - before >= 0.25
            child.stdin.write(b"\n")


@pytest.mark.night  # by day: tests of the meter and of our side's settings
@pytest.mark.learning
@pytest.mark.usefixtures("rllib")
def test_our_side_counts_the_updates_of_mappo(monkeypatch: Any) -> None:
    from muxrl.experiments.studies.beside_benchmarl import muxrl_side

    monkeypatch.setattr(muxrl_side, "INTERVAL_ENV_STEPS", 1_000)
    run = muxrl_side.train("mappo", "muxrl", "default", seed=0, env_steps=1_000)
    assert run.num_updates == 10 * run.num_updates_env_steps // 1_000 > 0
