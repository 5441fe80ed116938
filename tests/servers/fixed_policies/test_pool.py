"""A pool: which member is drawn for an episode, what is refused, and how a pool resumes."""

from __future__ import annotations

import dataclasses
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.servers.acted import actions_of, played
from tests.servers.fixed_policies.test_fixed_policies import (
    FIVE,
    SEEN,
    make,
    plan,
    resumed,
)
from tests.servers.scripted_store import count, make_plan

from muxrl.protocol.errors import NotServing
from muxrl.protocol.messages import EndEpisode, Started, StartEpisode, Step
from muxrl.servers.checkpoints.live import LiveCheckpoint
from muxrl.servers.config import ServerPlan
from muxrl.servers.fixed_policies.entry import PoolAlgorithm
from muxrl.servers.fixed_policies.pool import (
    Pool,
    PoolMember,
    PoolPolicies,
    Result,
    weigh,
)
from muxrl.servers.lookup import find
from muxrl.servers.server import make_policies
from muxrl.servers.setting_values import AlgorithmProblem
from muxrl.servers.trainers.plain_state import from_plain, to_plain

FROZEN = {"algorithm": "FROZEN"}
CONSTANT = "tests.servers.fixed_policies.test_fixed_policies:make_constant"


def always(action: int, **more: Any) -> dict[str, Any]:
    return {"algorithm": "SCRIPTED", "policy": CONSTANT, "kwargs": {"action": action}, **more}


def pool_plan(**settings: Any) -> ServerPlan:
    settings.setdefault("members", {f"always_{i}": always(i, weight=i) for i in (1, 2, 3)})
    return plan("POOL", FIVE, **settings)


def pool_of(plan: ServerPlan) -> tuple[PoolPolicies, Pool]:
    policies = make(plan)
    assert isinstance(policies, PoolPolicies)
    assert isinstance(policies.acting, Pool)
    return policies, policies.acting


def play(policies: PoolPolicies, e: str, reward: float = 0.0, **start: Any) -> tuple[str, int]:
    """Plays an episode of one step; returns the member that played, and the action of agent "a"."""
    started = policies.store.accept(StartEpisode(e, **start), 0.0)
    assert isinstance(started, Started)
    pending = policies.store.accept(Step(e, 0, {"a": SEEN, "b": SEEN}), 0.0)
    actions = actions_of(policies.acting, pending)
    policies.store.accept(EndEpisode(e, 1, rewards={"a": reward}), 0.0)
    return started.member, int(actions["a"])


# --- the law --------------------------------------------------------------------------------


def test_the_seed_and_the_episode_alone_decide_on_the_member() -> None:
    first, again = pool_of(pool_plan())[0], pool_of(pool_plan())[0]
    other = pool_of(dataclasses.replace(pool_plan(), seed=8))[0]
    drawn = [[play(p, f"e{i}")[0] for i in range(60)] for p in (first, again, other)]
    assert drawn[0] == drawn[1] != drawn[2]
    # The episodes before do not matter.
    assert play(pool_of(pool_plan())[0], "e59")[0] == drawn[0][59]


def test_episodes_of_one_seed_meet_one_member_whatever_their_ids() -> None:
    policies, _ = pool_of(pool_plan())
    for mode in ("train", "eval"):
        drawn = [
            [play(policies, f"{mode}{n}-{i}", seed=i, mode=mode)[0] for i in range(30)]
            for n in range(2)
        ]
        assert drawn[0] == drawn[1]
        assert len(set(drawn[0])) == 3


def test_members_are_drawn_by_their_weights() -> None:
    policies, _ = pool_of(pool_plan())
    played = [play(policies, f"e{i}") for i in range(1_200)]
    assert {f"always_{action}" == member for member, action in played} == {True}
    counts = Counter(action for _, action in played)
    for action in (1, 2, 3):  # within five deviations
        share = action / 6
        assert abs(counts[action] / 1_200 - share) < 5 * (share * (1 - share) / 1_200) ** 0.5


