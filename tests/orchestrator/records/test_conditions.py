import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import convert

from muxrl.orchestrator.records.conditions import AS_LEARNED, Condition
from muxrl.orchestrator.records.rows import EvaluationRow

SERVER_IDS = st.from_regex(r"[A-Za-z0-9][A-Za-z0-9_-]{0,20}", fullmatch=True)
SIDES = st.text(min_size=1).filter(lambda text: not text.endswith(":untrained"))
AGENTS = st.lists(st.text(), min_size=1).map(tuple)


@given(SERVER_IDS, st.none() | st.tuples(SIDES, AGENTS), st.booleans())
def test_a_condition_comes_back_from_its_row(
    server_id: str, side: tuple[str, tuple[str, ...]] | None, is_untrained: bool
) -> None:
    condition = Condition(server_id, *(side or ()), is_untrained=is_untrained)
    row = {"env_steps": 0, "returns": {}, "replaced": condition.key, "agents": condition.agents}
    assert Condition.of_row(convert(row, EvaluationRow)) == condition


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


def test_rows_without_the_field_of_sides_are_of_whole_servers() -> None:
    alone = EvaluationRow(env_steps=0, replaced="ppo", returns={})
    assert Condition.of_row(alone) == Condition("ppo")
    assert Condition.of_row(EvaluationRow(env_steps=0, replaced=None, returns={})) == AS_LEARNED
