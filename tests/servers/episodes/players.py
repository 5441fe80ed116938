"""Gives the same steps to stores one by one, or in rows as a client would pack them."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

import msgspec
import numpy as np
from tests.servers.packing import answers_of, packed
from tests.servers.scripted_store import ScriptedStore

from muxrl.protocol.errors import ProtocolError
from muxrl.protocol.messages import ActionRows, Refused, StepRows
from muxrl.protocol.spaces import Box
from muxrl.servers.acting import Asked
from muxrl.servers.episodes.blocks import Awaited, Block, Chosen
from muxrl.servers.episodes.trajectories import Chunk


class Player:
    """Plays on a store whose policies remember how often a seat has acted.

    Attributes:
        num_in_rows: number of steps that the store has taken in rows.

    Args:
        store: its policies act by a script.
    """

    def __init__(self, store: ScriptedStore) -> None:
        self.store = store
        self.num_in_rows = 0

    def tell(self, items: list[Any]) -> list[Any]:
        """Gives items to the store, plain steps in rows; returns the replies in the items'
        order."""
        agents = self.store.plan.agents
        told, order = packed(agents, items)
        replies = answers_of(agents, told, [self.accept(one) for one in told])
        self.store.store.finish_frame()
        of_items = {id(item): reply for item, reply in zip(order, replies, strict=True)}
        return [of_items[id(item)] for item in items]

    def accept(self, item: Any) -> Any:
        """Gives one item to the store, acts on it and returns the answer."""
        outcome: Any
        if isinstance(item, StepRows):
            outcome = self.store.store.accept_rows(item, self.store.now)
            if isinstance(outcome, list):
                return ActionRows(replies=[self.accept(step) for step in outcome])
            self.num_in_rows += len(item.episode_ids)
        else:
            outcome = self.store.store.accept(item, self.store.now)
        return self.act(outcome) if isinstance(outcome, Awaited) else outcome

    def act(self, awaited: Awaited) -> Any:
        """Acts on a waiting step or on waiting rows; returns the answer."""
        for block in awaited.blocks:
            if block.chosen is None:
                block.finish(remembering(self.store, block), self.store.weights_seq_no)
        return awaited.answer()


class ForgivingPlayer(Player):
    """A player that returns the message of a refusal as the answer."""

    def accept(self, item: Any) -> Any:
        try:
            return super().accept(item)
        except ProtocolError as error:
            return Refused(item.episode_id, code=error.code, message=error.message)


def remembering(store: ScriptedStore, block: Block) -> list[Chosen]:
    """Returns the actions of a store's policies, shifted by how often their seats have acted."""
    found = []
    for number, (one, own) in enumerate(zip(block.served.parts, store.choose(block), strict=True)):
        asked = Asked(one.policy_id, [block], [number])
        counts = asked.states(lambda: {"net": {"h": np.zeros(1, np.float32)}})["net"]["h"]
        counts = counts.reshape(len(block), -1, 1)
        actions, is_real = own.actions, isinstance(one.action_space, Box)
        odd = (counts % 2).reshape(counts.shape[:2] + (1,) * (actions.ndim - 2))
        moved = np.where(odd, 1 if not is_real else actions, actions).astype(actions.dtype)
        outputs = {"logp": counts[..., 0] / 2, "state": {"h": counts}}
        found.append(Chosen(moved, outputs, {"net": {"h": counts + 1}}))
    return found


def plain(value: Any) -> Any:
    """Returns a recorded or answered value in a form that can be compared with ``==``."""
    if isinstance(value, Mapping):
        return {key: plain(part) for key, part in value.items()}
    if isinstance(value, list | tuple):
        return tuple(map(plain, value))
    array = np.asarray(value)
    return array.dtype.name, array.shape, array.tobytes()


def plain_replies(replies: list[Any]) -> list[Any]:
    return [plain(msgspec.structs.asdict(reply)) for reply in replies]


def all_of(chunks: list[Chunk]) -> list[Any]:
    """Returns all fields of pieces of episodes, in a form that can be compared with ``==``."""
    return [
        (
            chunk.episode_id, chunk.t_started, chunk.weights_seq_nos,
            chunk.is_terminated, chunk.is_truncated,
            [{field.name: plain(getattr(one, field.name)) for field in dataclasses.fields(one)}
             for one in chunk.trajectories],
        )
        for chunk in chunks
    ]  # fmt: skip
