from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import convert

from muxrl.orchestrator.records.conditions import AS_LEARNED, Condition, seen_by
from muxrl.orchestrator.records.rows import EvaluationRow

SERVER_IDS = st.from_regex(r"[A-Za-z0-9][A-Za-z0-9_-]{0,20}", fullmatch=True)
SIDES = st.text(min_size=1).filter(lambda text: not text.endswith(":untrained"))
AGENTS = st.lists(st.text(), min_size=1).map(tuple)


@given(SERVER_IDS, st.none() | st.tuples(SIDES, AGENTS) | SERVER_IDS, st.booleans())
def test_a_condition_comes_back_from_its_row(
    server_id: str, who: tuple[str, tuple[str, ...]] | str | None, is_untrained: bool
) -> None:
    condition = Condition(server_id, is_untrained=is_untrained)
    if isinstance(who, str):
        condition = replace(condition, shadow=who)
    elif who is not None:
        condition = replace(condition, side=who[0], agents=who[1])
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
        (Condition("ppo", shadow="dqn"), "ppo=dqn", "ppo_as_dqn"),
        (Condition("ppo", "", (), True, "dqn"), "ppo=dqn:untrained", "ppo_as_dqn_untrained"),
    ],
)
def test_keys_and_labels(condition: Condition, key: str | None, label: str) -> None:
    assert (condition.key, condition.label) == (key, label)


def test_rows_without_the_field_of_sides_are_of_whole_servers() -> None:
    alone = EvaluationRow(env_steps=0, replaced="ppo", returns={})
    assert Condition.of_row(alone) == Condition("ppo")
    assert Condition.of_row(EvaluationRow(env_steps=0, replaced=None, returns={})) == AS_LEARNED


def test_a_shadow_is_seen_as_if_it_had_acted() -> None:
    keys = ["", "dqn", "rest", "dqn=sac", "dqn=td3", "dqn=sac:untrained", "rest/x=sac"]
    assert seen_by("sac", keys) == {
        "dqn=sac": "",
        "dqn": "sac",
        "dqn=sac:untrained": "sac:untrained",
        "": "dqn",
    }
    assert seen_by("sac", ["", "sac", "rest"]) == {"": "", "sac": "sac", "rest": "rest"}
    assert seen_by("dqn", ["", "sac", "rest"]) == {}
