"""Computes from joint rows what each server spent its time on, for the strips of the page."""

from __future__ import annotations

from collections.abc import Sequence

from muxrl.orchestrator.records.rows import JointRow, ServerState
from muxrl.orchestrator.records.thinned import Point, Thinned

STATES = ("acting", "learning", "holding", "waiting", "silent", "lost")
"""What a server can spend time on. acting: nothing keeps its agents from acting; learning: its
agents act while it updates; holding: simulations wait for its update; waiting: simulations wait for
another server or for a checkpoint; silent: it has not reported since the row before; lost: it is
being started again."""


_MOST_SPANS = 300
_UNKNOWN = ServerState()


class Activities:
    """Seconds that each server spent in each of `STATES`, for each stretch of the run.

    Args:
        server_ids: of the servers.
    """

    def __init__(self, server_ids: Sequence[str]) -> None:
        self._strips = {server_id: Thinned(_joined, _MOST_SPANS) for server_id in server_ids}
        self._num_refused = dict.fromkeys(server_ids, 0)
        self._before = JointRow(env_steps=0)

    def add(self, row: JointRow) -> None:
        """Adds a joint row; rows of old runs, which have no times, are ignored."""
        if row.time_s is None:
            return
        before, self._before = self._before, row
        begin_s, end_s = row.time_s if before.time_s is None else before.time_s, row.time_s
        # After a resumption all processes are new, and count from 0.
        since = {} if row.resumed_from is not None else before.servers
        states = {s: (row.servers.get(s, _UNKNOWN), since.get(s, _UNKNOWN)) for s in self._strips}
        row_s = end_s - begin_s
        shares = {s: _shares(now, then, row_s) for s, (now, then) in states.items()}
        has_stepped = row.env_steps > before.env_steps
        for server_id, strip in self._strips.items():
            now, then = states[server_id]
            refused = (now.num_refused or 0) - (then.num_refused or 0)
            self._num_refused[server_id] += max(0, refused)
            if (own := shares[server_id]) is None or row_s <= 0:
                continue
            learning, held, silent, lost = own
            others = [other[1] for s, other in shares.items() if s != server_id and other]
            rest = 1.0 - learning - held - silent - lost
            # It is not recorded when exactly others held; this spreads it evenly over the rest.
            waiting = rest * (max(others, default=0.0) if has_stepped else 1.0)
            parts = (rest - waiting, learning, held, waiting, silent, lost)
            seconds = (_short(row_s * part) for part in parts)
            strip.add((_short(begin_s), _short(end_s), *seconds))

    def spans(self, server_id: str) -> Sequence[Point]:
        """Returns ``(begin_s, end_s, seconds in each of STATES)``."""
        return self._strips[server_id].points

    def num_refused(self, server_id: str) -> int:
        """Returns how many items of messages the server refused, in all its processes."""
        return self._num_refused[server_id]


def _shares(
    now: ServerState, before: ServerState, row_s: float
) -> tuple[float, float, float, float] | None:
    """Returns the shares of learning while agents act, holding, being silent, and being lost.

    None if the server has never reported.
    """
    lost_s = now.lost_s - before.lost_s
    lost = min(1.0, lost_s / row_s) if lost_s > 0 < row_s else 0.0
    if now.is_lost:  # older runs do not say since when
        return (0.0, 0.0, 1.0 - lost, lost) if now.lost_s else (0.0, 0.0, 0.0, 1.0)
    if now.time_s is None:
        return None
    if before.time_s is None or now.time_s < before.time_s:  # the process is a new one
        before = _UNKNOWN
    passed_s = now.time_s - (before.time_s or 0.0)
    if passed_s <= 0:  # without a report in time, the run records the previous one again
        return 0.0, 0.0, 1.0 - lost, lost
    learning, held = (
        (1.0 - lost) * min(1.0, max(0.0, ((until or 0.0) - (since or 0.0)) / passed_s))
        for until, since in ((now.learning_s, before.learning_s), (now.held_s, before.held_s))
    )
    return max(0.0, learning - held), held, 0.0, lost


def _joined(first: Point, second: Point) -> Point:
    sums = (_short(a + b) for a, b in zip(first[2:], second[2:], strict=True))
    return first[0], second[1], *sums


def _short(seconds: float) -> float:
    """Rounds, which halves the strips; they are most of what is sent each second."""
    return round(seconds, 4)