@pytest.mark.parametrize(
    ("draw", "weights"),
    [
        ("weights", [2.0, 2.0, 2.0]),
        ("recency", [1.0, 2.0, 3.0]),  # the newest comes last
        ("hard", [2 * 1.0, 2 * 0.25, 2 * 0.0]),  # (1 - p)^2
        ("even", [2 * 0.0, 2 * 0.25, 2 * 0.0]),  # p (1 - p)
    ],
)
def test_weights_of_an_entry(draw: Any, weights: list[float]) -> None:
    assert weigh(6.0, [0.0, 0.5, 1.0], draw) == pytest.approx(weights, abs=0.0021)
    assert min(weigh(6.0, [0.0, 0.5, 1.0], draw)) > 0  # every member is met again some time


# --- win rates ------------------------------------------------------------------------------


def test_a_win_rate_is_a_running_mean_that_forgets() -> None:
    result = Result()
    for value in (-1.0, -1.0, 0.0, 2.0):  # lost twice, drawn, won
        result.add({"a": value, "b": 0.0}, 0.0)
    assert result.beaten == pytest.approx((0.5 + 1 + 1 + 0.5 + 0) / 5)
    assert (result.num_episodes, result.mean_return) == (4, 0.0)
    for _ in range(1_000):
        result.add({"a": -1.0}, 0.0)
    assert result.beaten > 0.99
    for _ in range(100):
        result.add({"a": 3.0}, 0.0)
    assert 0.3 < result.beaten < 0.45  # e^-1 of the rate before


def test_a_win_is_by_the_sum_and_a_return_a_mean_over_agents() -> None:
    result = Result()
    result.add({"a": 1.0, "b": 0.5}, 1.25)
    assert (result.beaten, result.mean_return) == (0.25, 0.75)


def test_a_member_that_is_not_beaten_is_met_more_often() -> None:
    policies, pool = pool_of(
        pool_plan(draw="hard", members={"weak": always(1), "strong": always(2)}, win_above=0.5)
    )
    for i in range(400):
        started: Any = policies.store.accept(StartEpisode(f"r{i}"), 0.0)
        rewards = {"a": float(started.member == "strong")}
        policies.store.accept(EndEpisode(f"r{i}", 0, rewards=rewards), 0.0)
    assert pool.results["strong"].beaten < 0.1 < 0.9 < pool.results["weak"].beaten
    training = Counter(play(policies, f"t{i}")[0] for i in range(200))
    assert training["strong"] > 4 * training["weak"]
    # Evaluations draw by weights, and do not change the win rates.
    before = {name: vars(result).copy() for name, result in pool.results.items()}
    measured = Counter(play(policies, f"m{i}", mode="eval")[0] for i in range(200))
    assert 70 < measured["strong"] < 130
    assert {name: vars(result) for name, result in pool.results.items()} == before


def test_a_resumed_pool_has_the_same_win_rates(tmp_path: Path) -> None:
    given = pool_plan(draw="even", members={"a": always(1), "chance": {"algorithm": "random"}})
    policies, pool = pool_of(given)
    for i in range(20):
        play(policies, f"e{i}", reward=1.0)
    (record,) = policies.drain_records()
    assert policies.drain_records() == []
    assert (record["iteration"], record["episodes"]) == (1, 20)
    assert record["learner"].keys() == {"a", "chance"}
    assert sum(member["num_episodes"] for member in record["learner"].values()) == 20
    assert sum(member["share"] for member in record["learner"].values()) == pytest.approx(1.0)
    policies.save(tmp_path / "pool")
    again, resumed_pool = pool_of(resumed(given, tmp_path / "pool"))
    assert (again.iteration, again.drain_records()) == (1, [])
    assert resumed_pool.results == pool.results
    assert resumed_pool.results["a"].num_episodes > 0
    assert [play(again, f"n{i}") for i in range(20)] == [play(policies, f"n{i}") for i in range(20)]


# --- steps of several members at once -------------------------------------------------------


