"""What must hold in any conversation with a server of any kind; see `conversations`."""

from __future__ import annotations

import pytest
from tests.servers.conversations import KINDS, frames_of, plan_of, play
from tests.servers.episodes.players import all_of, plain_replies
from tests.servers.packing import unpacked

from muxrl.protocol.codec import decode_batch
from muxrl.protocol.messages import Refused


@pytest.mark.parametrize("name", KINDS)
def test_every_item_is_answered_once_and_a_conversation_can_be_repeated(name: str) -> None:
    plan = plan_of(KINDS[name])
    frames = frames_of(name, plan, seed=5, num_frames=80)
    answers, recorded = play(plan, frames)
    left = iter(answers)
    before, was = b"", []
    for frame in frames:
        items = decode_batch(frame).items
        now = [next(left) for _ in unpacked(plan.agents, items)]
        assert {one.code for one in now if isinstance(one, Refused)} <= {409, 410, 422}
        for old, new in zip(was, now, strict=True) if frame == before else ():
            # An episode that started in the first frame and has gone on since cannot start again.
            assert isinstance(new, Refused) or plain_replies([old]) == plain_replies([new])
        before, was = frame, now
    assert next(left, None) is None
    assert recorded or plan.algorithm == "RANDOM"
    again, recorded_again = play(plan, frames)
    assert plain_replies(again) == plain_replies(answers)
    assert all_of(recorded_again) == all_of(recorded)
