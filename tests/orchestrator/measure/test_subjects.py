"""One number for each episode of some agents, even if agents or episodes are missing.

It is computed from what was played, and from a run's wide frame.
"""

import numpy as np
import pytest

from muxrl.orchestrator.measure.subjects import Subject, measured
from muxrl.orchestrator.records.evaluations import EvaluationPoint, wide_frame
from muxrl.orchestrator.records.rows import EvaluationRow
from muxrl.orchestrator.records.series import returns_by_episode

NAN = float("nan")
RETURNS = {"a": [1.0, 2.0, None, None], "b": [3.0, None, 5.0, None], "c": [7.0, 7.0]}
HITS = {"a": [2.0, 4.0, None, None]}


def row(replaced: str | None = None) -> EvaluationRow:
    return EvaluationRow(env_steps=9, replaced=replaced, returns=RETURNS, metrics={"hits": HITS})


@pytest.mark.parametrize(
    ("agents", "means"),
    [
        (("a", "b"), [2.0, 2.0, 5.0, NAN]),
        (("a", "c"), [4.0, 4.5, NAN, NAN]),  # an agent may have fewer episodes
        (("c", "nobody"), [7.0, 7.0, NAN, NAN]),
        (("nobody",), [NAN] * 4),
    ],
)
def test_an_agent_that_was_not_in_an_episode_does_not_count_there(
    agents: tuple[str, ...], means: list[float]
) -> None:
    subject = Subject("role", "some", agents)
    values = subject.of(wide_frame({(9, ""): row()}))
    np.testing.assert_array_equal(values, means)
    played = subject.returns(RETURNS)
    np.testing.assert_array_equal(played, means[: len(played)])


def test_all_agents_together_are_summed() -> None:
    subject = Subject("total", "all agents", ("a", "b"))
    expected = [4.0, 2.0, 5.0, NAN]
    np.testing.assert_array_equal(subject.of(wide_frame({(9, ""): row()})), expected)
    np.testing.assert_array_equal(subject.returns(RETURNS), expected)
    assert returns_by_episode(RETURNS, ["nobody"]).shape == (0,)


def test_metrics_are_averaged_over_agents_as_returns_are() -> None:
    rows = {(9, who): row(who) for who in ("", "ppo", "ppo/left:untrained")}
    frame, points = wide_frame(rows), [EvaluationPoint(5), EvaluationPoint(9, first_seed=3)]
    hits = Subject("metric", "hits", ("a", "b"), "hits")
    (found,) = measured(frame, points, hits, "ppo")
    assert (found.env_steps, found.first_seed, found.untrained) == (9, 3, None)
    for values in (found.learned, found.random):
        np.testing.assert_array_equal(values, [2.0, 4.0, NAN, NAN])
    (of_side,) = measured(frame, points, hits, "ppo/left")
    assert of_side.random is None
    assert of_side.untrained is not None
    assert measured(frame, points, Subject("metric", "wins", ("a",), "wins")) == []
    assert found.cut(1).learned.tolist() == [2.0]