# --- what is refused ------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("settings", "story"),
    [
        ({"members": {}}, "needs the setting 'members'"),
        ({"members": {"a": always(1)}, "draw": "often"}, "one of weights, recency, hard, even"),
        ({"members": {"a": always(1)}, "draw": "nash"}, "draws nash and alpha_rank, and no others"),
        ({"members": {"a": always(1)}, "games": "folder"}, "need the setting 'games': the folder"),
        ({"members": {"a": {}}}, "member 'a': is {}; expected one of live"),
        ({"members": {"a": "random"}}, "member 'a': is 'random'; expected one of live"),
        ({"members": {"a": {"live": "x", "snapshots": "x"}}}, "expected one of live"),
        ({"members": {"a@1": {"live": "x"}}}, "use letters"),
        ({"members": {"a@b": {"algorithm": "RANDOM"}}}, "use letters"),
        ({"members": {"a": {"live": "x", "last": 3}}}, "member 'a': has no setting 'last'"),
        ({"members": {"a": {"snapshots": "x", "lats": 3}}}, "'lats'; did you mean 'last'?"),
        ({"members": {"a": {"snapshots": "x", "last": 0}}}, "last must be a whole number"),
        ({"members": {"a": {"live": 3}}}, "member 'a': live must be the name of a server, not 3"),
        ({"members": {"a": {"live": "x", "weight": 0}}}, "weight must be above 0"),
        ({"members": {"a": {"live": "x", "weight": "much"}}}, "weight must be a number"),
        ({"members": {"a": {"algorithm": "PPO"}}}, "'PPO' is not FROZEN, SCRIPTED or RANDOM"),
        ({"members": {"a": {"algorithm": "POOL"}}}, "'POOL' is not FROZEN"),
        ({"members": {"a": FROZEN}}, "member 'a': FROZEN needs the setting"),
        (
            {"members": {"a": {**FROZEN, "checkpoint": "/no"}}},
            "'a': there is no checkpoint at '/no'",
        ),
    ],
)
def test_settings_that_make_no_sense_are_refused(settings: dict[str, Any], story: str) -> None:
    with pytest.raises(AlgorithmProblem, match="POOL") as refusal:
        PoolAlgorithm(settings, {})
    assert story in str(refusal.value)


def test_policies_that_do_not_change_may_be_called_as_snapshots_are() -> None:
    members = {f"past@{i}": always(i, weight=i) for i in (1, 2)}
    policies, pool = pool_of(pool_plan(members=members))
    assert members_of(pool) == ["past@1", "past@2"]
    assert {play(policies, f"e{i}") for i in range(20)} == {("past@1", 1), ("past@2", 2)}


def test_no_episode_begins_without_a_member() -> None:
    policies, _ = pool_of(pool_plan(members={"now": {"live": "main"}}))
    with pytest.raises(NotServing, match=r"'fixed' has no member to play yet: .* a run provides"):
        policies.store.accept(StartEpisode("e"), 0.0)


# --- what a run brings ----------------------------------------------------------------------


@pytest.fixture(scope="module")
def main(rllib: None) -> Any:
    given = {"model": {"fcnet_hiddens": [4]}, "normalize_observations": True}
    policies: Any = make_policies(make_plan(acts=FIVE, server_id="main", **given), pytest.fail)
    return policies


def members_of(pool: Pool) -> list[str]:
    return [member.name for member, _ in pool.weights("weights")]


def certain(live: LiveCheckpoint, action: int) -> LiveCheckpoint:
    """Returns the checkpoint with weights for which one action is all but certain."""
    weights = from_plain(live.weights["default"])
    (bias,) = (one for one in weights.values() if one.shape == (5,))
    bias[:] = 0.0
    bias[action] = 50.0
    return dataclasses.replace(live, weights={"default": to_plain(weights)})


