"""Frozen servers act like the live one when it was saved; evaluation does not affect learners."""

from __future__ import annotations

import dataclasses
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.servers.acted import act_on
from tests.servers.export.untrained import plan_of as untrained_plan
from tests.servers.export.untrained import save
from tests.servers.resumable import CASES, Served, assert_same, plan_of, refusal
from tests.servers.scripted_store import make_plan

from muxrl.protocol.messages import EndEpisode, StartEpisode, Step
from muxrl.protocol.spaces import Box, Discrete
from muxrl.servers.agents.observing import Observing
from muxrl.servers.checkpoints.checkpoint import STATE_FILE, Checkpoint
from muxrl.servers.config import ServerPlan
from muxrl.servers.fixed_policies.frozen import open_policies
from muxrl.servers.server import PolicyServer, make_policies
from muxrl.servers.trainers.acting import Actors
from muxrl.servers.trainers.entry import asked_of
from muxrl.servers.trainers.policies import TrainerPolicies
from muxrl.servers.training.policies import ServerProblem

T_PLAYED = 10


def with_policies(plan: ServerPlan, **policy_of: str) -> ServerPlan:
    agents = {
        a: dataclasses.replace(p, policy_id=policy_of[a], group=p.group)
        for a, p in plan.agents.items()
    }
    return dataclasses.replace(plan, agents=agents)


def live_plan(case: str) -> ServerPlan:
    if case == "A2C, two policies":
        return with_policies(plan_of("A2C"), a="one", b="two")
    if case == "QMIX, two teams":
        teams = {"pair": ("a", "b"), "rest": ("c", "d")}
        return make_plan("abcd", teams, algorithm="QMIX", settings=CASES["QMIX"][1])
    if case == "QMIX, stacked":
        return plan_of("QMIX", frame_stack=2)
    if case == "QMIX, mlp":
        return plan_of("QMIX", settings={**CASES["QMIX"][1], "agent": "mlp"})
    return plan_of(case)


def frozen_plan(plan: ServerPlan, path: Path, **settings: Any) -> ServerPlan:
    return dataclasses.replace(
        plan,
        algorithm="FROZEN",
        model={},
        settings={"checkpoint": str(path), **settings},
        normalize_observations=False,
        normalize_rewards=False,
        frame_stack=1,
    )


def actions(
    policies: Any, name: str, num: int = 3, *, at_once: bool = False, **start: Any
) -> list[Any]:
    """Plays episodes on scripted observations, one after another or all at once; returns their
    actions."""
    store, agents = policies.store, list(policies.store.plan.agents)
    found: list[Any] = [[] for _ in range(num)]
    together = [[*range(num)]] if at_once else [[i] for i in range(num)]
    for t, episodes in [(t, own) for own in together for t in range(T_PLAYED + 1)]:
        waiting = []
        for i in episodes:
            episode_id = f"{name}-{i}"
            rng = np.random.default_rng((i, t))
            seen = {agent: rng.normal(size=2).astype(np.float32) for agent in agents}
            if t == 0:
                store.accept(StartEpisode(episode_id, **start), 0.0)
            if t < T_PLAYED:
                waiting.append(store.accept(Step(episode_id, t, seen), 0.0))
            else:
                store.accept(EndEpisode(episode_id, t, True, final_observations=seen), 0.0)
        answers = act_on(policies.acting, *waiting) if waiting else []
        for i, answer in zip(episodes, answers, strict=False):
            found[i].append(
                {a: np.asarray(action).tolist() for a, action in answer.actions.items()}
            )
    return found


_CASES = [
    "PPO with an LSTM", "A2C, two policies", "MAPPO, normalised", "HAPPO", "QMIX, mlp",
    "QMIX, two teams", "DQN, stacked", "QMIX, stacked", "QPLEX",
]  # fmt: skip


