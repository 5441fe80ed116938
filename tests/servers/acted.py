"""What waits is acted on at once, as the loop of a server does it."""

from __future__ import annotations

from typing import Any

from muxrl.protocol.messages import Actions
from muxrl.servers.acting import Acting
from muxrl.servers.episodes.blocks import AwaitedRows, AwaitedStep


def act_on(acting: Acting, *awaited: Any) -> list[Any]:
    """Acts on steps that a store has taken in, in one pass; returns what each is answered."""
    assert all(isinstance(one, AwaitedStep | AwaitedRows) for one in awaited)
    blocks = [block for one in awaited for block in one.blocks]
    for block, chosen in zip(blocks, acting.act(blocks), strict=True):
        block.finish(*chosen)
    return [one.answer() for one in awaited]


def actions_of(acting: Acting, awaited: Any) -> dict[str, Any]:
    """Acts on one step; returns the actions by agent."""
    (answer,) = act_on(acting, awaited)
    assert isinstance(answer, Actions)
    return answer.actions