def test_the_newest_weights_act_and_stand_for_snapshots_until_there_are_some(
    main: Any, tmp_path: Path
) -> None:
    given = pool_plan(members={"now": {"live": "main"}, "past": {"snapshots": "main", "last": 2}})
    policies, pool = pool_of(given)
    live = main.live()
    assert live.about["weights_seq_no"] == 0
    policies.sync("main", {}, certain(live, 2))
    assert members_of(pool) == ["now", "past"]
    assert {play(policies, f"a{i}")[1] for i in range(10)} == {2}
    policies.sync("main", {}, certain(live, 4))
    assert {play(policies, f"b{i}")[1] for i in range(10)} == {4}
    paths = {}
    for env_steps in (100, 200, 300):
        main.save(paths.setdefault(env_steps, tmp_path / str(env_steps) / "main"))
    snapshots = {n: str(path) for n, path in paths.items()}
    policies.sync("main", {100: snapshots[100]}, certain(live, 1))
    assert members_of(pool) == ["now", "past@100"]
    kept = pool.members["past"][0]
    policies.sync("main", {n: snapshots[n] for n in (100, 200)}, None)
    assert pool.members["past"][0] is kept
    policies.sync("main", snapshots, None)
    assert members_of(pool) == ["now", "past@200", "past@300"]
    played = Counter(play(policies, f"c{i}", reward=-1.0) for i in range(60))
    assert {member for member, _ in played} == {"now", "past@200", "past@300"}
    assert {action for member, action in played if member == "now"} == {1}

    # A resumed pool has the same members, once the run has sent them, and the same rates.
    policies.save(tmp_path / "pool")
    again, resumed_pool = pool_of(resumed(given, tmp_path / "pool"))
    assert members_of(resumed_pool) == []
    again.sync("main", snapshots, certain(live, 1))
    assert members_of(resumed_pool) == members_of(pool)
    assert [w for _, w in resumed_pool.weights("hard")] == pytest.approx(
        [w for _, w in pool.weights("hard")]
    )
    assert [play(again, f"d{i}") for i in range(30)] == [play(policies, f"d{i}") for i in range(30)]


def test_statistics_come_with_the_weights(main: Any) -> None:
    policies, pool = pool_of(pool_plan(members={"now": {"live": "main"}}))
    policies.sync("main", {}, main.live())
    (member,) = pool.members["now"]
    assert isinstance(member, PoolMember)
    seat: Any = member.seats.seats["a"]
    before = seat.agents[0].read(np.full(2, 7.0, np.float32))
    live = main.live()
    count(main._normalization.observing, {"a": np.full(2, 7.0)})
    count(main._normalization.observing, {"a": np.full(2, 5.0)})
    policies.sync("main", {}, main.live())
    after = seat.agents[0].read(np.full(2, 7.0, np.float32))
    assert before.tolist() == [7.0, 7.0] != after.tolist()
    assert live.about["server_id"] == "main"


@pytest.mark.parametrize(
    ("algorithm", "more"),
    [
        ("PPO", {"model": {"fcnet_hiddens": [8]}}),
        ("PPO", {"model": {"fcnet_hiddens": [8], "use_lstm": True}}),
        ("PPO", {"model": {"fcnet_hiddens": [8]}, "frame_stack": 2}),
        ("MAPPO", {"groups": {"team": ("a", "b")}}),
        ("DQN", {}),
        ("QMIX", {"groups": {"team": ("a", "b")}}),
    ],
)
def test_live_weights_act_as_a_checkpoint_of_the_same_moment(
    algorithm: str, more: dict[str, Any], rllib: None, tmp_path: Path
) -> None:
    seating = find(algorithm).seating
    own = seating.with_groups(make_plan(acts=FIVE, algorithm=algorithm, **more))
    learner: Any = make_policies(own, pytest.fail)
    learner.save(tmp_path / "learner")
    groups = more.get("groups", {})
    frozen = plan("FROZEN", FIVE, checkpoint=str(tmp_path / "learner"))
    frozen = seating.with_groups(dataclasses.replace(frozen, groups=groups))
    pool = pool_plan(members={"now": {"live": "main"}}, should_explore=False)
    unlike = {a: dataclasses.replace(agent, policy_id=a) for a, agent in pool.agents.items()}
    pool = dataclasses.replace(pool, groups=groups, agents=unlike if groups else pool.agents)
    policies, _ = pool_of(pool)
    for _ in range(2):  # the second time replaces the weights of the existing member
        policies.sync("main", {}, learner.live())
    rng = np.random.default_rng(0)
    observations = [{a: rng.normal(size=2).astype(np.float32) for a in "ab"} for _ in range(12)]
    assert answers_of(policies, observations) == answers_of(make(frozen), observations)


