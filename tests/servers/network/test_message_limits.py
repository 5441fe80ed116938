"""Messages that would take a server too long to read are refused before they are decoded."""

from __future__ import annotations

import gc
import json
from typing import Any

import msgspec
import numpy as np
import pytest

from muxrl.protocol.codec import encode, encode_json
from muxrl.protocol.errors import MalformedMessage, MessageTooLarge
from muxrl.protocol.messages import (
    AgentInfo,
    Batch,
    PlayedRows,
    PlayedSteps,
    ServerSpec,
    StartEpisode,
    Step,
    StepRows,
)
from muxrl.protocol.spaces import Box, DictSpace, Discrete, Space, TupleSpace
from muxrl.servers.network import message_limits
from muxrl.servers.network.message_limits import MAX_JSON_LISTS, MAX_PLAIN_BYTES, MessageLimits

IMAGE = Box((84, 84, 4), "uint8", 0, 255)
NESTED = DictSpace({"seen": TupleSpace((IMAGE, Discrete(3))), "own": Box((2,))})


def limits(space: Space = IMAGE, num_agents: int = 20, max_episodes: int = 64) -> MessageLimits:
    agents = {f"a{i}": AgentInfo("default", space, Discrete(3)) for i in range(num_agents)}
    return MessageLimits(ServerSpec(1, "seer", "PPO", agents, max_episodes=max_episodes))


def image() -> np.ndarray:
    return np.random.default_rng(0).integers(0, 255, (84, 84, 4), np.uint8)


@pytest.fixture
def unread(monkeypatch: pytest.MonkeyPatch) -> None:
    """Makes decoding a message an error."""

    def read(*args: Any) -> Any:
        raise AssertionError("it was read")

    monkeypatch.setattr(message_limits, "decode_batch", read)
    monkeypatch.setattr(message_limits, "decode_json", read)


def step_of(value: bytes, field: str = "observations", agent: str = "a0") -> bytes:
    """Returns a msgpack frame of one step with this value in one of its fields."""
    step = {"type": "step", "episode_id": "e", "t": 0, field: {agent: msgspec.Raw(value)}}
    return msgspec.msgpack.encode({"items": [step]})


def map_of(count: int, entries: bytes) -> bytes:
    return b"\xdf" + count.to_bytes(4, "big") + entries


def list_of(count: int, entries: bytes) -> bytes:
    return b"\xdd" + count.to_bytes(4, "big") + entries


