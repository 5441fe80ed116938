"""Encoded messages are decoded to the same, and anything that is no message is refused as such."""

from __future__ import annotations

import re
import struct
from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from numpy.typing import NDArray

from muxrl.protocol.codec import (
    ARRAY_EXTENSION,
    decode_batch,
    decode_batch_reply,
    decode_json,
    encode,
    encode_batch,
    encode_json,
)
from muxrl.protocol.errors import MalformedMessage
from muxrl.protocol.messages import (
    Aborted,
    AbortEpisode,
    Actions,
    Batch,
    BatchReply,
    Ended,
    EndEpisode,
    PlayedSteps,
    Refused,
    ServerSpec,
    Started,
    StartEpisode,
    Step,
)

DTYPES = ["float16", "float32", "float64", "bool"] + [
    f"{kind}{bits}" for kind in ("int", "uint") for bits in (8, 16, 32, 64)
]
ARRAYS = st.sampled_from(DTYPES).flatmap(
    lambda name: hnp.arrays(
        np.dtype(name), hnp.array_shapes(min_dims=0, max_dims=4, min_side=0, max_side=4)
    )
)
NAMES = st.text(max_size=6)
FLAGS = st.dictionaries(NAMES, st.booleans(), max_size=2)
FINITE = st.floats(allow_nan=False, allow_infinity=False)


def travelled(value: Any) -> Any:
    """Returns an observation as a server decodes it."""
    frame = encode(Batch([Step("e", 0, {"a": value})]))
    item = decode_batch(frame).items[0]
    assert isinstance(item, Step)
    return item.observations["a"]


@given(ARRAYS)
def test_an_array_comes_back_bit_for_bit_whatever_its_memory_layout(array: NDArray[Any]) -> None:
    for version in (
        array,
        array.astype(array.dtype.newbyteorder(">")),
        np.asfortranarray(array),
        np.repeat(array[..., None], 2, -1)[..., 0],
        np.flip(np.flip(array[None]).copy())[0, ...],
    ):
        back = travelled(version)
        assert (back.dtype, back.shape) == (array.dtype, version.shape)
        assert back.tobytes() == array.tobytes()
        assert back.flags.aligned


def test_arrays_inside_dicts_and_lists() -> None:
    back = travelled({"image": np.zeros((2, 2), np.uint8), "rest": [np.float32(1.5), np.ones(1)]})
    assert back["image"].dtype == np.uint8
    assert back["rest"][0] == 1.5
    assert back["rest"][1].tolist() == [1.0]


@pytest.mark.parametrize(
    "value",
    [np.array(["text"]), np.array([object()]), np.array([1j]), np.array(1, "M8[s]"),
     np.zeros((1,) * 33), object(), {1, 2}.__iter__()],
)  # fmt: skip
def test_a_value_that_cannot_be_encoded_is_refused_by_its_sender(value: Any) -> None:
    with pytest.raises(TypeError, match="cannot travel"):
        travelled(value)


ITEMS = st.one_of(
    st.builds(StartEpisode, NAMES, st.sampled_from(["train", "eval"]), st.none() | st.booleans()),
    st.builds(
        Step,
        NAMES,
        st.integers(0, 2**40),
        st.dictionaries(NAMES, st.lists(FINITE, max_size=3), max_size=2),
        st.dictionaries(NAMES, FINITE, max_size=2),
        FLAGS,
        FLAGS,
    ),
    st.builds(EndEpisode, NAMES, st.integers(0, 9), st.booleans(), truncations=FLAGS),
    st.builds(AbortEpisode, NAMES, NAMES),
)
REPLIES = st.one_of(
    st.builds(Started, NAMES),
    st.builds(Actions, NAMES, st.integers(0, 9), st.dictionaries(NAMES, st.integers(0, 9))),
    st.builds(Ended, NAMES, st.integers(0, 9), st.dictionaries(NAMES, FINITE)),
    st.builds(Aborted, NAMES),
    st.builds(Refused, NAMES, st.integers(400, 503), NAMES, st.none() | NAMES, expected=NAMES),
)


@given(st.lists(ITEMS, max_size=3), st.lists(REPLIES, max_size=3))
def test_messages_are_the_same_in_both_forms(items: list[Any], replies: list[Any]) -> None:
    batch, reply = Batch(items), BatchReply(replies)
    assert decode_batch(encode(batch)) == decode_batch(encode_json(batch).decode()) == batch
    assert decode_batch_reply(encode(reply)) == reply
    assert decode_batch_reply(encode_json(reply).decode()) == reply


