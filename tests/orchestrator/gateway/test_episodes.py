"""A gateway's episodes with scripted servers, at given times, without network and threads."""

from __future__ import annotations

import itertools
import time
from collections.abc import Sequence
from typing import Any

import msgspec
import numpy as np
import pytest
from tests.client.scripted_servers import Server, refusing

from muxrl.client import MultiplexingClient
from muxrl.orchestrator.gateway.gateway import merged_spec
from muxrl.orchestrator.gateway.open_episode import Evaluation
from muxrl.orchestrator.gateway.rounds import Asked, Rounds
from muxrl.protocol.errors import (
    EpisodeGone,
    NotServing,
    OutOfOrder,
    ProtocolError,
    RunOver,
    TooManyEpisodes,
    ValueMismatch,
)
from muxrl.protocol.messages import (
    Aborted,
    AbortEpisode,
    Actions,
    AnyItem,
    Ended,
    EndEpisode,
    Started,
    StartEpisode,
    Step,
)

SEEN = {"a": np.zeros(1, np.float32), "b": np.ones(1, np.float32)}
TIMEOUT_S = 60.0


class Behind:
    """A gateway's episodes in front of two scripted servers, "left" for a and "right" for b."""

    def __init__(self, max_episodes: int = 4) -> None:
        self.servers = [Server("left", "a", []), Server("right", "b", [])]
        for server in self.servers:
            server._spec = msgspec.structs.replace(
                server._spec, max_episodes=max_episodes, episode_timeout_s=TIMEOUT_S
            )
        self.left, self.right = self.servers
        self.client = MultiplexingClient(self.servers)
        self.begin()
        self.now = 0.0

    def begin(self, *, agents_return: bool = False) -> None:
        spec = merged_spec(self.client.specs, agents_return=agents_return)
        self.rounds = Rounds(self.client, spec)
        self.episodes, self.wanted = self.rounds.episodes, self.rounds.wanted

    def say(self, *items: AnyItem) -> list[Any]:
        """Returns the answers to items that come in together."""
        asked = [Asked(item) for item in items]
        self.rounds.answer(asked, self.now)
        return [one.answer for one in asked]

    def ask(self, item: AnyItem) -> Any:
        return self.say(item)[0]

    def play(self, episode_id: str, num_steps: int = 1) -> None:
        self.say(StartEpisode(episode_id), *(Step(episode_id, t, SEEN) for t in range(num_steps)))

    @property
    def is_open(self) -> dict[str, list[str]]:
        return {server.server_id: list(server.open) for server in self.servers}


NOTHING: dict[str, list[str]] = {"left": [], "right": []}


@pytest.fixture
def behind() -> Behind:
    return Behind()


def test_an_abort_beside_its_start_leaves_nothing_open(behind: Behind) -> None:
    replies = behind.say(StartEpisode("e"), AbortEpisode("e"), Step("e", 0, SEEN))
    assert replies[:2] == [Started("e"), Aborted("e")]
    assert isinstance(replies[2], EpisodeGone)
    assert behind.is_open == NOTHING


def test_a_start_that_is_refused_refuses_its_repeat_beside_it(behind: Behind) -> None:
    behind.left.script = refusing(StartEpisode)
    replies = behind.say(StartEpisode("e"), StartEpisode("e"))
    assert all(isinstance(reply, ProtocolError) for reply in replies)
    assert behind.is_open == NOTHING


def test_an_episode_ends_and_another_begins_in_one_message_at_the_limit() -> None:
    behind = Behind(max_episodes=2)
    behind.play("one")
    behind.play("two")
    replies = behind.say(EndEpisode("one", 1), StartEpisode("three"), Step("three", 0, SEEN))
    assert [type(reply) for reply in replies] == [Ended, Started, Actions]
    assert isinstance(behind.ask(StartEpisode("four")), TooManyEpisodes)
    assert behind.is_open == {"left": ["two", "three"], "right": ["two", "three"]}


def test_a_server_gets_at_most_as_many_items_in_a_frame_as_it_takes(behind: Behind) -> None:
    """A frame has at most 64 items if four episodes may be open, even if clients send more."""
    items = itertools.chain(*((StartEpisode(str(n)), EndEpisode(str(n), 0)) for n in range(100)))
    replies = behind.say(*items)
    assert [type(reply) for reply in replies] == [Started, Ended] * 100
    assert max(map(len, behind.left.frames)) <= 64


