"""Steps in rows through a gateway reach servers and simulations as single steps would."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Any

import msgspec
import numpy as np
import pytest
from tests.client.scripted_servers import World
from tests.client.test_lockstep import NUM, Restless, everything_heard, rows_in
from tests.client.test_vector_loop import NumberServer, RowServer, copies
from tests.compliance.test_exactly_once import GatewayServer, HostileTransport
from tests.servers.packing import answers_of, packed

from muxrl.client import MultiplexingClient
from muxrl.orchestrator.gateway.open_episode import Evaluation
from muxrl.protocol.codec import decode_batch_reply, encode
from muxrl.protocol.errors import EpisodeGone, OutOfOrder, RunOver, ValueMismatch
from muxrl.protocol.messages import (
    AbortEpisode,
    Actions,
    AnyItem,
    AnyReply,
    Batch,
    EndEpisode,
    Refused,
    StartEpisode,
    Step,
    StepRows,
)

AGENTS = ("a", "b")


class Link(HostileTransport):
    takes_rows = True


class Behind:
    """Two servers, with a gateway in front of them."""

    def __init__(self, kind: type[NumberServer] = RowServer) -> None:
        self.world = World(kind)
        servers = {"left": self.world.left, "right": self.world.right}
        for server in servers.values():
            server._spec = msgspec.structs.replace(
                server._spec, max_episodes=NUM, episode_timeout_s=1e6
            )
        self.gateway = GatewayServer(servers)  # type: ignore[arg-type]
        self.episodes = self.gateway.app.episodes

    def say(self, items: list[AnyItem]) -> list[AnyReply]:
        (answer,) = self.gateway.answer(encode(Batch(items)))
        return decode_batch_reply(answer).replies

    def say_in_rows(self, items: list[AnyItem]) -> tuple[list[AnyReply], list[AnyItem]]:
        """Sends items packed in rows; returns the answers, and the items in the rows' order."""
        spec = self.gateway.app.spec
        in_rows, order = packed(spec.agents, items)
        return answers_of(spec.agents, in_rows, self.say(in_rows)), order


def play(kind: type[NumberServer], simulations: Any, *, through: bool) -> World:
    behind = Behind(kind)
    world = behind.world
    if through:
        world.client = MultiplexingClient([Link(behind.gateway)])
    world.play(simulations, range(3 * NUM))
    assert world.client.num_mismatches == 0
    assert world.left.open == world.right.open == {}
    if through:
        assert behind.gateway.app.client.num_mismatches == 0
        assert [one.returns for one in behind.episodes.ended] == [
            one.returns for one in world.results
        ]
        assert behind.episodes.counts.num_env_steps == sum(r.num_steps for r in world.results)
    return world


@pytest.mark.parametrize("kind", [RowServer, NumberServer])
def test_servers_get_the_same_through_a_gateway_as_without(kind: type[NumberServer]) -> None:
    mine, direct = ([Restless() for _ in range(NUM)] for _ in range(2))
    through, without = play(kind, mine, through=True), play(kind, direct, through=False)
    assert everything_heard(through.left) == everything_heard(without.left)
    assert everything_heard(through.right) == everything_heard(without.right)
    assert through.results == without.results
    assert [one.actions for one in mine] == [one.actions for one in direct]
    assert bool(rows_in(through)) == (kind is RowServer)


def test_a_vector_s_steps_stay_one_item_a_server() -> None:
    through, without = (
        play(RowServer, copies(*[3] * NUM), through=through) for through in (True, False)
    )
    assert rows_in(through) == rows_in(without) == [NUM] * 9
    assert everything_heard(through.left) == everything_heard(without.left)


class Talk:
    """Draws what clients may send of some episodes, right or wrong."""

    def __init__(self, seed: int) -> None:
        self._rng = np.random.default_rng(seed)
        self._t: dict[str, int] = {}
        self._num = 0

    def turns(self, num: int) -> Iterator[list[AnyItem]]:
        for _ in range(num):
            items: list[AnyItem] = []
            while len(self._t) < 6:
                self._num += 1
                self._t[str(self._num)] = 0
                items.append(StartEpisode(str(self._num), self._draw("train", "train", "eval")))
            for episode_id in self._t.copy():
                items += self._next(episode_id)
            yield items

    def _next(self, episode_id: str) -> Iterator[AnyItem]:
        t, rng = self._t[episode_id], self._rng
        if rng.random() < 0.06:
            del self._t[episode_id]
            yield self._draw(EndEpisode(episode_id, t), AbortEpisode(episode_id))
            return
        acting = self._draw(AGENTS, AGENTS, AGENTS, ("a",), ("b",))
        step = Step(
            episode_id,
            t,
            {a: np.full(1, rng.normal(), np.float32) for a in acting},
            {a: float(rng.normal()) for a in acting} if t else {},
        )
        wrong = rng.random()
        if wrong < 0.03:
            step.observations[acting[0]][:] = np.nan
        elif wrong < 0.06:
            step.rewards[acting[0]] = self._draw(np.inf, 3e38)
        elif wrong < 0.09:
            step.t += int(self._draw(-2, -1, 1))
        elif wrong < 0.11:
            step.terminations = {"b": True}
        elif wrong < 0.13:
            step.observations = {"a": np.zeros(1, np.float32)}
            step.final_observations = {"b": np.zeros(1, np.float32)}
            step.truncations = {"b": True}
        yield step
        if rng.random() < 0.05:
            yield step

    def hear(self, replies: list[AnyReply]) -> None:
        """Notes the answers: what was refused is sent again, unless its episode is over."""
        for reply in replies:
            if isinstance(reply, Actions):
                self._t[reply.episode_id] = reply.t + 1
            elif getattr(reply, "code", 0) == EpisodeGone.code:
                self._t.pop(reply.episode_id, None)

    def _draw(self, *of: Any) -> Any:
        return of[self._rng.integers(len(of))]


