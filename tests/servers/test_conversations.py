"""What holds in any conversation, with servers of every kind; see `conversations`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import pytest
from tests.servers.conversations import KINDS, as_dicts, differences, frames_of, plan_of, play

from muxrl.protocol.codec import decode_batch
from muxrl.protocol.messages import ActionRows, Actions, AnyItem, AnyReply, Refused, StepRows
from muxrl.protocol.rows import Lineup, row_of
from muxrl.servers.config import AgentPlan


@pytest.mark.parametrize("name", KINDS)
def test_every_item_is_answered_once_and_alike(name: str) -> None:
    plan = plan_of(KINDS[name])
    frames = frames_of(name, plan, seed=5, num_frames=80)
    answers, recorded = play(plan, frames)
    left = iter(answers)
    before, was = b"", []
    for frame in frames:
        items = decode_batch(frame).items
        now = [one for item in items for one in each_of(item, next(left), plan.agents)]
        assert {one.code for one in now if isinstance(one, Refused)} <= {409, 410, 422}
        for old, new in zip(was, now, strict=True) if frame == before else ():
            # What began in a frame and has gone on since cannot begin again.
            assert isinstance(new, Refused) or not list(differences(as_dicts(old), as_dicts(new)))
        before, was = frame, now
    assert next(left, None) is None
    assert recorded or plan.algorithm == "RANDOM"
    again, recorded_again = play(plan, frames)
    assert not list(differences(as_dicts(answers), as_dicts(again)))
    assert not list(differences(recorded, recorded_again))


def each_of(item: AnyItem, reply: AnyReply, agents: Mapping[str, AgentPlan]) -> Iterator[Any]:
    """Yields the answers that an item's rows would have had as single steps."""
    if not isinstance(item, StepRows) or not isinstance(reply, ActionRows):
        yield reply
        return
    if reply.replies:
        yield from reply.replies
        return
    lineup = Lineup(tuple(item.agents) or tuple(agents), agents)
    for i, (episode_id, t) in enumerate(zip(item.episode_ids, item.t.tolist(), strict=True)):
        actions = {
            agent_id: row_of(kind.space, rows, (i, j))
            for kind, rows in zip(lineup.acted, reply.actions, strict=True)
            for j, agent_id in enumerate(kind.agents)
        }
        yield Actions(episode_id, t, actions, reply.weights_seq_no)