def test_fields_that_are_left_out_take_no_bytes() -> None:
    assert (
        encode_json(Step("e", 0, {})) == b'{"type":"step","episode_id":"e","t":0,"observations":{}}'
    )


# --- refusals ---------------------------------------------------------------------------

BEFORE = '{"items":[{"type":"step","episode_id":"e","t":0,"observations":{"a":['
AFTER = "]}}]}"


def framed(extension: bytes, code: int = ARRAY_EXTENSION) -> bytes:
    """Returns a batch whose only observation is an extension value with these bytes."""
    step = {"type": "step", "episode_id": "e", "t": 0,
            "observations": {"a": msgspec.msgpack.Ext(code, extension)}}  # fmt: skip
    return msgspec.msgpack.encode({"items": [step]})


def header(dtype: bytes, *dims: int) -> bytes:
    return dtype + struct.pack(f"<BB{len(dims)}I", 0, len(dims), *dims)


ITEMS = {
    StartEpisode: {"episode_id": "e"},
    Step: {"episode_id": "e", "t": 0, "observations": {}},
    EndEpisode: {"episode_id": "e", "t": 0},
    AbortEpisode: {"episode_id": "e"},
    PlayedSteps: {"episode_id": "e", "weights_seq_no": 0, "steps": []},
}


@pytest.mark.parametrize(("kind", "name"), [(k, n) for k in ITEMS for n in k.__struct_fields__])
def test_an_array_in_the_place_of_something_else_is_refused(kind: Any, name: str) -> None:
    """`state` is the exception: its field takes anything, and a server checks it against the
    spec."""
    frame = encode_batch(Batch([kind(**{**ITEMS[kind], name: np.ones(2, np.float32)})]))
    if name == "state":
        assert decode_batch(frame).items[0].state.shape == (2,)
        return
    with pytest.raises(MalformedMessage, match=rf"{name}|`ext`|array"):
        decode_batch(frame)


@pytest.mark.parametrize(
    ("frame", "story"),
    [
        (framed(b""), "unknown dtype"),
        (framed(b"float32\0"), "broken header"),
        (framed(header(b"float128", 1) + bytes(16)), "unknown dtype 'float128'"),
        (framed(header(b"object", 1) + bytes(8)), "unknown dtype 'object'"),
        (framed(header(b"\xff\xfe", 1)), "unknown dtype"),
        (framed(b"float32\0\xff" + bytes(1020)), "broken header"),
        (framed(b"float32\0\x02" + bytes(4)), "cut short"),
        (framed(header(b"float32", 3) + bytes(11)), "is 12 bytes, but 11 came"),
        (framed(header(b"float32", 3) + bytes(13)), "is 12 bytes, but 13 came"),
        (framed(header(b"float32", 2**32 - 1, 2**32 - 1)), "but 0 came"),
        (framed(header(b"float32", 0, 2**32 - 1, 2**32 - 1, 2**32 - 1)), "too big"),
        (framed(header(b"float32", 0), code=7), "unknown extension 7"),
        (b"", "it is empty"),
        ("", "truncated"),
        ("[]", "Expected `object`"),
        ("{}", "missing required field `items`"),
        ('{"items":[{"type":"jump","episode_id":"e"}]}', r"\$.items\[0\].type"),
        ('{"items":[{"episode_id":"e","t":0}]}', r"missing required field `type`"),
        ('{"items":[{"type":"step","episode_id":"e","t":"one","observations":{}}]}', r"\.t`"),
        ('{"items":[{"type":"step","episode_id":"e","t":0.5,"observations":{}}]}', r"\.t`"),
        ('{"items":[{"type":"step","episode_id":"e","t":0,"observations":[]}]}', r"\.observa"),
        ('{"items":[{"type":"end","episode_id":"e","t":0,"rewards":[1]}]}', r"\.rewards"),
        ('{"items":[{"type":"end","episode_id":[1],"t":0}]}', r"\.episode_id`"),
        ('{"items":[{"type":"end","episode_id":1,"t":0},2]}', r"Expected `object`"),
        ('{"items":[{"type":"start","episode_id":"e","mode":"test"}]}', r"\.mode`"),
        ("\ud800", "surrogates"),
        ("[" * 100_000, "Expected `object`"),
        (BEFORE + "[" * 50_000 + "]" * 50_000 + AFTER, "recursion"),
        (BEFORE + "9" * 10_000 + AFTER, "out of range"),
        *((BEFORE + nan + AFTER, "not a batch") for nan in ("NaN", "-Infinity", "nan", "1e999")),
        ('{"items":[{"type":"abort","episode_id":"e","reward":1},}', "unknown field `reward`"),
    ],
)  # fmt: skip
def test_the_refusal_names_what_is_wrong_and_where(frame: bytes | str, story: str) -> None:
    with pytest.raises(MalformedMessage, match=story):
        decode_batch(frame)


