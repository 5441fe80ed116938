"""Shows a sweep's progress: a table of trials in a terminal, lines of text elsewhere."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Mapping, Sequence

from rich.console import Console, Group, RenderableType
from rich.text import Text

from muxrl.orchestrator.launch.progress import Display, duration
from muxrl.orchestrator.measure.number_text import MISSING, number
from muxrl.orchestrator.reports.plain_table import plain_table
from muxrl.orchestrator.sweeps.directory import TrialRecord, counts_text

_MIN_ROWS = 5
_OTHER_ROWS = 8
"""Lines of the window that hold no trial: headings, sums, and what a command prints around."""

_MIN_PART = 0.1
"""Part of a trial below which nothing is estimated: until then mostly the start took time."""


class SweepProgress(Display):
    """Shows a sweep's trials while the ``with`` block lasts.

    Args:
        name: the headline.
        metric: title of the metric by which trials are compared.
        records: of all trials so far; their state is read anew each time, and the list may grow.
        num_trials: of the whole sweep.
        console: where to show it.
    """

    interval_s = 60.0  # sweeps take hours
    is_transient = True  # the table of results follows

    def __init__(
        self,
        name: str,
        metric: str,
        records: Sequence[TrialRecord],
        num_trials: int,
        console: Console,
    ) -> None:
        super().__init__(console, lambda: self._time_s)
        self._name, self._metric = name, metric
        self._records, self._num_trials = records, num_trials
        self._kept = {record.id for record in records if record.is_over}
        self._left_s: Mapping[str, float] = {}
        self._began_at = time.monotonic()

    def update(self, left_s: Mapping[str, float]) -> None:
        """Shows how the trials stand now.

        Args:
            left_s: by trial: how long it continues at its present rate.
        """
        self._left_s = left_s
        self._changed()

    @property
    def _time_s(self) -> float:
        return time.monotonic() - self._began_at

    @property
    def _news(self) -> object:
        return [record.status for record in self._records]

    def _overall(self) -> str:
        counts = Counter(record.status for record in self._records)
        counts["waiting"] += self._num_trials - len(self._records)
        left_s = self._time_left_s()
        left = "" if not left_s else f", about {duration(left_s)} left"
        listed = counts_text({status: n for status, n in counts.items() if n})
        return f"{listed}; {duration(self._time_s)} so far{left}"

    def _time_left_s(self) -> float | None:
        """Returns the seconds that the rest takes at the rate so far; None: not known yet."""
        done = 0.0
        for record in self._records:
            if record.id in self._kept:
                continue
            if record.is_over:
                done += 1.0
            elif record.status == "running" and record.time_s and record.id in self._left_s:
                done += record.time_s / (record.time_s + self._left_s[record.id])
        if done < _MIN_PART:
            return None
        return self._time_s * (self._num_trials - len(self._kept) - done) / done

    def _line(self) -> str:
        parts = [f"{self._name} {self._overall()}"]
        for record in self._records:
            if record.status == "running":
                state, env_steps, metric, left = self._cells(record)
                parts.append(
                    f"{record.id} {state}, {env_steps} env steps, {self._metric} {metric}, "
                    f"{left} left"
                )
        return " | ".join(parts)

    def _cells(self, record: TrialRecord) -> tuple[str, str, str, str]:
        """Returns a trial's state, env steps, metric and time left."""
        left_s = self._left_s.get(record.id) if record.status == "running" else None
        is_starting = record.status == "running" and not record.time_s
        return (
            "starting" if is_starting else record.status.replace("_", " "),
            f"{record.env_steps:,}",
            number(record.metric),
            MISSING if left_s is None else duration(left_s),
        )

    def _render(self) -> RenderableType:
        table = plain_table(self._name)
        table.add_column("trial", overflow="fold")
        table.add_column("state", no_wrap=True)
        for heading in ("env steps", self._metric, "left"):
            table.add_column(heading, justify="right")
        begun = [record for record in self._records if record.status != "waiting"]
        room = max(_MIN_ROWS, self._console.height - _OTHER_ROWS)
        running = [record for record in begun if not record.is_over]
        ended = [record for record in begun if record.is_over]
        shown = [*running, *ended[::-1]][:room]  # the newest of the ended trials
        for record in begun:
            if record in shown:
                table.add_row(record.id, *self._cells(record))
        hidden = f"{len(begun) - len(shown)} more have ended" if len(shown) < len(begun) else ""
        return Group(table, *map(Text, filter(None, (hidden, self._overall()))))
