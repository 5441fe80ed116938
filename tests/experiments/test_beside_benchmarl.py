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
from muxrl.experiments.studies.beside_benchmarl.settings import CASES, EPISODE_STEPS, OURS, SETTINGS
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

    def test_the_same_seeds_are_the_same_episodes(self) -> None:
        first, again = (
            evaluate(lambda _: nullcontext(stand_still), num_episodes=3) for _ in range(2)
        )
        assert first.tolist() == again.tolist()
        assert len(set(first)) == 3

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
def test_our_side_knows_all_that_it_is_told(algorithm: str) -> None:
    from muxrl.experiments.studies.beside_benchmarl.muxrl_side import config_of

    case = CASES[algorithm]
    for setting in SETTINGS:
        plan = prepare(config_of(case, OURS, setting, seed=0), needs_stop=False).servers[algorithm]
        assert plan.settings == dict(case.settings[setting].ours)


def test_a_time_limit_is_terminal_where_it_shall_be() -> None:
    from muxrl.experiments.studies.beside_benchmarl.muxrl_side import terminal_spread

    env = terminal_spread(**measure.task(has_continuous_actions=False))
    env.reset(seed=0)
    agents = list(env.agents)
    for t in range(1, EPISODE_STEPS + 1):
        _, _, terminations, truncations, _ = env.step(dict.fromkeys(agents, 0))
        assert terminations == dict.fromkeys(agents, t == EPISODE_STEPS)
        assert truncations == dict.fromkeys(agents, False)
    assert env.agents == []


class TestMeter:
    def test_the_clock_stands_still_while_it_measures(self, monkeypatch: Any) -> None:
        def slow_evaluation(new_episode: Any, *_: Any, **__: Any) -> np.ndarray:
            time.sleep(0.2)
            return np.array([1.0, 3.0])

        monkeypatch.setattr(measure, "evaluate", slow_evaluation)
        meter = Meter()
        meter.measure(0, lambda _: nullcontext(stand_still))
        meter.resume()
        time.sleep(0.05)
        meter.measure(500, lambda _: nullcontext(stand_still))
        meter.measure(500, lambda _: nullcontext(stand_still))
        walls = [point.wall_s for point in meter.points]
        assert walls[0] == 0.0
        assert 0.05 <= walls[1] < 0.2
        assert walls[2] == walls[1]
        assert meter.points[-1].return_mean == 2.0
        assert meter.last_returns == [1.0, 3.0]

    def test_processor_time_counts_child_processes(self) -> None:
        before = measure.processor_time_s()
        with subprocess.Popen([sys.executable, "-c", BUSY], stdin=subprocess.PIPE) as child:
            deadline = time.monotonic() + 30.0
            while measure.processor_time_s() - before < 0.25 and time.monotonic() < deadline:
                time.sleep(0.02)
            assert measure.processor_time_s() - before >= 0.25
            assert child.stdin is not None
            child.stdin.write(b"\n")


@pytest.mark.learning
@pytest.mark.usefixtures("rllib")
def test_our_side_makes_as_many_updates_as_its_matched_settings_say(monkeypatch: Any) -> None:
    from muxrl.experiments.studies.beside_benchmarl import muxrl_side

    monkeypatch.setattr(muxrl_side, "INTERVAL_ENV_STEPS", 2_000)
    run = muxrl_side.train(
        "qmix", "muxrl", "matched", seed=0, env_steps=4_000, started=time.monotonic()
    )
    assert [point.env_steps for point in run.points] == [0, 2_000, 4_000]
    # The other side makes 2 for every 25 env steps, after its first 250.
    expected = 2 * (run.num_updates_env_steps - 250) / 25
    assert run.num_updates == pytest.approx(expected, rel=0.1)
    assert run.points[-1].wall_s > run.points[1].wall_s > 0.0