SB3 = {"batch_env_steps": 8, "total_timesteps": 100}


@pytest.mark.parametrize(
    ("algorithm", "settings"),
    [
        ("tests.servers.trainers.brought:Counting", {}),
        ("tests.servers.trainers.brought:WithCopies", {}),
        ("SB3_PPO", SB3),
        ("SB3_DQN", SB3),
        ("RLLIB_PPO", {}),
        ("RLLIB_DQN", {}),
    ],
)
def test_weights_of_trainers_of_one_s_own_are_followed_and_frozen(
    algorithm: str, settings: dict[str, Any], rllib: None, tmp_path: Path
) -> None:
    """Weights are followed as live weights and as snapshots, with the statistics of
    observations."""
    given = {"algorithm": algorithm, "settings": settings, "normalize_observations": True}
    own = make_plan(acts=FIVE, server_id="main", **given)
    learner: Any = make_policies(own, pytest.fail)
    members = {"now": {"live": "main"}, "past": {"snapshots": "main", "last": 1}}
    policies, pool = pool_of(pool_plan(members=members, should_explore=False))
    rng = np.random.default_rng(0)
    observations = [{a: rng.normal(size=2).astype(np.float32) for a in "ab"} for _ in range(12)]
    told = []
    for number in range(3):
        trainer = learner.acting.learners["default"]
        weights = trainer.weights()
        if "num_updates" in weights:
            weights["num_updates"] = number
        for bias in [one for one in weights.values() if np.shape(one) == (5,)]:
            bias[number] += 50 * (number + 1)  # the likeliest action, whatever it observes
        trainer.set_weights(weights)
        learner.acting.publish()
        count(learner._normalization.observing, {"a": np.full(2, number + 7.0)})
        policies.sync("main", {}, learner.live())
        learner.save(path := tmp_path / str(number))
        frozen = make(plan("FROZEN", FIVE, checkpoint=str(path)))
        told.append(answers_of(policies, observations))
        assert told[-1] == answers_of(frozen, observations)
    assert told[0] != told[1] != told[2] != told[0]
    assert members_of(pool) == ["now", "past"]
    policies.sync("main", {100: str(tmp_path / "1")}, learner.live())
    assert members_of(pool) == ["now", "past@100"]
    drawn = [play(policies, f"e{i}") for i in range(40)]
    assert {action for member, action in drawn if member == "past@100"} == {told[1][0]["a"]}
    assert {action for member, action in drawn if member == "now"} == {told[2][0]["a"]}


def test_a_member_that_acts_for_training_does_not_train(rllib: None) -> None:
    """Stable-Baselines3's DQN explores less the more it acts; as a member it explores like its
    server."""
    own = make_plan(acts=FIVE, algorithm="SB3_DQN", server_id="main", settings=SB3)
    learner: Any = make_policies(own, pytest.fail)
    trainer = learner.acting.learners["default"]
    trainer._model.exploration_rate = 1.0
    policies, pool = pool_of(pool_plan(members={"now": {"live": "main"}}))
    policies.sync("main", {}, learner.live())
    assert len({play(policies, f"e{i}")[1] for i in range(60)}) == 5
    (member,) = pool.members["now"]
    inner: Any = member.acting
    copy = inner.learners["default"]._model
    assert (copy.exploration_rate, copy.num_timesteps) == (1.0, 0)


def answers_of(policies: Any, observations: list[dict[str, Any]]) -> list[dict[str, Any]]:
    steps = played(policies, f"episode {policies.store.counts.num_episodes}", observations)
    return [step.answer().actions for step in steps]
