"""Messages to bytes and back: msgpack for speed, JSON for everyone else.

In msgpack an array is one extension value: ``dtype, NUL, ndim, dims (uint32 LE), raw
little-endian bytes``. In JSON it is nested lists. There is no pickle.
"""

from __future__ import annotations

import codecs
import functools
import math
import re
import struct
import sys
from collections.abc import Callable
from typing import Any, TypeVar, get_args

import msgspec
import numpy as np
from numpy.typing import NDArray

from muxrl.protocol.errors import MalformedMessage
from muxrl.protocol.messages import (
    AbortEpisode,
    AnyItem,
    Batch,
    BatchReply,
    EndEpisode,
    PolicyWeights,
    StartEpisode,
    Step,
)
from muxrl.protocol.suggestions import did_you_mean
from muxrl.protocol.values import Mismatch, as_array

ARRAY_EXTENSION = 1
_DTYPES = frozenset(
    [f"float{bits}" for bits in (16, 32, 64)]
    + [f"{kind}{bits}" for kind in ("int", "uint") for bits in (8, 16, 32, 64)]
    + ["bool"]
)
_MAX_NDIM = 32
_MAX_HEADER_BYTES = len("float64") + 2 + 4 * _MAX_NDIM
_BOM = codecs.BOM_UTF8
_TEXT_BOM = _BOM.decode()
"""A byte-order mark, with which the libraries of some languages begin a text."""
_IS_BIG_ENDIAN = sys.byteorder == "big"
# msgspec raises a RecursionError for a value that is nested a thousand deep.
_NOT_A_MESSAGE = (msgspec.DecodeError, ValueError, RecursionError)
T = TypeVar("T")


@functools.lru_cache(maxsize=1024)
def _header(dtype: np.dtype[Any], shape: tuple[int, ...]) -> bytes:
    if dtype.name not in _DTYPES or len(shape) > _MAX_NDIM:
        raise TypeError(
            f"arrays of dtype {dtype} and {len(shape)} dimensions cannot travel; known are "
            f"{sorted(_DTYPES)} of up to {_MAX_NDIM} dimensions"
        )
    return dtype.name.encode() + struct.pack(f"<BB{len(shape)}I", 0, len(shape), *shape)


def _encode_hook(value: Any) -> Any:
    """Encodes an array or a tensor as an extension value, and a numpy scalar as a number."""
    if isinstance(value, np.ndarray):
        dtype = value.dtype
        if dtype.kind == "O":
            return value.tolist()
        header = _header(dtype, value.shape)
        if _IS_BIG_ENDIAN or not dtype.isnative:
            value = value.astype(dtype.newbyteorder("<"))
        return msgspec.msgpack.Ext(ARRAY_EXTENSION, header + value.tobytes())
    if isinstance(value, np.generic):
        return value.item()
    if hasattr(value, "__array__"):
        return _encode_hook(as_array(value))
    raise TypeError(f"a {type(value).__name__} cannot travel")


