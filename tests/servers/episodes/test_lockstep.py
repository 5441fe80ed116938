"""Episodes that stay together in rows: who leaves or joins is seen, and nothing is held long."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from tests.servers.episodes.test_row_reader import played, step_of
from tests.servers.episodes.test_rows import EPISODES, Player
from tests.servers.scripted_store import make_plan

from muxrl.protocol.errors import EpisodeGone, OutOfOrder
from muxrl.protocol.messages import AbortEpisode, EndEpisode, StartEpisode, StepRows
from muxrl.servers.agents.seating import Seating
from muxrl.servers.episodes.rows import RowStep


def rows_of(player: Player, steps: list[Any]) -> StepRows:
    (item,) = player.packing.pack(steps)
    assert isinstance(item, StepRows)
    return item


def accept(player: Player, steps: list[Any]) -> Any:
    return player.store.store.accept_rows(rows_of(player, steps), 0.0)


def test_episodes_stay_together_and_others_take_the_rows_of_those_that_end() -> None:
    player = played(4)
    store = player.store.store
    together = store._open["e0"].lockstep
    assert together is not None
    player.tell([EndEpisode("e1", 4, rewards={"a": 1.0}), StartEpisode("next")])
    player.tell([step_of("e0", 4), step_of("next", 0), step_of("e2", 4)])
    assert {store._open[e].lockstep for e in ("e0", "next", "e2")} == {together}
    player.tell([step_of("e0", 5), step_of("next", 1), step_of("e2", 5)])
    assert [store._open[e].t for e in ("e0", "next", "e2")] == [6, 2, 6]
    assert store.counts.num_env_steps == 4 + 2 * 5 + 1


def test_an_episode_that_was_aborted_is_no_part_of_the_next_step() -> None:
    player = played(3)
    store = player.store.store
    store.accept(AbortEpisode("e1"), 0.0)
    steps = accept(player, [step_of(e, 3) for e in EPISODES])
    assert isinstance(steps, list), "they are read one by one"
    player._tell(steps[0])
    with pytest.raises(EpisodeGone, match="e1 is over"):
        player._tell(steps[1])
    player._tell(steps[2])
    assert [store._open[e].t for e in ("e0", "e2")] == [4, 4]


def test_an_episode_that_joins_has_to_begin_at_its_own_step() -> None:
    player = played(3)
    player.tell([EndEpisode("e1", 3), StartEpisode("next")])
    steps = accept(player, [step_of("e0", 3), step_of("next", 3), step_of("e2", 3)])
    assert isinstance(steps, list)
    player._tell(steps[0])
    with pytest.raises(OutOfOrder, match="awaits t=0"):
        player._tell(steps[1])


def test_an_episode_cannot_join_twice() -> None:
    player = Player(make_plan("ac"), Seating(), in_rows=True, batch=10**9)
    names = [f"e{i}" for i in range(4)]
    player.tell([StartEpisode(e) for e in names])
    player.tell([step_of(e, 0) for e in names])
    player.tell([EndEpisode("e0", 1), EndEpisode("e1", 1), StartEpisode("next")])
    twice = [step_of("next", 0), step_of("next", 0), step_of("e2", 1), step_of("e3", 1)]
    outcome = accept(player, twice)
    assert isinstance(outcome, list), "the second one is a repeat of the first"


def test_nobody_goes_on_before_the_answer() -> None:
    player = played(3)
    waiting = accept(player, [step_of(e, 3) for e in EPISODES])
    assert isinstance(waiting, RowStep)
    steps = accept(player, [step_of(e, 4) for e in EPISODES])
    assert isinstance(steps, list)
    with pytest.raises(OutOfOrder):
        player._tell(steps[0])
    waiting.finish([player._chosen(waiting, 0)], 0)
    assert isinstance(accept(player, [step_of(e, 4) for e in EPISODES]), RowStep)


def test_steps_are_not_kept_when_they_have_been_cut() -> None:
    player = Player(make_plan("ac"), Seating(), in_rows=True, batch=9)
    clients = (EPISODES, ("f0", "f1"))
    player.tell([StartEpisode(e) for names in clients for e in names])
    for t in range(30):
        for names in clients:  # it is in the first one's messages that batches are complete
            player.tell([step_of(e, t) for e in names])
            lockstep = player.store.store._open[names[0]].lockstep
            assert lockstep is not None
            assert len(lockstep._steps) <= 4


def test_long_episodes_are_recorded_before_they_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("muxrl.servers.episodes.lockstep._MOST_KEPT", 5)
    player = played(40)
    lockstep = player.store.store._open["e0"].lockstep
    assert lockstep is not None
    assert len(lockstep._steps) <= 6
    for e in EPISODES:
        player.tell([EndEpisode(e, 40, rewards={"a": 1.0, "c": 0.5})])
    chunks = player.store.chunks
    assert [chunk.num_env_steps for chunk in chunks] == [40, 40, 40]
    seen = np.array(chunks[1].trajectories[0].observations)
    np.testing.assert_array_equal(seen[:40, 1], np.arange(40))
