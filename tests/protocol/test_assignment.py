"""An assignment can be read back from its string and has its own file name, whatever the names in
it."""

import re

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from muxrl.protocol.assignment import canonical, file_name, parse, server_labels

NAMES = st.text("ab%:|,3ACé2C75", min_size=1, max_size=5)


@st.composite
def assignments(draw):
    agents = draw(st.lists(NAMES, unique=True, min_size=1, max_size=8))
    labels = draw(st.lists(NAMES, unique=True, min_size=1, max_size=len(agents)))
    parts = {label: [agents[i]] for i, label in enumerate(labels)}
    for agent in agents[len(labels) :]:
        parts[draw(st.sampled_from(labels))].append(agent)
    return parts


def in_order(assignment):
    return {label: tuple(sorted(agents)) for label, agents in assignment.items()}


@given(assignments())
@example({})
def test_an_assignment_can_be_read_back_from_its_string(assignment):
    assert parse(canonical(assignment)) == in_order(assignment)


@given(assignments(), st.randoms(use_true_random=False))
def test_order_does_not_matter(assignment, random):
    items = [(label, random.sample(agents, len(agents))) for label, agents in assignment.items()]
    random.shuffle(items)
    assert canonical(dict(items)) == canonical(assignment)


def test_the_canonical_string_sorts_names_and_escapes_its_separators():
    assert canonical({"ppo": ["agent_0"], "qmix": ["adversary_1", "adversary_0"]}) == (
        "qmix:adversary_0,adversary_1|ppo:agent_0"
    )
    assert canonical({"p": ["a:1", "b|2"]}) == "p:a%3A1,b%7C2"


@pytest.mark.parametrize(
    "assignment", [{"a": []}, {"": ["x"]}, {"a": [""]}, {"a": ["x"], "b": ["x"]}, {"a": ["x", "x"]}]
)
def test_assignments_with_empty_or_repeated_names_are_refused(assignment):
    with pytest.raises(ValueError, match="assign"):
        canonical(assignment)


@pytest.mark.parametrize("text", ["a", "a:", ":x", "a:x|", "a:x|a:y", "a:x|b:x", "a:x:y", "a:x,"])
def test_other_strings_are_refused_as_assignments(text):
    with pytest.raises(ValueError, match="'"):
        parse(text)


def test_labels_are_algorithms_with_the_server_where_two_run_the_same():
    assert server_labels({"one": "QMIX", "left": "PPO", "right": "ppo"}) == {
        "one": "qmix",
        "left": "ppo@left",
        "right": "ppo@right",
    }


@given(assignments(), assignments())
def test_two_assignments_never_share_a_file_name(one, other):
    names = file_name(canonical(one)), file_name(canonical(other))
    assert (names[0] == names[1]) == (in_order(one) == in_order(other))


@given(assignments())
def test_an_assignment_s_file_name_is_valid_on_every_system(assignment):
    name = file_name(canonical(assignment))
    assert re.fullmatch("[a-z0-9][a-z0-9_-]*", name)
    assert len(name) <= 53


def test_a_file_name_can_be_read():
    one = canonical({"qmix": ["p_0", "p_1"], "PPO@prey": ["q_0"], "a2c": ["q_1"]})
    assert re.fullmatch("qmix-ppo_prey-a2c-[0-9a-f]{12}", file_name(one))
    assert file_name(canonical({})).startswith("assignment-")


def test_only_a_canonical_string_names_a_file():
    with pytest.raises(ValueError, match=r"that would be 'a:x\|b:y'"):
        file_name("b:y|a:x")
