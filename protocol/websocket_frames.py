"""Writes and reads WebSocket frames that are whole binary messages, without a parser.

Nearly every frame is one whole binary message. The parser of `websockets`, which uses a generator
for each part of a header, takes longer for such a frame than the codec takes for its content. So
these frames are cut out of the stream here. All others (text, fragments, pings, closes, errors) are
left to `websockets` one by one, so that its parser is always between two frames.

Source: RFC 6455, section 5.2.
"""

from __future__ import annotations

import os
import secrets
import struct
from typing import NamedTuple

from websockets.frames import Frame, Opcode

try:
    from websockets.speedups import apply_mask
except ImportError:  # installed without its C extension
    from websockets.utils import apply_mask

_DATA = (Opcode.BINARY, Opcode.TEXT, Opcode.CONT)
_WHOLE_BINARY = 0x82
"""First byte of a frame that is a whole binary message: FIN, no extension, opcode 2."""
_WHOLE_TEXT = 0x81
_SMALL_BYTES = 4096
"""Smaller parts of a frame are joined, since each bytes object takes another 33 bytes."""
_MASKED = 0x80
_FIN = 0x80
_OPCODE = 0x0F
_FIRST_CONTROL = 0x8
_MASK_BYTES = 4
_SHORT_HEADER = struct.Struct("!BBH")
_LONG_HEADER = struct.Struct("!BBQ")


class Unparsed(NamedTuple):
    """Bytes for `websockets` to parse: a frame of another kind, or one that it should refuse."""

    data: bytes


def is_whole_text(frame: bytes) -> bool:
    """Whether a frame is a text message."""
    return frame[0] == _WHOLE_TEXT


def binary_frame(message: bytes, *, is_masked: bool) -> bytes:
    """Returns the frame of a binary message; clients mask their frames, servers do not."""
    mask_bit = _MASKED if is_masked else 0
    length = len(message)
    if length < 126:
        header = bytes((_WHOLE_BINARY, mask_bit | length))
    elif length < 1 << 16:
        header = _SHORT_HEADER.pack(_WHOLE_BINARY, mask_bit | 126, length)
    else:
        header = _LONG_HEADER.pack(_WHOLE_BINARY, mask_bit | 127, length)
    if not is_masked:
        return header + message
    mask = _new_mask()
    return header + mask + apply_mask(message, mask)


_masks: list[bytes] = []
if hasattr(os, "register_at_fork"):  # not on Windows, which has no forks either
    os.register_at_fork(after_in_child=_masks.clear)


def _new_mask() -> bytes:
    """Returns unpredictable random bytes; draws many masks from the system at once."""
    try:
        return _masks.pop()
    except IndexError:
        drawn = secrets.token_bytes(1024 * _MASK_BYTES)
        masks = [drawn[at : at + _MASK_BYTES] for at in range(0, len(drawn), _MASK_BYTES)]
        _masks.extend(masks[1:])
        return masks[0]


class Fragments:
    """Joins the frames that `websockets` has parsed into messages."""

    def __init__(self) -> None:
        self._partial = bytearray()  # a list would grow with empty frames
        self._is_text = False

    def add(self, frame: object) -> bytes | str | None:
        """Returns the message that ends with a frame; None if none does.

        Raises:
            UnicodeDecodeError: a text message is not UTF-8.
        """
        if not isinstance(frame, Frame) or frame.opcode not in _DATA:
            return None
        if frame.opcode is not Opcode.CONT:
            self._is_text = frame.opcode is Opcode.TEXT
        self._partial += frame.data
        if not frame.fin:
            return None
        message, self._partial = bytes(self._partial), bytearray()
        return message.decode() if self._is_text else message


class FrameCutter:
    """Cuts the received bytes of a connection into frames, after the handshake.

    Args:
        is_masked: whether the other side is a client, whose frames are masked.
        max_bytes: longest message; a longer one is left to `websockets`, which refuses it.
    """

    def __init__(self, *, is_masked: bool, max_bytes: int) -> None:
        self._is_masked = is_masked
        self._max_bytes = max_bytes
        self._parts: list[bytes | bytearray] = []
        """Received parts of a frame whose end has not come yet."""
        self._num_missing = 0
        self._is_fragmented = False
        self._is_broken = False
        """Whether the stream cannot be cut any more: `websockets` closes the connection."""

    @property
    def is_amid(self) -> bool:
        """Whether the end of a message that has begun is missing."""
        return self._is_fragmented or bool(self._parts)

    def cut(self, data: bytes) -> list[bytes | Unparsed]:
        """Returns the messages and other frames that are complete now, in order."""
        if self._parts:
            self._num_missing -= len(data)
            if len(data) > _SMALL_BYTES:
                self._parts.append(data)
            elif isinstance(self._parts[-1], bytearray):
                self._parts[-1] += data
            else:
                self._parts.append(bytearray(data))
            if self._num_missing > 0:
                return []
            data, self._parts = b"".join(self._parts), []
        frames: list[bytes | Unparsed] = []
        at = 0
        while at < len(data):
            begin, end = self._span(data, at)
            if end > len(data):
                self._parts, self._num_missing = [data[at:]], end - len(data)
                break
            if begin and data[at] == _WHOLE_BINARY and not self._is_fragmented:
                message = data[begin:end]
                if self._is_masked:
                    message = apply_mask(message, data[begin - _MASK_BYTES : begin])
                frames.append(message)
            else:
                if data[at] & _OPCODE < _FIRST_CONTROL:
                    self._is_fragmented = not data[at] & _FIN
                frames.append(Unparsed(data[at:end]))
            at = end
        return frames

    def _span(self, data: bytes, at: int) -> tuple[int, int]:
        """Returns where the payload of the frame at `at` begins and ends.

        The beginning is 0 if it is not known: either more of the header is needed, up to the
        returned end, or `websockets` has to refuse the frame, with everything after it.
        """
        if self._is_broken:
            return 0, len(data)
        if at + 2 > len(data):
            return 0, at + 2
        second = data[at + 1]
        begin, length = at + 2, second & ~_MASKED
        if length >= 126:
            begin = at + (4 if length == 126 else 10)
            if begin > len(data):
                return 0, begin
            length = int.from_bytes(data[at + 2 : begin], "big")
        if length > self._max_bytes or (second >= _MASKED) is not self._is_masked:
            self._is_broken = True
            return 0, len(data)
        if self._is_masked:
            begin += _MASK_BYTES
        return begin, begin + length
