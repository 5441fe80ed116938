"""The mean over some agents, episode by episode, with agents and episodes missing."""

import numpy as np

from muxrl.orchestrator.records.series import returns_by_episode

NAN = float("nan")
RETURNS = {"a": [1.0, 2.0, None, None], "b": [3.0, None, 5.0, None], "c": [7.0, 7.0]}


def same(found: np.ndarray, expected: list[float]) -> bool:
    return np.array_equal(found, np.array(expected), equal_nan=True)


def test_an_agent_that_was_not_in_an_episode_does_not_count_there() -> None:
    assert same(returns_by_episode(RETURNS, ["a", "b"]), [2.0, 2.0, 5.0, NAN])
    assert same(returns_by_episode(RETURNS, ["a", "b"], is_sum=True), [4.0, 2.0, 5.0, NAN])


def test_an_agent_may_have_fewer_episodes() -> None:
    assert same(returns_by_episode(RETURNS, ["a", "c"]), [4.0, 4.5, NAN, NAN])


def test_unknown_agents_are_left_out() -> None:
    assert same(returns_by_episode(RETURNS, ["c", "nobody"]), [7.0, 7.0])
    assert returns_by_episode(RETURNS, ["nobody"]).shape == (0,)
