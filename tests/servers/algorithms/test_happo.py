"""HAPPO updates agent by agent, and weights advantages by the ratios of agents updated before."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from tests.servers.algorithms.playing import Life, central_actors, central_spec, learned
from tests.servers.resumable import Served, plan_of

from muxrl.protocol.messages import EndEpisode, StartEpisode, Step
from muxrl.servers.agents.keys import ALIVE, STATE
from muxrl.servers.algorithms.columns import ACTIONS, ADVANTAGES
from muxrl.servers.algorithms.happo import HAPPO, joint_steps
from muxrl.servers.algorithms.mappo import MAPPO
from muxrl.servers.episodes.trajectories import Trajectory
from muxrl.servers.trainers.acting import Actors
from muxrl.servers.trainers.failures import TrainerFailed

TEAM = {"a": "team", "b": "team"}

Played = Mapping[str, Mapping[str, tuple[str, int]]]
"""By episode and agent ("a~2" in its second life): a letter for each step, see `Life`, and the
number of steps before."""
PLAYED: Played = {
    "0": {"a": ("aaaa", 3), "b": ("a-xa", 3)},
    "1": {"a": ("-aa", 0), "b": ("aa", 0)},  # b's last step is in no batch
    "2": {"b": ("aaa", 5)},
    "3": {"a": ("aaaaaa", 2), "b": ("aaa", 4)},
}
LIVES: Played = {
    **PLAYED,
    "4": {"a": ("aaa", 0), "a~2": ("aa-a", 0), "b": ("aa-", 0), "b~2": ("aaaa", 0)},
    "5": {"a~2": ("aa", 2), "a~3": ("aaa", 0), "b~2": ("aa", 2), "b~3": ("aaa", 0)},
}
"""In episodes 4 and 5 the team has ended and come back, with steps that begin at 0 again."""


def actors_of(
    cls: Any = HAPPO, agents: str = "ab", teams: Mapping[str, str] = TEAM, **settings: Any
) -> Actors:
    """Returns the actors of agents with one policy each."""
    specs = [
        replace(
            central_spec(policy_id=a, seed=i, teams={a: teams[a]} if a in teams else {}),
            agents=(a,),
        )
        for i, a in enumerate(agents)
    ]
    return central_actors(cls, *specs, **{"lr": 0.01, **settings})


def play(actors: Actors, played: Played, seed: int = 0) -> list[Trajectory]:
    rng = np.random.default_rng(seed)
    pieces = []
    for episode, lives in played.items():
        for key, (steps, first) in lives.items():
            agent, _, number = key.partition("~")
            if agent in actors.learners:
                life = Life(actors, rng, agent, episode, int(number or 1), policy_id=agent)
                pieces.append(replace(life.play(steps), t=first))
    return pieces


def by_policy(pieces: list[Trajectory]) -> dict[str, list[Trajectory]]:
    return {a: own for a in "ab" if (own := [one for one in pieces if one.policy_id == a])}


def pi_of(actors: Actors, policy_id: str) -> torch.Tensor:
    trainer: Any = actors.learners[policy_id]
    weight: torch.Tensor = trainer.net.pi[-1].weight
    return weight.detach().clone()


class Order:
    """Stands for a random generator, but gives the same order every time."""

    def __init__(self, *order: int) -> None:
        self._order = order

    def permutation(self, num: int) -> np.ndarray:
        assert num == len(self._order)
        return np.array(self._order)


@contextmanager
def watched(actors: Actors) -> Iterator[list[tuple[str, dict[str, Any]]]]:
    """Gives what each policy learns from, in turn; in place of an update each moves at random."""
    seen: list[tuple[str, dict[str, Any]]] = []

    def learn_columns(one: Any, columns: dict[str, Any], *_: Any) -> dict[str, Any]:
        seen.append((one.policy.policy_id, columns))
        with torch.no_grad():
            for parameter in one.net.pi.parameters():
                parameter.add_(0.3 * torch.randn_like(parameter))
        return {}

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(HAPPO, "learn_columns", learn_columns)
        yield seen


# --- M --------------------------------------------------------------------------------------


@pytest.mark.parametrize("played", [PLAYED, LIVES], ids=["one life", "lives"])
@pytest.mark.parametrize("first", ["a", "b"])
def test_the_second_ones_advantages_are_weighted_by_the_firsts_ratios(
    first: str, played: Played
) -> None:
    actors, second = actors_of(), "ab".replace(first, "")
    trainers: Any = actors.learners
    trainers["a"].rng = Order(*map("ab".index, first + second))
    pieces = play(actors, played)
    raw = {}
    for a, own in by_policy(pieces).items():
        trainer = copy.deepcopy(trainers[a])
        raw[a] = trainer.batch_of(trainer.begin_batch(own))[ADVANTAGES].numpy()
    with watched(actors) as seen:
        learned(actors, *pieces)
    assert [a for a, _ in seen] == [first, second]
    (_, mine), (_, weighted) = seen
    np.testing.assert_array_equal(mine[ADVANTAGES], raw[first], "M is 1 for the first")

    with torch.no_grad():  # the first policy as it is after its update
        logits = trainers[first].predicted(mine)[0].numpy()
    log_probs = logits - np.log(np.exp(logits).sum(-1, keepdims=True))
    ratio_at: dict[tuple[str, str, int], float] = {}
    for row, (key, step) in enumerate(_rows(played, first)):
        if step == "a":
            new = log_probs[row, int(mine[ACTIONS][row])]
            ratio_at[key] = float(np.exp(new - float(mine["action_logp"][row])))
    expected = [ratio_at.get(key, 1.0) for key, _ in _rows(played, second)]
    assert sum(factor != 1.0 for factor in expected) >= 5
    assert 1.0 in expected
    assert not weighted[ADVANTAGES].requires_grad
    np.testing.assert_allclose(weighted[ADVANTAGES], raw[second] * expected, rtol=1e-4)


def test_the_third_one_s_advantages_are_weighted_by_both_before_it() -> None:
    actors = actors_of(agents="abc", teams=dict.fromkeys("abc", "team"))
    trainers: Any = actors.learners
    trainers["a"].rng, rng = Order(0, 1, 2), np.random.default_rng(0)
    pieces = [
        replace(Life(actors, rng, policy_id=a).play("aaaaa"), seat_id=a, id=f"e_{a}") for a in "abc"
    ]
    alone = copy.deepcopy(trainers["c"])
    raw = alone.batch_of(alone.begin_batch(pieces[2:]))[ADVANTAGES]
    with watched(actors) as seen:
        learned(actors, *pieces)
    first, second, third = (columns for _, columns in seen)
    ratios = trainers["a"].ratios(first), trainers["b"].ratios(second)
    torch.testing.assert_close(third[ADVANTAGES], raw * ratios[0] * ratios[1])


def _rows(played: Played, agent: str) -> list[tuple[tuple[str, str, int], str]]:
    """Returns the episode, life and step of each row of an agent's batch, and its letter."""
    return [
        ((episode, key[1:], first + i), step)
        for episode, lives in played.items()
        for key, (steps, first) in lives.items()
        if key[0] == agent
        for i, step in enumerate(steps)
    ]


