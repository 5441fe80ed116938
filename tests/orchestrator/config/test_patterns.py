"""Properties of patterns: what they match, and in which order."""

from hypothesis import given
from hypothesis import strategies as st

from muxrl.orchestrator.config.patterns import match

NAMES = st.lists(st.text("ab0_[]*?!", min_size=1, max_size=6), unique=True, max_size=8)


@given(names=NAMES, patterns=st.lists(st.text("ab0_[]*?!", min_size=1, max_size=6), max_size=5))
def test_matches_are_known_names_once_each_and_every_pattern_is_accounted_for(names, patterns):
    matched, idle = match(patterns, names)
    assert len(matched) == len(set(matched))
    assert set(matched) <= set(names)
    assert set(idle) <= set(patterns)
    for pattern in patterns:
        assert (pattern in idle) == (not match([pattern], names)[0])


@given(names=NAMES)
def test_every_name_matches_itself_alone_and_a_star_matches_all_in_order(names):
    for name in names:
        assert match([name], names) == ([name], [])
    if names and "*" not in names:
        assert match(["*"], names) == (names, [])