def compared(replies: list[AnyReply]) -> list[Any]:
    return [msgspec.to_builtins(reply, enc_hook=lambda array: array.tolist()) for reply in replies]


@pytest.mark.parametrize("seed", range(8))
def test_rows_are_answered_as_their_steps_are(seed: int) -> None:
    in_rows, singly, talk = Behind(), Behind(), Talk(seed)
    heard: Counter[Any] = Counter()
    for items in talk.turns(60):
        mine, order = in_rows.say_in_rows(items)
        assert compared(mine) == compared(singly.say(order))
        talk.hear(mine)
        heard.update(getattr(one, "code", type(one)) for one in mine)
    assert heard[Actions] > 200
    assert min(heard[ValueMismatch.code], heard[OutOfOrder.code]) > 2
    assert everything_heard(in_rows.world.left) == everything_heard(singly.world.left)
    assert everything_heard(in_rows.world.right) == everything_heard(singly.world.right)
    assert vars(in_rows.episodes.counts) == vars(singly.episodes.counts)


def rows(t: int, *episode_ids: str) -> StepRows:
    num = len(episode_ids)
    return StepRows(
        episode_ids=list(episode_ids),
        t=np.full(num, t),
        observations=[np.zeros((num, 2, 1), np.float32)],
        rewards=np.zeros((num, 2)),
    )


def began(behind: Behind, *episode_ids: str) -> None:
    behind.say([StartEpisode(e) for e in episode_ids])


def test_rows_beyond_the_budget_wait_and_those_within_are_played() -> None:
    behind = Behind()
    began(behind, "one", "two")
    behind.episodes.most_env_steps = 1
    answers = behind.gateway.answer(encode(Batch([rows(0, "one", "two")])))
    assert not answers
    assert behind.episodes.counts.num_env_steps == 1
    behind.episodes.most_env_steps = 2
    behind.gateway.app._answer_together(behind.gateway.app._beyond)
    (reply,) = decode_batch_reply(answers[0]).replies
    assert [(one.episode_id, one.t) for one in reply.replies] == [("one", 0), ("two", 0)]  # type: ignore[union-attr]


def test_rows_of_an_evaluation_and_of_training_are_answered_together() -> None:
    behind, others = Behind(), Behind()
    servers = [others.world.left, others.world.right]
    evaluation = Evaluation([MultiplexingClient(servers)], 1, {})
    behind.gateway.app.wanted.evaluate(evaluation)
    began(behind, "evaluated", "trained")
    (reply,) = behind.say([rows(0, "evaluated", "trained")])
    assert [one.episode_id for one in reply.replies] == ["evaluated", "trained"]  # type: ignore[union-attr]
    assert not any(isinstance(one, Refused) for one in reply.replies)  # type: ignore[union-attr]
    assert list(others.world.left.open) == ["evaluated"]
    assert list(behind.world.left.open) == ["trained"]
    behind.say([EndEpisode("evaluated", 1)])
    assert evaluation.is_done.is_set()


def test_a_server_s_refusal_of_a_row_closes_its_episode_alone() -> None:
    behind = Behind()
    began(behind, "good", "bad")
    behind.world.right.script = lambda item: (
        Refused("bad", 422, "no such luck", "b") if item.episode_id == "bad" else None
    )
    (reply,) = behind.say([rows(0, "good", "bad")])
    good, bad = reply.replies  # type: ignore[union-attr]
    assert good == Actions("good", 0, {"a": 7, "b": 8})
    assert isinstance(bad, Refused)
    assert "closed on every server" in bad.message
    assert list(behind.world.left.open) == ["good"]
    assert behind.say([rows(0, "good")])[0].replies == [good]  # type: ignore[union-attr]


def test_all_rows_are_refused_once_the_run_is_over() -> None:
    behind = Behind()
    began(behind, "one", "two")
    behind.episodes.refuse_all(RunOver("it is over"), has_clients=True)
    (reply,) = behind.say([rows(0, "one", "two")])
    assert [one.code for one in reply.replies] == [RunOver.code] * 2  # type: ignore[union-attr]
    assert not behind.episodes.unconfirmed


def test_invalid_rows_are_refused_as_a_whole() -> None:
    behind = Behind()
    began(behind, "one", "two")
    wrong = rows(0, "one", "two")
    wrong.observations = [np.zeros((1, 2, 1), np.float32)]
    (reply,) = behind.say([wrong])
    assert isinstance(reply, Refused)
    assert "must be an array of shape (2, 2) and more" in reply.message
    assert isinstance(behind.say([Step("one", 0, {"a": [0.0]})])[0], Actions)