@pytest.mark.parametrize("case", _CASES)
def test_a_frozen_server_acts_like_the_live_one(case: str, tmp_path: Path) -> None:
    plan = live_plan(case)
    agents = "".join(plan.agents)
    live = Served(plan)
    first = live.policies.acting.get("weights")
    live.play(0, 14, lambda number: agents)
    live.end()
    path = live.policies.save(tmp_path / "saved")
    assert path is not None
    learned = live.policies.acting.get("weights")
    with pytest.raises(AssertionError):
        assert_same(learned, first)
    expected = actions(live.policies, "live", mode="eval")

    frozen: Any = make_policies(frozen_plan(plan, path), pytest.fail)
    assert not isinstance(frozen, TrainerPolicies)
    assert_same(frozen.acting.get("weights"), learned)
    for mode, should_explore in (("eval", None), ("train", None), ("train", True)):
        name = f"{mode}-{should_explore}"
        assert actions(frozen, name, mode=mode, should_explore=should_explore) == expected
    assert actions(frozen, "at-once", at_once=True, mode="eval") == expected
    counts = frozen.store.counts
    assert (frozen.acting.weights_seq_no, frozen.iteration) == (0, 0)
    assert (counts.num_env_steps, counts.num_episodes) == (6 * T_PLAYED, 6)

    frozen = make_policies(frozen_plan(plan, path, should_explore=True), pytest.fail)
    explored = actions(frozen, "explored", mode="eval")
    assert explored != expected
    assert actions(frozen, "again", mode="eval") != explored  # with other random numbers


def test_a_checkpoint_that_does_not_fit_is_refused_before_serving(tmp_path: Path) -> None:
    live = Served(live_plan("A2C, two policies"))
    live.end()
    path = live.policies.save(tmp_path / "saved")
    assert path is not None
    plan = frozen_plan(live.policies.store.plan, path)
    renamed = with_policies(plan, a="three", b="three")
    assert "has no policy 'three', only one, two; name the" in refusal(renamed)
    settings = {**plan.settings, "policies": {"three": "one"}}
    make_policies(dataclasses.replace(renamed, settings=settings), pytest.fail)
    for names, told in (
        ({"four": "one"}, "names the policy 'four', which the server does not"),
        ({"one": "three"}, "has no policy 'three', only one, two"),
    ):
        settings = {**plan.settings, "policies": names}
        assert told in refusal(dataclasses.replace(plan, settings=settings))
    (path / STATE_FILE).write_bytes(b"broken")
    with pytest.raises(ServerProblem, match=r"cannot be loaded: \w+"):
        PolicyServer(plan)


@pytest.mark.parametrize("case", ["PPO", "QMIX, mlp"])
def test_evaluation_leaves_weights_and_the_training_s_random_numbers_alone(case: str) -> None:
    alone, evaluated = Served(live_plan(case)), Served(live_plan(case))
    for number in range(13):
        alone.play(number, number + 1)
        evaluated.play(number, number + 1)
        before = evaluated.policies.acting.get("weights")
        for explore in (True, False):
            name = f"{number}-{explore}"
            actions(evaluated.policies, name, 1, mode="eval", should_explore=explore)
        assert_same(evaluated.policies.acting.get("weights"), before)
    for one in (alone, evaluated):
        one.end()
        assert one.policies.acting.weights_seq_no > 1
    assert_same(evaluated.state(), alone.state())


def test_servers_of_one_process_draw_what_they_would_draw_alone(tmp_path: Path) -> None:
    """`muxrl evaluate --explore` runs all servers in threads of one process."""
    plan = untrained_plan("PPO", Box((2,)), Discrete(5))
    checkpoint = Checkpoint.open(save(plan, tmp_path))

    def drawn(acting: Actors) -> list[int]:
        seats = open_policies(checkpoint, {}).make_seats(plan, Observing(plan))
        asked = asked_of([seats["a"]], [np.zeros(2, np.float32)], plan.agents)
        return [int(acting.answer(asked).actions[0]) for _ in range(200)]

    def frozen() -> Actors:
        return open_policies(checkpoint, {}).make_inference(plan, should_explore=True)

    alone = drawn(frozen())
    assert len(set(alone)) > 1
    with ThreadPoolExecutor(2) as threads:
        assert list(threads.map(drawn, [frozen(), frozen()])) == [alone, alone]
