import pytest
from hypothesis import given
from hypothesis import strategies as st

from muxrl.orchestrator.records.conditions import AS_LEARNED, Condition

SERVER_IDS = st.from_regex(r"[A-Za-z0-9][A-Za-z0-9_-]{0,20}", fullmatch=True)
SIDES = st.text(min_size=1).filter(lambda text: not text.endswith(":untrained"))
AGENTS = st.lists(st.text(), min_size=1).map(tuple)


@given(SERVER_IDS, st.none() | st.tuples(SIDES, AGENTS), st.booleans())
def test_a_condition_comes_back_from_its_record(
    server_id: str, side: tuple[str, tuple[str, ...]] | None, is_untrained: bool
) -> None:
    condition = Condition(server_id, *(side or ()), is_untrained=is_untrained)
    record = {"replaced": condition.key, "agents": list(condition.agents)}
    assert Condition.of_record(record) == condition


@pytest.mark.parametrize(
    ("condition", "key", "label"),
    [
        (AS_LEARNED, None, "all_learned"),
        (Condition("ppo"), "ppo", "ppo_random"),
        (Condition("ppo", is_untrained=True), "ppo:untrained", "ppo_untrained"),
        (Condition("ppo", "left", ("l",)), "ppo/left", "ppo_left_random"),
        (Condition("ppo", "left", ("l",), True), "ppo/left:untrained", "ppo_left_untrained"),
    ],
)
def test_keys_and_labels(condition: Condition, key: str | None, label: str) -> None:
    assert (condition.key, condition.label) == (key, label)


def test_records_without_the_field_of_sides_are_of_whole_servers() -> None:
    assert Condition.of_record({"replaced": "ppo"}) == Condition("ppo")
    assert Condition.of_record({"replaced": None}) == AS_LEARNED
