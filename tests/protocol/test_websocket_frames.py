"""Frames are cut out of a stream just as the parser and serializer of `websockets` do it."""

from __future__ import annotations

import sys
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st
from websockets.frames import Frame, Opcode
from websockets.protocol import CLIENT, SERVER, Protocol, State

from muxrl.protocol.websocket_frames import FrameCutter, Unparsed, binary_frame

MAX_BYTES = 70_000

_sizes = st.sampled_from([0, 1, 125, 126, 127, 65_535, 65_536, MAX_BYTES])
_kinds = st.sampled_from(["message", "text", "ping", "fragments"])


def frames_of(kind: str, size: int) -> list[Frame]:
    data = bytes(i % 251 for i in range(size))
    if kind == "message":
        return [Frame(Opcode.BINARY, data)]
    if kind == "text":
        return [Frame(Opcode.TEXT, b"a" * size)]
    if kind == "ping":
        return [Frame(Opcode.PING, data[:125])]
    middle = size // 2
    return [
        Frame(Opcode.BINARY, data[:middle], fin=False),
        Frame(Opcode.PING, b"in between"),
        Frame(Opcode.CONT, data[middle:]),
    ]


def messages_of(frames: list[Frame]) -> list[bytes]:
    """Returns the payloads of messages, text or binary, whole or in fragments."""
    messages, parts = [], []
    for frame in frames:
        if frame.opcode in (Opcode.BINARY, Opcode.TEXT, Opcode.CONT):
            parts.append(bytes(frame.data))
            if frame.fin:
                messages.append(b"".join(parts))
                parts = []
    return messages


def cut_into(data: bytes, at: list[int]) -> list[bytes]:
    points = [0, *sorted(p % (len(data) + 1) for p in at), len(data)]
    return [data[i:j] for i, j in pairwise(points) if i < j]


def read(pieces: list[bytes], *, is_masked: bool) -> list[bytes]:
    """Reads a stream as both sides do: the cutter takes whole binary messages, `websockets` the
    rest."""
    protocol = Protocol(SERVER if is_masked else CLIENT, state=State.OPEN, max_size=MAX_BYTES)
    cutter = FrameCutter(is_masked=is_masked, max_bytes=MAX_BYTES)
    messages: list[bytes] = []
    parts: list[Frame] = []
    for piece in pieces:
        for frame in cutter.cut(piece):
            if not isinstance(frame, Unparsed):
                messages.append(frame)
                continue
            protocol.receive_data(frame.data)
            assert not protocol.parser_exc, protocol.parser_exc
            parts += [f for f in protocol.events_received() if isinstance(f, Frame)]
            if parts and parts[-1].fin and parts[-1].opcode is not Opcode.PING:
                messages += messages_of(parts)
                parts = []
    return messages


@given(
    st.lists(st.tuples(_kinds, _sizes), min_size=1, max_size=6),
    st.lists(st.integers(0, 1 << 20), max_size=12),
    st.booleans(),
)
def test_every_message_of_a_stream_is_read_wherever_it_is_cut(
    kinds: list[tuple[str, int]], cuts: list[int], is_masked: bool
) -> None:
    frames = [frame for kind, size in kinds for frame in frames_of(kind, size)]
    stream = b"".join(frame.serialize(mask=is_masked) for frame in frames)

    assert read(cut_into(stream, cuts), is_masked=is_masked) == messages_of(frames)


@given(st.binary(max_size=300), st.booleans())
def test_websockets_reads_a_message_that_muxrl_writes(message: bytes, is_masked: bool) -> None:
    protocol = Protocol(SERVER if is_masked else CLIENT, state=State.OPEN)
    protocol.receive_data(binary_frame(message, is_masked=is_masked))

    (frame,) = protocol.events_received()
    assert isinstance(frame, Frame)
    assert (frame.opcode, frame.fin, bytes(frame.data)) == (Opcode.BINARY, True, message)


@pytest.mark.parametrize("size", [125, 126, 65_535, 65_536, MAX_BYTES])
def test_a_message_comes_back_in_every_length_of_header(size: int) -> None:
    message = bytes(size)
    for is_masked in (True, False):
        frame = binary_frame(message, is_masked=is_masked)
        assert FrameCutter(is_masked=is_masked, max_bytes=size).cut(frame) == [message]


def test_a_frame_that_drips_in_takes_no_more_memory_than_it_has_bytes() -> None:
    message = bytes(range(256)) * 100
    frame = binary_frame(message, is_masked=True)
    cutter = FrameCutter(is_masked=True, max_bytes=MAX_BYTES)
    for i in range(len(frame) - 1):
        assert cutter.cut(frame[i : i + 1]) == []
    _, part = cutter._parts
    assert sys.getsizeof(part) < 2 * len(frame)
    assert cutter.cut(frame[-1:]) == [message]


@pytest.mark.parametrize(
    ("wrong", "refusal"),
    [
        (Frame(Opcode.BINARY, bytes(MAX_BYTES + 1)).serialize(mask=True), "PayloadTooBig"),
        (Frame(Opcode.BINARY, b"unmasked").serialize(mask=False), "ProtocolError"),
        (b"\x83\x80abcd", "ProtocolError"),  # an unknown kind of frame
        (b"\xc2\x80abcd", "ProtocolError"),  # compressed, which the handshake did not agree on
        (
            Frame(Opcode.BINARY, b"a", fin=False).serialize(mask=True)
            + Frame(Opcode.BINARY, b"b").serialize(mask=True),
            "ProtocolError",
        ),
    ],
    ids=["too long", "not masked", "unknown kind", "compressed", "within another message"],
)
def test_a_frame_that_websockets_refuses_is_left_to_it(wrong: bytes, refusal: str) -> None:
    """All that follows a frame that `websockets` refuses is left to it, too, whatever it looks
    like."""
    for pieces in ([wrong], [wrong[:1], wrong[1:2], wrong[2:]]):
        protocol = Protocol(SERVER, state=State.OPEN, max_size=MAX_BYTES)
        cutter = FrameCutter(is_masked=True, max_bytes=MAX_BYTES)
        for piece in pieces:
            for frame in cutter.cut(piece):
                assert isinstance(frame, Unparsed)
                if protocol.parser_exc is None:
                    protocol.receive_data(frame.data)
        assert type(protocol.parser_exc).__name__ == refusal