def test_aborts_wait_for_a_lost_server_once(behind: Behind) -> None:
    for n in range(3):
        behind.play(str(n))
    behind.right.is_lost = True
    num_frames = len(behind.left.frames)
    assert behind.say(*(AbortEpisode(str(n)) for n in range(3))) == [
        Aborted(str(n)) for n in range(3)
    ]
    assert len(behind.left.frames) == num_frames + 1


def test_idle_episodes_expire_and_others_do_not(behind: Behind) -> None:
    behind.play("idle")
    behind.now = TIMEOUT_S
    behind.play("busy")
    behind.episodes.expire(TIMEOUT_S)
    assert len(behind.episodes.open) == 2
    behind.episodes.expire(TIMEOUT_S + 1.0)
    assert behind.is_open == {"left": ["busy"], "right": ["busy"]}
    assert isinstance(behind.ask(Step("idle", 1, SEEN)), EpisodeGone)


def test_an_episode_that_waits_for_an_answer_does_not_expire(behind: Behind) -> None:
    behind.play("e")
    asked = [Asked(Step("e", 1, SEEN))]
    behind.rounds.answer(asked, behind.now)
    behind.episodes.see(["e"], 10 * TIMEOUT_S, is_answered=True)
    behind.episodes.expire(10 * TIMEOUT_S + 1.0)
    assert len(behind.episodes.open) == 1


