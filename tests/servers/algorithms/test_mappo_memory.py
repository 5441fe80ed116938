"""Recurrent MAPPO: acting and learning remember the same, and absent agents nothing new."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tests.servers.algorithms.playing import (
    LSTM,
    Life,
    central_actors,
    central_spec,
    ignores_padding,
    learned,
    make,
)

from muxrl.protocol.dense import UNAVAILABLE
from muxrl.servers.agents.keys import ACTION_MASK, AGENT_ID, ALIVE, OBS, STATE
from muxrl.servers.agents.log_probs import LOG_PROB
from muxrl.servers.algorithms.actor_critic import ACTOR, IS_STEP, OWN
from muxrl.servers.algorithms.columns import ACTIONS, ADVANTAGES, TARGETS
from muxrl.servers.algorithms.mappo import MAPPO
from muxrl.servers.algorithms.rollout import Rollout


def policy(actors: Any) -> Any:
    return actors.learners["p"]


def recurrent(**settings: Any) -> Any:
    return make(MAPPO, central_spec(has_masks=True), LSTM, obs_agent_id=True, **settings)


def sequences(alive: list[list[int]]) -> dict[str, torch.Tensor]:
    """Returns observations ``[B, T, ...]`` of agents that are present at some steps."""
    num, length = len(alive), len(alive[0])
    return {
        OBS: torch.randn(num, length, 3),
        STATE: torch.randn(num, length, 4),
        AGENT_ID: torch.eye(2)[torch.arange(num) % 2][:, None].expand(num, length, 2),
        ALIVE: torch.tensor(alive, dtype=torch.float32)[..., None],
    }


def states_of(num: int) -> dict[str, torch.Tensor]:
    return {f"{name}.{part}": torch.randn(num, 5) for name in ("actor", "critic") for part in "hc"}


def at(t: Any, parts: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    return {key: part[:, t] for key, part in parts.items()}


_ALIVE = st.tuples(st.integers(1, 3), st.integers(1, 6)).flatmap(
    lambda size: st.lists(
        st.lists(st.integers(0, 1), min_size=size[1], max_size=size[1]),
        min_size=size[0],
        max_size=size[0],
    )
)


@given(_ALIVE, st.integers(0, 100))
def test_absent_steps_are_as_if_they_were_not_there(alive: list[list[int]], seed: int) -> None:
    torch.manual_seed(seed)
    net, parts, states = recurrent().net, sequences(alive), states_of(len(alive))
    without_alive = {key: part for key, part in parts.items() if key != ALIVE}
    with torch.no_grad():
        at_once, _ = net.unroll_one(ACTOR, parts, states)
        by_step, now = [], states
        for t in range(len(alive[0])):
            features, now = net.unroll_one(ACTOR, at(slice(t, t + 1), parts), now)
            by_step.append(features)
        for row, times in enumerate(alive):
            there = [t for t, is_there in enumerate(times) if is_there]
            mine = {key: value[row : row + 1] for key, value in states.items()}
            if there:
                seen = {key: part[row : row + 1, there] for key, part in without_alive.items()}
                alone, mine = net.unroll_one(ACTOR, seen, mine)
                for features in (at_once, torch.cat(by_step, 1)):
                    torch.testing.assert_close(features[row, there], alone[0])
            for part in "hc":
                torch.testing.assert_close(now[f"actor.{part}"][row], mine[f"actor.{part}"][0])


@pytest.mark.parametrize("is_there", [1, 0])
def test_an_absent_agent_keeps_its_memory_and_its_critic_goes_on(is_there: int) -> None:
    states = states_of(1)
    after = recurrent().net.unroll(sequences([[is_there]]), states)[2]
    for part in "hc":
        actor, critic = f"actor.{part}", f"critic.{part}"
        assert torch.equal(after[actor], states[actor]) is not bool(is_there)
        assert not torch.equal(after[critic], states[critic])


def test_the_critic_s_recurrent_state_and_the_actor_s_are_apart() -> None:
    net, parts, states, other = recurrent().net, sequences([[1, 1]]), states_of(1), states_of(1)
    for name, moves in (("actor", [True, False]), ("critic", [False, True])):
        mixed = {k: (other if k.startswith(name) else states)[k] for k in states}
        predicted = zip(net.unroll(parts, states)[:2], net.unroll(parts, mixed)[:2], strict=True)
        assert [not torch.equal(a, b) for a, b in predicted] == moves


@pytest.mark.parametrize("lengths", [(5, 5, 7), (12, 4, 5)])
def test_a_batch_equals_a_plain_loop_over_each_episode(lengths: Any) -> None:
    """A batch has the values, advantages and log-probabilities of a loop over each episode.

    Pieces end where a batch happens to end, and are cut into sequences of four; weights stay the
    same. 12 steps are whole sequences, behind which the last value follows.
    """
    gamma, lambda_ = 0.9, 0.8
    spec = central_spec(has_masks=True)
    actors = central_actors(MAPPO, spec, model=LSTM, lr=0.0, gamma=gamma, lambda_=lambda_)
    one, rng = policy(actors), np.random.default_rng(0)
    with torch.no_grad():  # far from the first weights, which hardly remember
        for parameter in one.net.parameters():
            parameter += 0.5 * torch.randn_like(parameter)
    actors.publish()
    lives = [
        Life(actors, rng, "a", "e1"),
        Life(actors, rng, "b", "e1"),
        Life(actors, rng, "a", "e2"),
    ]
    kept: list[Any] = [{k: torch.zeros(1, 5) for k in one.initial_state()} for _ in lives]
    for length in lengths:
        kinds = ["".join(rng.choice([*"aaa-x"], size=length)) for _ in lives]
        is_over = length == lengths[-1]
        ends = {"is_terminated": is_over}, {"is_truncated": is_over}, {}
        pieces = [x.play(k, **e) for x, k, e in zip(lives, kinds, ends, strict=True)]  # type: ignore[arg-type]
        columns = one.batch_of(Rollout.of(pieces))
        assert columns[IS_STEP].shape[1] <= 4
        found: dict[str, list[float]] = {"values": [], "advantages": [], "log_probs": []}
        for i, piece in enumerate(pieces):
            parts = {key: torch.from_numpy(part) for key, part in piece.parts.items()}
            values = []
            for t in range(length + 1):
                step = {key: part[None, t : t + 1] for key, part in parts.items()}
                with torch.no_grad():
                    inputs, value, after = one.net.unroll(step, kept[i])
                values.append(float(value))
                if t < length:
                    kept[i] = after
                    logits = inputs[0, 0].masked_fill(parts[ACTION_MASK][t] == 0, UNAVAILABLE)
                    found["log_probs"].append(float(logits.log_softmax(-1)[piece.actions[t]]))
            if piece.is_terminated:
                values[-1] = 0.0
            running, advantages = 0.0, []
            for t in reversed(range(length)):
                error = piece.rewards[t] + gamma * values[t + 1] - values[t]
                running = error + gamma * lambda_ * running
                advantages.append(running)
            found["advantages"] += advantages[::-1]
            found["values"] += values[:-1]
        values, advantages, log_probs = (np.array(numbers) for numbers in found.values())
        acted = np.array([kind == "a" for kind in "".join(kinds)])
        advantages_of_acted = advantages[acted]
        where, own = columns[IS_STEP], columns[IS_STEP] & columns[OWN]
        assert (columns[OWN][where].numpy() == acted).all()
        with torch.no_grad():
            predicted = one.predicted(columns)
            terms = one.distribution.terms(predicted[0], columns[ACTIONS])

        def close(got: torch.Tensor, wanted: np.ndarray) -> None:
            np.testing.assert_allclose(got.numpy(), wanted, rtol=1e-4, atol=1e-4)

        close(predicted[1][where], values)
        close(columns[TARGETS][where], values + advantages)
        standard = (advantages - advantages_of_acted.mean()) / advantages_of_acted.std()
        close(columns[ADVANTAGES][where], standard)
        close(terms.log_prob[own], log_probs[acted])
        close(columns[LOG_PROB][own], log_probs[acted])
        assert ignores_padding(one, columns)


def test_a_copy_that_acts_for_a_learner_follows_its_critic_too() -> None:
    """The acting copy has the learned critic, too, since it records the critic's recurrent
    states."""
    actors = central_actors(MAPPO, model=LSTM, normalize_values=True)
    rng = np.random.default_rng(0)
    learned(actors, Life(actors, rng).play("aa-aaxa"))
    theirs = actors.acting("p").net.state_dict()
    assert all(torch.equal(v, theirs[k]) for k, v in policy(actors).net.state_dict().items())
