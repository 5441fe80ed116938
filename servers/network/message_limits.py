"""Limits on the content of a message, checked before it is read.

A message is read on the event loop, so all clients wait meanwhile. Arrays of msgpack cost next to
nothing, as their numbers are not copied one by one. Everywhere else, each list, dict and number
becomes a Python object: 20 million bytes of msgpack can be 20 million lists, which take seconds and
gigabytes. So everything except arrays is limited to what can be read in half a second.
"""

from __future__ import annotations

import contextlib
import functools
import gc
from collections.abc import Iterator, Mapping
from typing import Annotated, Any, TypeVar

import msgspec
from msgspec import Meta, Raw

from muxrl.protocol.codec import decode_batch, decode_json, encode_json
from muxrl.protocol.errors import MalformedMessage, MessageTooLarge
from muxrl.protocol.message_sizes import needed_items
from muxrl.protocol.messages import (
    AnyItem,
    Batch,
    PlayedRows,
    PlayedSteps,
    ServerSpec,
    Step,
    StepRows,
)
from muxrl.protocol.spaces import DictSpace, Space, TupleSpace

MAX_PLAIN_BYTES = 2 << 20
"""Most bytes of a msgpack message outside of arrays. Empty lists, the slowest, have one byte."""
MAX_JSON_NUMBERS = 4_000_000
MAX_JSON_LISTS = 1_000_000
"""Most values and most lists of a JSON message; a list takes as long as ten numbers. Dicts count as
lists."""
_PLAYED = 10_000
"""Most steps that were played elsewhere, over all episodes: to refuse them one by one takes a
second. It is twice what the Python client sends at once; for many episodes a server takes more."""

_LONG_BYTES = 1 << 16
"""Longest message to read without checks; nearly all are shorter."""

# First bytes of an extension value (ext 8 to 32, fixext 1 to 16), which is how arrays are sent.
_EXTENSIONS = frozenset({0xC7, 0xC8, 0xC9, 0xD4, 0xD5, 0xD6, 0xD7, 0xD8})


T = TypeVar("T", bound=AnyItem)