def _tolerant(hook: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """Returns a hook that sends a description of a value that cannot be encoded.

    The server refuses the description, and names the agent whose value it is.
    """

    def describe(value: Any) -> Any:
        try:
            return hook(value)
        except TypeError as error:
            return str(error)
        except Mismatch as error:
            return error.got

    return describe


def _decode_extension(
    code: int, data: memoryview, copy: type[bytes | bytearray] = bytes
) -> NDArray[Any]:
    """Decodes an array, read-only and aligned, without which numpy takes up to twice as long."""
    if code != ARRAY_EXTENSION:
        raise ValueError(f"unknown extension {code}")
    # Few different headers come again and again, so they are cached.
    header = bytes(data[:_MAX_HEADER_BYTES])
    at = header.find(b"\0") + 1  # behind the name
    if at < len(header):
        header = header[: at + 1 + 4 * header[at]]
    dtype, shape, num_bytes = _read_header(header)
    numbers = data[len(header) :]
    if len(numbers) != num_bytes:
        raise ValueError(
            f"not an array: {dtype.name} of shape {shape} is {num_bytes} bytes, "
            f"but {len(numbers)} came"
        )
    array = np.frombuffer(copy(numbers), dtype) if num_bytes else np.empty(0, dtype)
    return array if len(shape) == 1 else array.reshape(shape)


def _decode_writable(code: int, data: memoryview) -> NDArray[Any]:
    """Decodes a writable array: a simulation may change the actions that it gets."""
    return _decode_extension(code, data, bytearray)


@functools.lru_cache(maxsize=1024)
def _read_header(header: bytes) -> tuple[np.dtype[Any], tuple[int, ...], int]:
    name, separator, rest = header.partition(b"\0")
    dtype_name = name.decode("ascii", "replace")
    if not separator or dtype_name not in _DTYPES or not rest or rest[0] > _MAX_NDIM:
        raise ValueError(f"not an array: unknown dtype {dtype_name[:20]!r} or broken header")
    if len(rest) < 1 + 4 * rest[0]:
        raise ValueError("not an array: its header is cut short")
    shape = struct.unpack_from(f"<{rest[0]}I", rest, 1)
    dtype = np.dtype(dtype_name).newbyteorder("<")
    return dtype, shape, math.prod(shape) * dtype.itemsize


def _json_hook(value: Any) -> Any:
    if isinstance(value, np.generic):
        return value.item()
    if hasattr(value, "__array__"):
        return as_array(value).tolist()
    raise TypeError(f"a {type(value).__name__} cannot travel")


_msgpack_encoder = msgspec.msgpack.Encoder(enc_hook=_encode_hook)
_tolerant_msgpack_encoder = msgspec.msgpack.Encoder(enc_hook=_tolerant(_encode_hook))
_msgpack_batch = msgspec.msgpack.Decoder(Batch, ext_hook=_decode_extension)
_msgpack_reply = msgspec.msgpack.Decoder(BatchReply, ext_hook=_decode_writable)
_msgpack_weights = msgspec.msgpack.Decoder(PolicyWeights, ext_hook=_decode_extension)
_json_encoder = msgspec.json.Encoder(enc_hook=_json_hook)
_tolerant_json_encoder = msgspec.json.Encoder(enc_hook=_tolerant(_json_hook))
_json_batch = msgspec.json.Decoder(Batch)
_json_reply = msgspec.json.Decoder(BatchReply)


def encode(message: msgspec.Struct) -> bytes:
    """Returns the msgpack bytes of any message."""
    return _msgpack_encoder.encode(message)


def encode_json(message: Any) -> bytes:
    """Returns the JSON bytes of any message; NaN and infinity become null."""
    return _json_encoder.encode(message)


def encode_batch(batch: Batch, *, as_json: bool = False) -> bytes:
    """Returns a client's frame; a value that cannot be encoded is replaced by a text that says why.

    The server refuses this text like any wrong value, and names the agent and what it expected.
    """
    try:
        return (_json_encoder if as_json else _msgpack_encoder).encode(batch)
    except (TypeError, Mismatch):
        return (_tolerant_json_encoder if as_json else _tolerant_msgpack_encoder).encode(batch)


def decode_batch(frame: bytes | str) -> Batch:
    """Decodes a client's frame: msgpack if it is bytes, JSON if it is text.

    Raises:
        MalformedMessage: not a `Batch`; the text names the path of what is wrong.
    """
    try:
        if isinstance(frame, str):
            return _json_batch.decode(frame.removeprefix(_TEXT_BOM))
        return _msgpack_batch.decode(frame)
    except _NOT_A_MESSAGE as error:
        if isinstance(frame, str):
            return _as_meant(
                lambda: msgspec.json.decode(frame.removeprefix(_TEXT_BOM)), Batch, frame, error
            )
        return _as_meant(
            lambda: msgspec.msgpack.decode(frame, ext_hook=_decode_extension), Batch, frame, error
        )


def decode_batch_reply(frame: bytes | str) -> BatchReply:
    """Decodes a server's frame.

    Raises:
        MalformedMessage: not a `BatchReply`.
    """
    try:
        return _json_reply.decode(frame) if isinstance(frame, str) else _msgpack_reply.decode(frame)
    except _NOT_A_MESSAGE as error:
        raise MalformedMessage(f"the frame is not a batch of replies: {error}") from None


def decode_weights(body: bytes) -> PolicyWeights:
    """Decodes the body of ``GET /v1/policies``.

    Raises:
        MalformedMessage: not a `PolicyWeights`.
    """
    try:
        return _msgpack_weights.decode(body)
    except _NOT_A_MESSAGE as error:
        raise MalformedMessage(f"not a PolicyWeights: {error}") from None


def decode_json(data: bytes, kind: type[T]) -> T:
    """Decodes a message of a known class from JSON.

    Raises:
        MalformedMessage: not such a message.
    """
    try:
        return msgspec.json.decode(data.removeprefix(_BOM), type=kind)
    except _NOT_A_MESSAGE as error:
        return _as_meant(lambda: msgspec.json.decode(data.removeprefix(_BOM)), kind, data, error)


def _as_meant(read: Callable[[], Any], kind: type[T], data: bytes | str, refusal: Exception) -> T:
    """Decodes a message again, less strictly: 3.0 is taken for 3, 0 and 1 for booleans, and an
    integer for the id of an episode; a text is still neither a number nor a boolean."""
    try:
        message: Any = read()
        for item in message["items"] if kind is Batch else [message]:
            if not isinstance(item, dict):
                continue
            if type(item.get("episode_id")) is int:
                item["episode_id"] = str(item["episode_id"])
            if type(t := item.get("t")) is float and t.is_integer():
                item["t"] = int(t)
            part: Any
            for part in (item, item.get("terminations"), item.get("truncations")):
                keys = ("is_truncated", "should_explore") if part is item else list(part or ())
                for key in keys:
                    if type(part.get(key)) is int and part[key] in (0, 1):
                        part[key] = bool(part[key])
    except (*_NOT_A_MESSAGE, AttributeError, KeyError, TypeError):  # it is something else
        raise _malformed(kind, data, refusal) from None
    try:
        return msgspec.convert(message, kind)
    except _NOT_A_MESSAGE as error:
        raise _malformed(kind, data, error) from None
    except AttributeError:  # msgspec asks an array, where an object belongs, for its keys
        raise _malformed(kind, data, refusal) from None


_NAMES: dict[Any, str] = {
    Batch: "a batch of items",
    StartEpisode: "a start",
    EndEpisode: "an end",
    AbortEpisode: "an abort",
}
_UNKNOWN_FIELD = re.compile(
    r"unknown field `(?P<field>[^`]*)`"
    r"(?: - at `\$\.items\[(?P<index>\d+)\](?P<of_played>\.steps)?)?"
)
_NO_NUMBER = re.compile(rb"[\[:,\s]-?(NaN|Infinity)\b", re.IGNORECASE)
_ITEMS = {str(kind.__struct_config__.tag): kind for kind in get_args(AnyItem)}


class _Kind(msgspec.Struct):
    type: str = ""


class _Kinds(msgspec.Struct):
    items: list[_Kind] = []


def _malformed(kind: Any, data: bytes | str, error: Exception) -> MalformedMessage:
    """Returns the refusal of bytes that are not such a message, with the likely cause."""
    what = _NAMES.get(kind)
    if what is None:
        what = f"a {kind.__name__}" if isinstance(kind, type) else "a JSON object"
    return MalformedMessage(f"not {what}: {error}{_cause(kind, data, error)}")


def _cause(kind: Any, data: bytes | str, error: Exception) -> str:
    if not data:
        return "; it is empty"
    text = data.encode(errors="replace") if isinstance(data, str) else data
    if "JSON is malformed" in str(error) and (found := _NO_NUMBER.search(text)):
        return f"; JSON has no {found[1].decode()}"
    unknown = _UNKNOWN_FIELD.search(str(error))
    of_batch = unknown is not None and kind is Batch and unknown["index"] is None
    if of_batch or str(error).endswith("required field `items`"):
        return '; a step is sent as {"items": [{"type": "step", ...}]}'
    if unknown is not None:
        if unknown["index"]:
            kind = Step if unknown["of_played"] else _kind_of_item(data, int(unknown["index"]))
        fields = getattr(kind, "__struct_fields__", ())
        similar = did_you_mean(unknown["field"], fields)
        return similar or (f"; known are {', '.join(fields)}" if fields else "")
    return ""


def _kind_of_item(data: bytes | str, index: int) -> Any:
    """Returns the class of an item of a batch; None if the batch cannot be read to its end."""
    try:
        if isinstance(data, str) or data.lstrip()[:1] == b"{":
            batch = msgspec.json.decode(data, type=_Kinds)
        else:
            batch = msgspec.msgpack.decode(data, type=_Kinds)
        return _ITEMS.get(batch.items[index].type)
    except _NOT_A_MESSAGE:
        return None