NUM = MAX_PLAIN_BYTES
EMPTY_LISTS = list_of(NUM, b"\x90" * NUM)
KEYS = b"".join(b"\xa3%3x\x90" % i for i in range(4096))
MANY_KEYS = map_of(NUM // 4, KEYS * (NUM // 4 // 4096))


@pytest.mark.usefixtures("unread")
@pytest.mark.parametrize("field", ["observations", "final_observations", "logged_actions", "x"])
@pytest.mark.parametrize("value", [EMPTY_LISTS, MANY_KEYS], ids=["lists", "keys"])
@pytest.mark.parametrize("space", [IMAGE, NESTED, TupleSpace((IMAGE,) * 3)], ids=str)
def test_msgpack_that_is_not_arrays_is_refused(space: Space, value: bytes, field: str) -> None:
    with pytest.raises(MessageTooLarge, match=r"it has .* not in arrays"):
        limits(space).read(step_of(value, field))
    with pytest.raises(MessageTooLarge):
        limits(space).read(step_of(value, field, agent="stranger"))


@pytest.mark.usefixtures("unread")
@pytest.mark.parametrize(
    "message",
    [EMPTY_LISTS, map_of(1, b"\xa5items" + EMPTY_LISTS), step_of(EMPTY_LISTS)[:-1],
     step_of(map_of(2, b"\xa3own" + EMPTY_LISTS + b"\xa4seen\x90"))],
    ids=["no batch", "no items", "cut short", "in a dict"],
)  # fmt: skip
def test_msgpack_that_is_not_arrays_is_refused_wherever_it_stands(message: bytes) -> None:
    with pytest.raises(MessageTooLarge):
        limits(NESTED).read(message)


def test_arrays_of_images_pass_whatever_they_weigh() -> None:
    seen = {f"a{i}": image() for i in range(20)}
    frame = encode(
        Batch([i for e in range(64) for i in (StartEpisode(f"e{e}"), Step(f"e{e}", 0, seen))])
    )
    assert len(frame) > 36_000_000
    items = limits().read(frame)
    assert len(items) == 128
    last = items[-1]
    assert isinstance(last, Step)
    np.testing.assert_array_equal(last.observations["a19"], image())


def test_arrays_inside_of_dicts_and_tuples_pass() -> None:
    seen = {"seen": (image(), 2), "own": np.zeros(2, np.float32)}
    step = Step("e", 0, {f"a{i}": seen for i in range(20)}, state=np.zeros(100_000))
    frame = encode(Batch([step] * 10))
    assert len(frame) > 2 * MAX_PLAIN_BYTES
    assert len(limits(NESTED).read(frame)) == 10


def test_images_of_twenty_agents_pass_as_json() -> None:
    step = Step("e", 0, {f"a{i}": image() for i in range(20)})
    text = encode_json(Batch([step]))
    assert len(limits().read(text.decode())) == 1
    assert len(limits().read_json(text)) == 1


@pytest.mark.usefixtures("unread")
@pytest.mark.parametrize(
    ("part", "num"),
    [*((part, MAX_JSON_LISTS) for part in ("[0]", "[]", "{}", '{"a":0}')), ("0", 4_000_002)],
)
def test_json_of_too_many_lists_or_numbers_is_refused(part: str, num: int) -> None:
    text = '{"items":[' + ",".join([part] * num) + "]}"
    with pytest.raises(MessageTooLarge, match=r"lists and dicts and \d+ values in JSON"):
        limits().read(text)
    for read in (limits().read_json, limits().check_json):
        with pytest.raises(MessageTooLarge):
            read(text.encode())


@pytest.mark.parametrize("is_text", [True, False])
def test_items_are_counted(is_text: bool) -> None:
    batch = Batch([StartEpisode(str(i)) for i in range(193)])
    frame = encode_json(batch).decode() if is_text else encode(batch)
    with pytest.raises(MessageTooLarge, match=r"193 items, over the limit of 192"):
        limits().read(frame)
    assert len(limits(max_episodes=65).read(frame)) == 193


def test_rows_count_as_the_items_that_they_are() -> None:
    rows = StepRows(episode_ids=["e"] * 193, t=np.zeros(193, np.int64), observations=[])
    takes = limits()
    with pytest.raises(MalformedMessage, match="this server takes none"):
        takes.read(encode(Batch([rows])))
    takes._takes_rows = True
    with pytest.raises(MessageTooLarge, match=r"193 items, over the limit of 192"):
        takes.read(encode(Batch([rows])))


def test_played_steps_have_a_limit_of_their_own() -> None:
    """The limit of played steps is higher than that of items, since a client sends many at once."""
    takes = limits()
    takes._takes_rows = True
    played = {"t": np.zeros(99, np.int64), "observations": [], "weights_seq_no": 0}
    rows: list[Any] = [PlayedRows(episode_ids=["e"] * 99, **played)] * 101
    assert len(takes.read(encode(Batch(rows)))) == 101  # 9,999 steps
    rows.append(PlayedSteps("e", 0, [Step("e", 0, {}), Step("e", 1, {})]))
    with pytest.raises(
        MessageTooLarge, match="10001 steps that a client played, over the limit of 10"
    ):
        takes.read(encode(Batch(rows)))


def test_the_garbage_collector_is_on_again_after_any_message() -> None:
    with pytest.raises(MalformedMessage):
        limits().read(b"\xc1" * 100_000)
    with pytest.raises(MalformedMessage):
        limits().read_json(json.dumps({"items": ["x"] * 100_000}).encode())
    assert gc.isenabled()