@pytest.mark.parametrize("teams", [{"a": "one", "b": "other"}, {"a": "one"}, {}])
def test_agents_of_another_team_or_of_none_do_not_count(teams: dict[str, str]) -> None:
    actors = actors_of(teams=teams)
    pieces = play(actors, LIVES)
    expected = {}
    for a, own in by_policy(pieces).items():
        trainer: Any = copy.deepcopy(actors.learners[a])
        expected[a] = trainer.batch_of(trainer.begin_batch(own))[ADVANTAGES]
    with watched(actors) as seen:
        learned(actors, *pieces)
    assert sorted(a for a, _ in seen) == ["a", "b"]
    for a, columns in seen:
        assert torch.equal(columns[ADVANTAGES], expected[a])


# --- one after another ----------------------------------------------------------------------


def test_the_order_is_drawn_anew() -> None:
    actors = actors_of()
    pieces, orders = play(actors, PLAYED), []

    def order_of(one: Actors) -> str:
        with watched(one) as seen:
            learned(one, *pieces)
        return "".join(a for a, _ in seen)

    for _ in range(15):
        orders.append(order_of(actors))
    assert {"ab", "ba"} == set(orders)
    assert 3 < orders.count("ab") < 12


def test_all_epochs_of_one_come_before_the_next_ones() -> None:
    actors, order, told = actors_of(minibatch_size=7, num_epochs=2), [], []
    for a, one in actors.learners.items():
        trainer: Any = one
        trainer.note_progress = told.append

        def loss(*given: Any, a: str = a, loss: Any = trainer.loss, **how: Any) -> Any:
            order.append(a)
            return loss(*given, **how)

        trainer.loss = loss
    learned(actors, *play(actors, PLAYED))
    # The 13 rows of a are two minibatches, and so are the 12 of b.
    assert order == [order[0]] * 4 + [order[-1]] * 4
    assert order[0] != order[-1]
    assert told == [(i + 1) / 8 for i in range(8)]


