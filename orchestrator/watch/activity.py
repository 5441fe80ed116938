"""What each server spent its time on, from the joint records: the strips of the page."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from muxrl.orchestrator.watch.thinned import Point, Thinned

STATES = ("acting", "learning", "holding", "waiting", "silent", "lost")
"""acting: nothing keeps its agents from acting; learning: they act while it updates; holding:
simulations wait for its update; waiting: they wait for another server, or for a checkpoint; silent:
it has not reported since the record before; lost: it is being started again."""


_MOST_STRETCHES = 300


class Activities:
    """Seconds that each server spent in each of `STATES`, for each stretch of the run.

    Args:
        server_ids: whose.
    """

    def __init__(self, server_ids: Sequence[str]) -> None:
        self._strips = {server_id: Thinned(_joined, _MOST_STRETCHES) for server_id in server_ids}
        self._num_refused = dict.fromkeys(server_ids, 0)
        self._before: Mapping[str, Any] = {}

    def add(self, record: Mapping[str, Any]) -> None:
        """Takes a joint record; those of runs from before these were recorded say nothing."""
        before, self._before = self._before, record
        begin_s, end_s = before.get("time_s", record["time_s"]), record["time_s"]
        now = record.get("servers") or {}
        shares = {s: _shares(now.get(s) or {}, _of(before, s)) for s in self._strips}
        has_stepped = record["env_steps"] > before.get("env_steps", 0)
        for server_id, strip in self._strips.items():
            refused = now.get(server_id, {}).get("num_refused", 0)
            self._num_refused[server_id] += max(
                0, refused - _of(before, server_id).get("num_refused", 0)
            )
            if (own := shares[server_id]) is None or end_s <= begin_s:
                continue
            learning, held, silent, lost = own
            others = [other[1] for s, other in shares.items() if s != server_id and other]
            rest = 1.0 - learning - held - silent - lost
            # When exactly others held is not recorded: as if it fell evenly on the rest.
            waiting = rest * (max(others, default=0.0) if has_stepped else 1.0)
            parts = (rest - waiting, learning, held, waiting, silent, lost)
            seconds = (_short((end_s - begin_s) * part) for part in parts)
            strip.add((_short(begin_s), _short(end_s), *seconds))

    def stretches(self, server_id: str) -> Sequence[Point]:
        """Returns ``(begin_s, end_s, seconds in each of STATES)``."""
        return self._strips[server_id].points

    def num_refused(self, server_id: str) -> int:
        """Returns how many items of messages the server refused, in all its processes."""
        return self._num_refused[server_id]


def _of(record: Mapping[str, Any], server_id: str) -> Mapping[str, Any]:
    return (record.get("servers") or {}).get(server_id) or {}


def _shares(
    now: Mapping[str, Any], before: Mapping[str, Any]
) -> tuple[float, float, float, float] | None:
    """Of learning while agents act, of holding, of being silent, of being lost; None: the server
    has never said anything."""
    if now.get("is_lost"):
        return 0.0, 0.0, 0.0, 1.0
    if "time_s" not in now:
        return None
    if now["time_s"] < before.get("time_s", 0.0):  # another process
        before = {}
    passed_s = now["time_s"] - before.get("time_s", 0.0)
    if passed_s <= 0:  # the run waits a second for a report, then records the one before
        return 0.0, 0.0, 1.0, 0.0
    learning, held = (
        min(1.0, max(0.0, (now[key] - before.get(key, 0.0)) / passed_s))
        for key in ("learning_s", "held_s")
    )
    return max(0.0, learning - held), held, 0.0, 0.0


def _joined(first: Point, second: Point) -> Point:
    sums = (_short(a + b) for a, b in zip(first[2:], second[2:], strict=True))
    return first[0], second[1], *sums


def _short(seconds: float) -> float:
    """Strips are most of what is sent each second: without digits that nobody sees, half of it."""
    return round(seconds, 4)