class MessageLimits:
    """Reads the messages of a server's clients, unless they are too large.

    Args:
        spec: the server.
    """

    def __init__(self, spec: ServerSpec) -> None:
        self._max_items = needed_items(spec.max_episodes)
        self._takes_rows = spec.takes_rows
        seen = {a: agent.observation_space for a, agent in spec.agents.items()}
        acts = {a: agent.action_space for a, agent in spec.agents.items()}
        self._spaces = {"observations": seen, "final_observations": seen, "logged_actions": acts}
        """By field of an item, then by agent."""
        self._kinds: list[Space] = []
        for space in (*seen.values(), *acts.values()):
            if space not in self._kinds:
                self._kinds.append(space)
        at_most = Meta(max_length=len(spec.agents))
        values = Annotated[dict[str, Raw], at_most] | Annotated[list[Raw], at_most]
        item = msgspec.defstruct(
            "ItemOutline",
            [
                *((name, values, {}) for name in self._spaces),
                *((name, Raw, Raw()) for name in _ARRAYS),
            ],
        )
        items = Annotated[list[item], Meta(max_length=self._max_items)]  # type: ignore[valid-type]
        self._outline: msgspec.msgpack.Decoder[Any] = msgspec.msgpack.Decoder(
            msgspec.defstruct("BatchOutline", [("items", items)])
        )

    def read(self, message: bytes | str) -> list[AnyItem]:
        """Returns the items of a WebSocket message: msgpack if it is bytes, JSON if it is text.

        Raises:
            MalformedMessage: the message is not a batch.
            MessageTooLarge: the message has more content than is allowed.
        """
        if len(message) <= _LONG_BYTES:
            return self._counted(decode_batch(message))
        if isinstance(message, str):
            self.check_json(message)
        elif len(message) > MAX_PLAIN_BYTES:
            self._check_msgpack(message)
        with _collection_off():
            return self._counted(decode_batch(message))

    def read_json(self, body: bytes) -> list[AnyItem]:
        """Returns the items of an HTTP body.

        Raises:
            MalformedMessage, MessageTooLarge: as `read`.
        """
        self.check_json(body)
        with _collection_off():
            return self._counted(decode_json(body, Batch))

    def read_fields(self, body: bytes) -> dict[str, Raw]:
        """Returns the fields of an HTTP body with a single item, each as JSON.

        Raises:
            MalformedMessage: the body is not a JSON object.
            MessageTooLarge: as `read`.
        """
        self.check_json(body)
        try:
            body.decode()  # the fields' contents are not decoded here
        except UnicodeDecodeError as error:
            raise MalformedMessage(f"not a JSON object: {error}") from None
        return decode_json(body, dict[str, Raw])

    def read_item(self, fields: Mapping[str, Raw | str], kind: type[T]) -> T:
        """Returns the item of a kind that is made of these fields.

        Raises:
            MalformedMessage: there is no such item.
        """
        text = encode_json({"type": kind.__struct_config__.tag, **fields})
        with _collection_off():
            return decode_json(text, kind)

    def check_json(self, text: bytes | str) -> None:
        """Raises `MessageTooLarge` if a JSON text has too many lists or numbers."""
        if len(text) <= MAX_JSON_LISTS:  # each list or number has at least one character
            return
        if isinstance(text, str):
            num_lists, num_others = text.count("[") + text.count("{"), text.count(",")
        else:
            num_lists, num_others = text.count(b"[") + text.count(b"{"), text.count(b",")
        if num_lists > MAX_JSON_LISTS or num_others > MAX_JSON_NUMBERS:
            raise self._too_large(
                f"has {num_lists} lists and dicts and {num_others + 1} values in JSON, over the "
                f"limit of {MAX_JSON_LISTS} and {MAX_JSON_NUMBERS}",
                expected=f"at most {MAX_JSON_LISTS} lists and {MAX_JSON_NUMBERS} values",
                got=f"{num_lists} lists and {num_others + 1} values",
            )

    def _check_msgpack(self, message: bytes) -> None:
        try:
            items = self._outline.decode(message).items
        except (msgspec.DecodeError, RecursionError):
            num_plain = len(message)  # not a batch, or one with more values than declared
        else:
            num_plain = len(message) - sum(map(self._array_bytes, items))
        if num_plain > MAX_PLAIN_BYTES:
            raise self._too_large(
                f"has {num_plain} bytes that are not in arrays, over the limit of "
                f"{MAX_PLAIN_BYTES}",
                expected=f"at most {MAX_PLAIN_BYTES} bytes that are not in arrays",
                got=f"{num_plain} bytes",
            )

    def _array_bytes(self, item: Any) -> int:
        total = sum(_array_bytes(None, getattr(item, name)) for name in _ARRAYS)
        for name, spaces in self._spaces.items():
            values = getattr(item, name)
            if isinstance(values, dict):
                total += sum(_array_bytes(spaces.get(a), value) for a, value in values.items())
            else:  # for a list, whose agents are unknown, the largest of all spaces
                total += sum(max(_array_bytes(k, value) for k in self._kinds) for value in values)
        return total

    def _counted(self, batch: Batch) -> list[AnyItem]:
        num, num_played = len(batch.items), 0
        for item in batch.items:
            if type(item) is Step:  # most are
                continue
            if isinstance(item, PlayedSteps):
                num_played += len(item.steps)
            elif isinstance(item, StepRows):
                if not self._takes_rows:
                    raise MalformedMessage(
                        "a step in rows came, but this server takes none (takes_rows in its spec)"
                    )
                was_played = isinstance(item, PlayedRows)
                num += -1 if was_played else len(item.episode_ids) - 1
                num_played += len(item.episode_ids) if was_played else 0
        self._check_number(num, self._max_items, "items")
        self._check_number(num_played, max(self._max_items, _PLAYED), "steps that a client played")
        return batch.items

    def _check_number(self, num: int, most: int, what: str) -> None:
        if num > most:
            raise self._too_large(
                f"has {num} {what}, over the limit of {most}, which follows from "
                "limits.max_episodes",
                expected=f"at most {most} {what}",
                got=f"{num} {what}",
            )

    def _too_large(self, reason: str, *, expected: str, got: str) -> MessageTooLarge:
        return MessageTooLarge(
            f"it {reason}; send observations as arrays of msgpack, over the WebSocket, and fewer "
            "episodes in one message",
            expected=expected,
            got=got,
        )


_ARRAYS = ("state", "rewards", "t", "logged_log_probs")


def _array_bytes(space: Space | None, value: Raw) -> int:
    """Returns how many bytes of a msgpack value are arrays, where its space has arrays."""
    data = memoryview(value)
    if len(data) and data[0] in _EXTENSIONS:
        return len(data)
    try:
        if isinstance(space, DictSpace):
            named = _decoder(dict[str, Raw], len(space.spaces)).decode(data)
            return sum(_array_bytes(space.spaces.get(key), part) for key, part in named.items())
        if isinstance(space, TupleSpace):
            parts = _decoder(list[Raw], len(space.spaces)).decode(data)
            return sum(map(_array_bytes, space.spaces, parts))
    except msgspec.DecodeError:
        pass  # not of this space; reading it will say so
    return 0


@contextlib.contextmanager
def _collection_off() -> Iterator[None]:
    """Keeps Python's garbage collector from looking for cycles while a message is read.

    A message has none, and a search goes through all of RLlib: with it, reading two million lists
    took 5 s, without it 0.2 s.
    """
    if not gc.isenabled():
        yield
        return
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


@functools.lru_cache(maxsize=64)
def _decoder(kind: Any, max_length: int) -> msgspec.msgpack.Decoder[Any]:
    return msgspec.msgpack.Decoder(Annotated[kind, Meta(max_length=max_length)])
