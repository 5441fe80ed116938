"""The default limit of messages has room for everything that the declared spaces can need."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from tests.protocol.some_spaces import SPACES

from muxrl.protocol.codec import encode, encode_json
from muxrl.protocol.message_sizes import (
    _space_bytes,
    answer_bytes,
    needed_bytes,
    needed_items,
)
from muxrl.protocol.messages import AgentInfo, Batch, ServerSpec, Step
from muxrl.protocol.spaces import Box, Discrete, Space
from muxrl.protocol.values import sample

IMAGE = Box((84, 84, 4), "uint8", 0, 255)


def agents(num: int, space: Space) -> dict[str, AgentInfo]:
    return {f"agent_{i}": AgentInfo("default", space, Discrete(3)) for i in range(num)}


@given(SPACES, st.integers(0, 2**16))
def test_a_value_is_no_longer_than_its_space_says(space: Space, seed: int) -> None:
    value = sample(space, np.random.default_rng(seed))
    assert len(encode_json(value)) <= _space_bytes(space)


def test_the_longest_number_and_the_longest_id_fit() -> None:
    numbers = np.full((5, 3), -2.2250738585072014e-308)
    there = agents(7, Box((5, 3), "float64"))
    observations = dict.fromkeys(there, numbers)
    step = Step(
        "é" * 256,
        2**31,
        observations,
        rewards=dict.fromkeys(there, -2.2250738585072014e-308),
        terminations=dict.fromkeys(there, False),
        truncations=dict.fromkeys(there, False),
        final_observations=observations,
        logged_actions=dict.fromkeys(there, 2),
        logged_log_probs=dict.fromkeys(there, -2.2250738585072014e-308),
        state=np.full(100, -2.2250738585072014e-308),
    )
    whole = Batch([step] * 500)
    limit = needed_bytes(there, 100, 500)
    assert 1 << 20 < limit < 64 << 20
    assert len(encode_json(whole)) <= limit
    assert len(encode(whole)) <= limit


def test_the_default_is_bounded_unless_one_item_is_longer() -> None:
    assert needed_bytes(agents(1, Discrete(2)), None, 1) == 1 << 20
    assert needed_bytes(agents(20, IMAGE), None, 1024) == 64 << 20
    assert needed_bytes(agents(1, Box((10_000_000,))), None, 1) > 500_000_000


def test_an_answer_has_room_for_a_refusal_of_each_item() -> None:
    spec = ServerSpec(1, "s", "PPO", agents(2, Discrete(3)), max_episodes=8, max_message_bytes=1000)
    assert answer_bytes(spec) > needed_items(8) * 3 * 2000
