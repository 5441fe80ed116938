from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from muxrl.protocol.suggestions import did_you_mean

AGENTS = ["agent_0", "agent_1", "agent_2"]


def test_equally_similar_names_stay_in_their_order() -> None:
    assert did_you_mean("agent_9", AGENTS) == "; did you mean 'agent_0'?"
    assert did_you_mean("agent_9", AGENTS, most=2) == "; did you mean 'agent_0' or 'agent_1'?"


def test_the_most_similar_name_goes_first_whatever_its_case() -> None:
    assert did_you_mean("QMX", ["max", "qmix", "PPO"]) == "; did you mean 'qmix'?"


@given(st.text(max_size=12), st.lists(st.text(max_size=12), max_size=6))
def test_only_known_names_are_suggested(word: str, known: list[str]) -> None:
    hint = did_you_mean(word, known)
    assert not hint or any(hint == f"; did you mean {name!r}?" for name in known)


def test_a_word_unlike_all_known_names_gets_no_suggestion() -> None:
    assert did_you_mean("zebra", AGENTS) == ""
    assert did_you_mean("zebra", []) == ""