@pytest.mark.parametrize("num_steps", [0, 2])
def test_repeats_keep_an_episode_alive_on_the_servers(
    behind: Behind, num_steps: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    behind.play("e", num_steps)
    for server in behind.servers:  # the server knows repeats
        server.script = lambda item: Actions(item.episode_id, 1, {}) if num_steps else None
    repeat: AnyItem = Step("e", num_steps - 1, {}) if num_steps else StartEpisode("e")
    answer = behind.ask(repeat)
    num_items = len(behind.left.items)
    later = time.monotonic() + TIMEOUT_S / 2
    monkeypatch.setattr(time, "monotonic", lambda: later)
    assert behind.ask(repeat) == answer
    assert len(behind.left.items) == len(behind.right.items) == num_items + 1
    assert behind.ask(repeat) == answer
    assert len(behind.left.items) == num_items + 1, "not with every repeat"


def test_lists_reach_the_servers_as_arrays(behind: Behind) -> None:
    """Msgpack has no integers beyond 64 bits, and servers take few numbers outside of arrays."""
    behind.say(StartEpisode("e"), Step("e", 0, {"a": [2**70]}))
    (step,) = behind.left.of(Step)
    assert step.observations["a"].dtype == np.float32


def test_a_lost_episode_is_counted_once_though_several_of_its_items_fail(behind: Behind) -> None:
    behind.right.is_lost_on_receive = True
    replies = behind.say(StartEpisode("e"), Step("e", 0, SEEN))
    assert all(isinstance(reply, NotServing) for reply in replies)
    assert behind.episodes.num_lost == 0, "the server may let nobody in, for ever"
    behind = Behind()
    gone = refusing_with(410)
    behind.right.script = gone
    replies = behind.say(StartEpisode("e"), Step("e", 0, SEEN))
    assert all(isinstance(reply, EpisodeGone) for reply in replies)
    assert behind.episodes.num_lost == 1


def refusing_with(code: int) -> Any:
    def script(item: AnyItem) -> Any:
        reply = refusing(StartEpisode)(item)
        return reply and msgspec.structs.replace(reply, code=code)

    return script


def test_after_an_error_in_the_gateway_nothing_stays_open(
    behind: Behind, monkeypatch: pytest.MonkeyPatch
) -> None:
    behind.play("e")

    def fail(items: Sequence[AnyItem]) -> None:
        behind.left._replies = None  # a real transport drops an answer that nobody takes
        raise OverflowError

    send = behind.right.send
    sends = iter([fail, send])
    monkeypatch.setattr(behind.right, "send", lambda items: next(sends)(items))
    with pytest.raises(OverflowError):
        behind.ask(Step("e", 1, SEEN))
    assert isinstance(behind.ask(Step("e", 1, SEEN)), EpisodeGone)
    assert len(behind.episodes.open) == 0


def evaluation_of(behind: Behind, num_episodes: int) -> tuple[Evaluation, list[Server]]:
    servers = [Server("left", "a", []), Server("right", "b", [])]
    evaluation = Evaluation([MultiplexingClient(servers)], num_episodes, {})
    behind.wanted.evaluate(evaluation)
    return evaluation, servers


def test_the_conditions_of_an_evaluation_alternate(behind: Behind) -> None:
    servers = [[Server("left", "a", []), Server("right", "b", [])] for _ in range(2)]
    evaluation = Evaluation([MultiplexingClient(both) for both in servers], 2, {})
    behind.wanted.evaluate(evaluation)
    for number, name in enumerate("efgh"):
        behind.play(name)
        assert list(servers[number % 2][0].open) == [name]
        assert not evaluation.is_done.is_set()
        behind.ask(EndEpisode(name, 1))
    assert evaluation.is_done.is_set()
    assert list(map(len, evaluation.episodes)) == [2, 2]
    assert behind.ask(StartEpisode("i")) == Started("i")


def test_an_evaluation_s_episode_whose_simulation_is_lost_is_given_to_another(
    behind: Behind,
) -> None:
    evaluation, _ = evaluation_of(behind, 1)
    behind.play("lost")
    behind.now = 20.0
    assert behind.ask(StartEpisode("soon")) == Started("soon")
    behind.now = 31.0
    assert behind.ask(StartEpisode("e")) == Started("e", is_evaluation=True)
    assert "silent" in behind.ask(Step("lost", 1, SEEN)).message
    behind.say(Step("e", 0, SEEN), EndEpisode("e", 1))
    assert evaluation.is_done.is_set()


def test_an_evaluation_whose_lost_episode_would_meet_other_weights_is_given_up(
    behind: Behind,
) -> None:
    evaluation, _ = evaluation_of(behind, 3)
    behind.play("e")
    behind.play("lost")
    behind.play("alive")
    behind.ask(EndEpisode("e", 1))
    behind.play("training")
    behind.now = 31.0
    replies = behind.say(Step("alive", 1, SEEN), StartEpisode("f"))
    assert isinstance(replies[0], Actions), "it is of the evaluation, too"
    assert replies[1] == Started("f")
    assert evaluation.is_done.is_set()
    assert list(map(len, evaluation.episodes)) == [1]
    behind.wanted.evaluate(None)  # the thread that waits for the evaluation does this
    assert isinstance(behind.ask(Step("lost", 1, SEEN)), EpisodeGone)


def test_a_slow_simulation_keeps_its_episode_of_an_evaluation(behind: Behind) -> None:
    evaluation_of(behind, 1)
    behind.play("slow")
    behind.now = 20.0
    behind.ask(Step("slow", 1, SEEN))
    behind.now = 200.0
    assert behind.ask(StartEpisode("e")) == Started("e")
    behind.now = 221.0
    assert behind.ask(StartEpisode("f")) == Started("f", is_evaluation=True)


def test_an_evaluation_s_episode_whose_step_has_just_come_is_not_lost(behind: Behind) -> None:
    """The gateway may have waited for a server for longer than a simulation may be silent."""
    evaluation_of(behind, 1)
    behind.play("e")
    behind.now = 60.0
    replies = behind.say(StartEpisode("f"), Step("e", 1, SEEN))
    assert replies[0] == Started("f")
    assert isinstance(replies[1], Actions)


def test_agents_whose_actions_are_logged_in_an_evaluation_are_noted(behind: Behind) -> None:
    evaluation, _ = evaluation_of(behind, 1)
    behind.say(StartEpisode("e"), Step("e", 0, SEEN))
    behind.ask(Step("e", 1, SEEN, logged_actions={"b": 0}))
    behind.say(EndEpisode("e", 2), StartEpisode("f"), Step("f", 0, SEEN, logged_actions={"a": 0}))
    assert evaluation.logged_agents == [{"b"}]


def test_an_evaluation_episode_that_is_lost_is_played_once_more(behind: Behind) -> None:
    evaluation, _ = evaluation_of(behind, 1)
    behind.say(StartEpisode("e"), Step("e", 0, SEEN), AbortEpisode("e"))
    replies = behind.say(StartEpisode("f"), Step("f", 0, SEEN), EndEpisode("f", 1))
    assert replies[0] == Started("f", is_evaluation=True)
    assert evaluation.is_done.is_set()
    assert [one.returns for one in evaluation.episodes[0]] == [{"a": 0.0, "b": 0.0}]
    assert behind.ask(StartEpisode("g")) == Started("g")


def test_when_the_run_is_over_an_end_may_be_repeated(behind: Behind) -> None:
    behind.play("ended")
    behind.play("open")
    ended = behind.ask(EndEpisode("ended", 1))
    behind.episodes.refuse_all(RunOver("the run is over"), has_clients=True)
    assert behind.is_open == NOTHING
    assert behind.ask(EndEpisode("ended", 1)) == ended
    assert behind.episodes.unconfirmed == {"open"}
    assert isinstance(behind.ask(EndEpisode("open", 1)), RunOver)
    assert not behind.episodes.unconfirmed
    assert isinstance(behind.ask(StartEpisode("late")), RunOver)
    assert behind.ask(AbortEpisode("open")) == Aborted("open")


def test_the_reason_why_an_episode_is_over_is_repeated(behind: Behind) -> None:
    """The first answer may have been lost on its way."""
    behind.play("f")
    behind.ask(AbortEpisode("f", "it rained"))
    why = "its simulation aborted it: it rained"
    assert behind.ask(Step("f", 1, SEEN)).message == f"episode f is over: {why}"
    assert [one.reason for one in behind.left.of(AbortEpisode)] == [why]
    behind.play("e")
    behind.right.script = refusing(Step)
    first = behind.ask(Step("e", 1, SEEN))
    assert "no such luck" in first.message
    again = behind.ask(Step("e", 1, SEEN))
    assert isinstance(again, EpisodeGone)
    assert "episode e is over: no such luck" in again.message


# --- no more than the run's budget ----------------------------------------------------------


def test_no_step_is_played_beyond_the_budget_and_none_is_lost(behind: Behind) -> None:
    """Of two episodes in lockstep one step is left over; it waits, and so do the items after it."""
    behind.episodes.most_env_steps = 5
    behind.play("x", 2)
    behind.play("y", 2)
    x, y = (Asked(Step(e, 2, SEEN)) for e in "xy")
    end = Asked(EndEpisode("y", 3))
    behind.rounds.answer([x, y, end], 0.0)
    assert isinstance(x.answer, Actions)
    assert (y.answer, end.answer) == (None, None)
    assert behind.wanted.is_used_up
    assert isinstance(behind.ask(Step("x", 2, SEEN)), Actions), "a repeat is no new step"
    assert isinstance(behind.ask(Step("x", 7, SEEN)), OutOfOrder), "and what is wrong waits not"

    behind.episodes.most_env_steps = 6
    behind.rounds.answer([x, y, end], 0.0)
    assert isinstance(y.answer, Actions)
    assert isinstance(end.answer, Ended)
    assert behind.episodes.counts.num_env_steps == 6


def test_a_step_that_waits_beyond_the_budget_is_refused_when_training_ends(behind: Behind) -> None:
    behind.episodes.most_env_steps = 1
    behind.play("x")
    asked = Asked(Step("x", 1, SEEN))
    behind.rounds.answer([asked], 0.0)
    assert asked.answer is None
    behind.wanted.end_training()
    behind.rounds.answer([asked], 0.0)
    assert isinstance(asked.answer, EpisodeGone)
    assert behind.episodes.counts.num_env_steps == 1
    behind.play("y", 3)  # an evaluation, which has no budget
    assert isinstance(behind.ask(Step("y", 3, SEEN)), Actions)


@pytest.mark.parametrize("agents_return", [False, True])
def test_an_agent_may_come_back_if_the_config_says_so(behind: Behind, agents_return: bool) -> None:
    behind.begin(agents_return=agents_return)
    behind.play("x")
    behind.ask(Step("x", 1, {"b": SEEN["b"]}, terminations={"a": True}))
    answer = behind.ask(Step("x", 2, SEEN))
    assert isinstance(answer, Actions if agents_return else ValueMismatch)


def test_simulations_are_told_the_parameters_of_an_episode_and_they_are_recorded(
    behind: Behind,
) -> None:
    wanted = behind.wanted
    wanted.parameters = {"speed": {"low": 1, "high": 10**9}, "size": 4}
    first, repeated = behind.say(StartEpisode("e"), StartEpisode("e"))
    wanted.parameters = {"size": 5}  # for episodes that begin from now on
    assert behind.ask(StartEpisode("e")) == first == repeated
    assert first.parameters["size"] == 4
    assert behind.ask(StartEpisode("f")).parameters == {"size": 5}
    behind.say(Step("e", 0, SEEN), EndEpisode("e", 1))
    (ended,) = behind.episodes.ended
    assert ended.metrics["speed"] == {"__common__": float(first.parameters["speed"])}

    evaluation = Evaluation([behind.client], 2, {}, {"speed": {"low": 1, "high": 10**9}}, 7)
    wanted.evaluate(evaluation)
    drawn = [behind.ask(StartEpisode(name)).parameters["speed"] for name in "gh"]
    again = Evaluation([behind.client], 2, {}, {"speed": {"low": 1, "high": 10**9}}, 7)
    wanted.evaluate(again)
    assert [behind.ask(StartEpisode(name)).parameters["speed"] for name in "ij"] == drawn
    behind.ask(AbortEpisode("i"))
    assert behind.ask(StartEpisode("k")).parameters["speed"] == drawn[0], "lost, played once more"


BOTH = {"a": True, "b": True}


@pytest.mark.parametrize(
    ("step", "end", "is_truncated"),
    [
        ({}, {}, False),
        ({}, {"is_truncated": True, "final_observations": SEEN}, True),
        ({}, {"is_truncated": True}, True),
        ({}, {"truncations": BOTH, "final_observations": SEEN}, True),
        ({}, {"truncations": BOTH, "terminations": BOTH}, False),
        ({}, {"terminations": BOTH, "is_truncated": True}, False),
        ({"terminations": {"a": True}}, {"is_truncated": True, "final_observations": SEEN}, True),
        ({"truncations": {"a": True}, "final_observations": {"a": SEEN["a"]}}, {}, True),
    ],
)
def test_an_episode_is_truncated_if_an_agent_is_truncated_and_not_terminated(
    behind: Behind, step: Any, end: Any, is_truncated: bool
) -> None:
    seen = {"b": SEEN["b"]} if step else SEEN
    finals = {a: v for a, v in end.get("final_observations", {}).items() if a in seen}
    behind.say(StartEpisode("e"), Step("e", 0, SEEN), Step("e", 1, seen, **step))
    ended = behind.ask(EndEpisode("e", 2, **end | {"final_observations": finals}))
    assert isinstance(ended, Ended)
    (played,) = behind.episodes.ended
    assert played.metrics["truncated"] == {"__common__": is_truncated}


def test_an_evaluation_s_episode_that_is_too_long_is_truncated_and_its_simulation_told(
    behind: Behind,
) -> None:
    evaluation, servers = evaluation_of(behind, 1)
    evaluation.max_steps = 3
    behind.play("e", 3)
    assert behind.wanted.under_way == (0, 3)
    last = Step("e", 3, SEEN, rewards={"a": 2.0})
    for item in (last, last, Step("e", 4, SEEN)):
        refusal = behind.ask(item)
        assert isinstance(refusal, EpisodeGone)
        assert "evaluation.max_episode_steps); start another one" in refusal.message
    assert isinstance(behind.ask(EndEpisode("e", 3)), Ended)
    assert evaluation.is_done.is_set()
    assert behind.wanted.under_way == (1, 0)
    assert evaluation.num_truncated == [1]
    (played,) = evaluation.episodes[0]
    assert (played.num_steps, played.returns["a"]) == (3, 2.0)
    assert played.metrics["truncated"] == {"__common__": 1.0}
    assert not any(server.open for server in servers)
    behind.wanted.evaluate(None)
    behind.play("f", 5)  # training episodes are not truncated
    assert behind.is_open == {"left": ["f"], "right": ["f"]}


def test_an_evaluation_does_not_wait_for_episodes_of_no_evaluation(behind: Behind) -> None:
    """After training, with a greedy policy, such an episode might never end."""
    behind.wanted.end_training()
    behind.play("idle")
    behind.say(StartEpisode("own", mode="eval"))
    evaluation_of(behind, 1)
    assert "an evaluation begins" in behind.ask(Step("idle", 1, SEEN)).message
    assert behind.is_open == {"left": ["own"], "right": ["own"]}
    assert behind.ask(StartEpisode("e")) == Started("e", is_evaluation=True)