@pytest.mark.parametrize("size", [None, 5])
def test_happo_of_one_agent_is_mappo_bit_for_bit(size: int | None) -> None:
    states, results = [], []
    for cls in (HAPPO, MAPPO):
        actors = actors_of(cls, "a", entropy_coeff=0.02, num_epochs=3, minibatch_size=size)
        before = pi_of(actors, "a")
        results.append([learned(actors, *play(actors, LIVES, seed)) for seed in range(3)])
        states.append(actors.get("state"))
        assert not torch.equal(pi_of(actors, "a"), before)
    np.testing.assert_equal(*states)
    np.testing.assert_equal(*results)


def test_on_a_server_rows_of_one_step_have_one_state() -> None:
    plan = plan_of("HAPPO", late_members="allow", agents_return=True)
    served = Served(replace(plan, settings={"train_batch_size_per_learner": 12, "num_epochs": 2}))
    store, rng, batches = served.policies.store, np.random.default_rng(0), []

    def learn_together(trainers: Any, played: Any) -> Any:
        batches.append((played, joint_steps(trainers, played)))
        return HAPPO.learn_together(trainers, played)

    actors: Any = served.policies.acting
    for one in actors.learners.values():
        one.learn_together = learn_together
    asked_in = (["a", "ab", "ab", "b", "a", "ab", "b"], ["b", "b", "ab"] * 4)
    asked_in = *asked_in, ["ab", "ab", "ab", "b", "a", "ab", "a", "b", "ab"]
    for number, asked in enumerate(asked_in):
        store.accept(StartEpisode(str(number)), 0.0)
        for t, agents in enumerate(asked):
            seen = {agent: rng.random(2, np.float32) for agent in agents}
            rewards = dict.fromkeys(asked[t - 1], 1.0) if t else {}
            # In the last episode both agents end twice with the step before, and come back at once.
            ends = dict.fromkeys("ab", True) if number == 2 and t in (2, 5) else {}
            served._act(store.accept(Step(str(number), t, seen, rewards, ends), 0.0))
            store.finish_frame()
        store.accept(
            EndEpisode(str(number), len(asked), terminations=dict.fromkeys("ab", True)), 0.0
        )
        store.finish_frame()
        served.wait()
    served.end()
    assert not served.problems
    assert len(batches) == 2
    for played, steps in batches:
        state_at = []
        for a in "ab":
            states = np.concatenate([one.parts[STATE][:-1] for one in played[a]])
            state_at.append(dict(zip(steps[a].tolist(), states.tolist(), strict=True)))
        assert state_at[0] == state_at[1]
        assert len(state_at[0]) == 12
        assert not all(one.parts[ALIVE][:-1].all() for one in played["a"])


# --- refusals -------------------------------------------------------------------------------


def test_agents_that_share_a_policy_are_refused() -> None:
    actors = actors_of(agents="a")
    rng = np.random.default_rng(0)
    pieces = [Life(actors, rng, a, policy_id="a").play("aa") for a in "ab"]
    with pytest.raises(TrainerFailed, match=r"policy 'a' acts for \['a', 'b'\]; give each agent"):
        learned(actors, *pieces)


def test_settings_without_meaning_are_refused() -> None:
    assert "obs_agent_id" not in HAPPO.Settings().values()
    assert HAPPO.Settings().model.refused.keys() == {"use_lstm", "vf_share_layers"}
    assert MAPPO.Settings().values() == {**HAPPO.Settings().values(), "obs_agent_id": False}
