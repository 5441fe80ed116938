"""When the rows of agents that act together are tried, and when they are tried again."""

from __future__ import annotations

from muxrl.client.lineups import MOST_MISSES, Lineups

AGENTS = ("a", "b")


def made() -> tuple[Lineups[str], list[tuple[str, ...]]]:
    """Returns a memory, and the lineups that it has made something of."""
    asked: list[tuple[str, ...]] = []

    def make(agents: tuple[str, ...]) -> str:
        asked.append(agents)
        return "+".join(agents)

    return Lineups(make), asked


def test_a_lineup_is_made_once() -> None:
    lineups, asked = made()
    assert [lineups.find(AGENTS) for _ in range(3)] == ["a+b"] * 3
    assert asked == [AGENTS]


def test_rows_that_a_server_takes_apart_rest_for_a_while() -> None:
    lineups, _ = made()
    for _ in range(MOST_MISSES):
        assert lineups.find(AGENTS) == "a+b"
        lineups.note(AGENTS, were_read=False)
    assert lineups.find(("a",)) == "a", "others go on"
    num_rests = 0
    while lineups.find(AGENTS) is None:
        num_rests += 1
    assert 900 < num_rests < 1_100
    lineups.note(AGENTS, were_read=False)
    assert lineups.find(AGENTS) is None, "one more miss, and they rest again"


def test_misses_count_in_a_row() -> None:
    lineups, _ = made()
    for _ in range(3 * MOST_MISSES):
        lineups.note(AGENTS, were_read=False)
        lineups.note(AGENTS, were_read=True)
    assert lineups.find(AGENTS) == "a+b"


def test_combinations_without_end_are_forgotten() -> None:
    lineups, asked = made()
    for i in range(1_500):
        lineups.find((f"driver_{i}",))
    assert lineups.find(("driver_0",)) == "driver_0"
    assert len(asked) == 1_501
    assert len(lineups._known) < 1_000