STEP = {"type": "step", "episode_id": "e", "t": 0, "observations": {}}


@pytest.mark.parametrize(
    ("message", "story"),
    [
        ({"items": [STEP, STEP | {"reward": {"a": 1.0}}]},
         "unknown field `reward` - at `$.items[1]`; did you mean 'rewards'?"),
        ({"items": [{"type": "end", "episode_id": "e", "t": 0, "truncated": True}]},
         "unknown field `truncated` - at `$.items[0]`; did you mean 'is_truncated'?"),
        ({"items": [{"type": "abort", "episode_id": "e", "colour": "green"}]},
         "unknown field `colour` - at `$.items[0]`; known are episode_id, reason"),
        ({"items": [], "token": ""}, """; a step is sent as {"items": [{"type": "step", ...}]}"""),
        ({}, """required field `items`; a step is sent as {"items": [{"type": "step", ...}]}"""),
        ({"items": [{"type": "played", "episode_id": "e", "weights_seq_no": 0,
                     "steps": [STEP | {"logged_action": {}}]}]},
         "- at `$.items[0].steps[0]`; did you mean 'logged_actions'?"),
        (STEP, """unknown field `type`; a step is sent as {"items": [{"type": "step", ...}]}"""),
    ],
)  # fmt: skip
@pytest.mark.parametrize("form", ["JSON", "msgpack"])
def test_a_misspelt_field_is_refused_with_the_likely_one(
    message: dict[str, Any], story: str, form: str
) -> None:
    """A step with `reward` in place of `rewards` would teach nothing if unknown fields were
    ignored."""
    frame = msgspec.json.encode(message).decode()
    with pytest.raises(MalformedMessage, match=f"not a batch of items: .*{re.escape(story)}$"):
        decode_batch(frame if form == "JSON" else msgspec.msgpack.encode(message))


@pytest.mark.parametrize("number", ["NaN", "-Infinity"])
def test_a_number_that_json_lacks_is_named(number: str) -> None:
    body = f'{{"t": 1, "rewards": {{"NaN": {number}}}}}'.encode()
    with pytest.raises(MalformedMessage, match=f"not an end: .*; JSON has no {number.strip('-')}$"):
        decode_json(body, EndEpisode)


def test_other_messages_are_refused_by_their_own_name() -> None:
    with pytest.raises(MalformedMessage, match=r"not a ServerSpec: .*protocol_version"):
        decode_json(b"{}", ServerSpec)
    with pytest.raises(MalformedMessage, match="not a batch of replies"):
        decode_batch_reply(b"\x80")


def refuses_or_reads(frame: bytes | str) -> None:
    for decode in (decode_batch, decode_batch_reply):
        try:
            decode(frame)
        except MalformedMessage:
            continue


WHOLE = encode(
    Batch([StartEpisode("e"), Step("e", 3, {"a": np.ones((2, 2), np.float32)}, {"a": 1.0})])
)


@pytest.mark.parametrize("length", [*range(len(WHOLE)), len(WHOLE) + 1])
def test_a_frame_cut_short_or_with_more_behind_it(length: int) -> None:
    with pytest.raises(MalformedMessage):
        decode_batch((WHOLE + b"\0")[:length])


@given(st.binary(max_size=60) | st.text(max_size=60))
def test_any_bytes_are_read_or_refused(frame: bytes | str) -> None:
    refuses_or_reads(frame)


@settings(max_examples=400)
@given(
    st.lists(st.tuples(st.integers(0, len(WHOLE) - 1), st.integers(0, 255)), min_size=1, max_size=3)
)
def test_any_flipped_bytes_are_read_or_refused(flips: list[tuple[int, int]]) -> None:
    frame = bytearray(WHOLE)
    for at, value in flips:
        frame[at] = value
    refuses_or_reads(bytes(frame))


@given(st.binary(max_size=40))
def test_any_extension_is_read_or_refused(extension: bytes) -> None:
    refuses_or_reads(framed(extension))
    refuses_or_reads(framed(b"float32\0" + extension))
