"""The gate between acting and learning, with real threads on both sides."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, cast

import pytest

from muxrl.servers.episodes.feed import Activity, Feed, FeedClosed
from muxrl.servers.episodes.trajectories import Chunk

PATIENCE_S = 10.0


def batch(name: str) -> list[Chunk]:
    return cast(list[Chunk], [name])


def learning(max_ahead: int = 0) -> Feed:
    """Returns a feed one of whose batches is being learned."""
    feed = Feed(max_ahead)
    feed.put(batch("one"))
    feed.take()
    return feed


async def wait_open(feed: Feed) -> None:
    gone = asyncio.Event()
    feed.when_open(gone.set)
    await gone.wait()


def in_thread(call: Callable[[], Any]) -> Any:
    return ThreadPoolExecutor(1).submit(call)


@pytest.mark.parametrize(
    ("max_ahead", "moves"),
    [
        # Shut from a complete batch until its weights come.
        (0, "open put shut take shut done open"),
        # One batch is collected while another one is learned.
        (1, "put open take open put shut done open"),
        (0, "put close open"),
        # Batches for a trainer that has ended are dropped.
        (0, "put take put discard open put open"),
    ],
)
def test_the_gate_is_open_while_few_enough_batches_wait(max_ahead: int, moves: str) -> None:
    feed = Feed(max_ahead)
    do: dict[str, Callable[[], Any]] = {
        "put": lambda: feed.put(batch("one")),
        "take": feed.take,
        "done": feed.finish_learning,
        "close": feed.close,
        "discard": feed.discard,
    }
    for move in moves.split():
        if move in ("open", "shut"):
            assert feed.is_open == (move == "open"), move
        else:
            do[move]()


def test_asking_for_the_next_batch_opens_the_gate() -> None:
    feed = learning()
    waiting = in_thread(feed.take)
    while not feed.is_open:  # opens when the thread asks for the next batch
        threading.Event().wait(0.001)
    feed.put(batch("two"))
    assert waiting.result(PATIENCE_S) == ["two"]


def test_batches_come_in_order() -> None:
    feed = Feed(max_ahead=5)
    for name in "abc":
        feed.put(batch(name))
    assert [feed.take()[0] for _ in range(3)] == list("abc")


def test_close_ends_a_take_and_every_later_one() -> None:
    feed = Feed(max_ahead=0)
    waiting = in_thread(feed.take)
    feed.close()
    with pytest.raises(FeedClosed, match="stopping"):
        waiting.result(PATIENCE_S)
    feed.put(batch("late"))
    with pytest.raises(FeedClosed):
        feed.take()
    assert feed.is_open


def test_a_batch_that_is_complete_before_the_last_update_ends_is_kept_for_the_checkpoint() -> None:
    feed = learning()
    feed.close()
    feed.put(batch("two"))
    feed.discard()
    feed.put(batch("three"))
    assert feed.unlearned == [["two"]]


@pytest.mark.parametrize("opens", ["finish_learning", "discard", "close"])
def test_a_frame_that_waits_at_the_gate_is_let_through(opens: str) -> None:
    feed = Feed(max_ahead=0)

    async def wait() -> None:
        feed.bind(asyncio.get_running_loop())
        await wait_open(feed)  # open: this returns at once
        feed.put(batch("one"))
        feed.take()
        waiting = asyncio.create_task(wait_open(feed))
        await asyncio.sleep(0)
        assert not waiting.done()
        in_thread(getattr(feed, opens))
        await asyncio.wait_for(waiting, PATIENCE_S)

    asyncio.run(wait())


def test_waiting_frames_are_let_through_in_order_and_only_while_the_gate_is_open() -> None:
    feed = Feed(max_ahead=0)
    gone: list[str] = []

    async def serve() -> None:
        feed.bind(asyncio.get_running_loop())
        feed.put(batch("one"))

        def fill() -> None:
            gone.append("first")
            feed.put(batch("two"))

        feed.when_open(fill)
        feed.when_open(lambda: gone.append("second"))
        assert gone == []
        for let_through in (["first"], ["first", "second"]):
            await asyncio.get_running_loop().run_in_executor(None, feed.take)
            feed.finish_learning()
            await asyncio.sleep(0)
            assert gone == let_through

    asyncio.run(serve())


def test_two_threads_hand_over_many_batches_and_never_run_ahead() -> None:
    feed = Feed(max_ahead=0)
    learned: list[Any] = []

    def learn() -> None:
        try:
            while True:
                learned.append(feed.take()[0])
        except FeedClosed:
            return

    async def serve() -> None:
        feed.bind(asyncio.get_running_loop())
        for i in range(200):
            await wait_open(feed)
            assert len(learned) == i, "all before are learned"
            feed.put(cast(list[Chunk], [i]))
        await wait_open(feed)

    learner = in_thread(learn)
    asyncio.run(asyncio.wait_for(serve(), PATIENCE_S))
    feed.close()
    learner.result(PATIENCE_S)
    assert learned == list(range(200))


def test_a_closed_event_loop_does_not_matter() -> None:
    feed = Feed(max_ahead=0)

    async def bind() -> None:
        feed.bind(asyncio.get_running_loop())

    asyncio.run(bind())
    feed.put(batch("one"))
    feed.take()
    feed.finish_learning()
    feed.close()


def test_learning_and_holding_are_timed(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 0.0
    monkeypatch.setattr("muxrl.servers.episodes.feed.time.monotonic", lambda: now)
    feed = Feed(max_ahead=1)
    now = 10.0
    feed.put(batch("one"))
    now = 11.0
    feed.take()
    now = 13.0
    feed.put(batch("two"))  # one batch is being learned, one waits: simulations wait, too
    feed.when_open(lambda: None)
    now = 16.0
    feed.finish_learning()
    feed.when_open(lambda: None)
    now = 20.0
    assert feed.activity == Activity(time_s=20.0, learning_s=5.0, held_s=3.0)
    feed.take()
    now = 21.0
    feed.close()
    now = 22.0
    assert feed.activity == Activity(time_s=22.0, learning_s=7.0, held_s=3.0)


def test_the_next_batch_is_collected_as_the_update_goes_on() -> None:
    feed = learning(1)
    collected = 0.0
    feed.share_collected = lambda: collected
    collected = 0.2  # before the learner reports any progress
    feed.note_progress(0.25)
    assert feed.is_open
    collected = 0.4  # a quarter of what was left to collect
    assert feed.is_open
    collected = 0.41
    assert not feed.is_open
    feed.note_progress(0.5)
    assert feed.is_open
    feed.put(batch("two"))
    assert not feed.is_open, "complete, however far the update is"
    collected = 0.0
    feed.finish_learning()
    assert feed.is_open
    feed.take()
    collected = 0.9
    assert feed.is_open, "of this update nothing was said"


@pytest.mark.parametrize("max_ahead", [0, 2])
def test_progress_neither_opens_a_closed_gate_nor_closes_one_with_room(max_ahead: int) -> None:
    feed = learning(max_ahead)
    feed.share_collected = lambda: 0.9
    feed.note_progress(0.1)
    assert feed.is_open == (max_ahead == 2)


def test_progress_lets_waiting_frames_through() -> None:
    feed = learning(1)

    async def wait() -> None:
        feed.bind(asyncio.get_running_loop())
        feed.note_progress(0.1)
        feed.share_collected = lambda: 0.2
        waiting = asyncio.create_task(wait_open(feed))
        await asyncio.sleep(0)
        assert not waiting.done()
        in_thread(lambda: feed.note_progress(0.2))
        await asyncio.wait_for(waiting, PATIENCE_S)

    asyncio.run(wait())
