"""A comparison on the terminal: the returns, and what must be known to believe them."""

from __future__ import annotations

import os
import sys
import time
from types import TracebackType

from rich.console import Console
from rich.text import Text

from muxrl.orchestrator.comparisons.comparison import Comparison
from muxrl.orchestrator.reports.number_text import MISSING, interval, signed_interval
from muxrl.orchestrator.reports.plain_table import plain_table
from muxrl.orchestrator.reports.statistics import Estimate
from muxrl.orchestrator.runs.progress import duration

_INTERVAL_S = 1.0


def print_comparison(comparison: Comparison, console: Console | None = None) -> None:
    """Prints the contestants' returns, the merits of the head to head, and the notes."""
    console = console or Console()
    subjects = [s for s in comparison.subjects if s.kind in ("role", "total")]
    table = plain_table("Side by side: interquartile mean over runs [95 %]")
    table.add_column("contestant", overflow="fold", min_width=16)
    for subject in subjects:
        how = "sum" if subject.kind == "total" else "mean"
        many = f"\n{how} of {len(subject.agents)}" if len(subject.agents) > 1 else ""
        table.add_column(Text(subject.name + many), justify="right", no_wrap=True)
    table.add_column("seeds", justify="right")
    for contestant in comparison.contestants:
        scores = [comparison.standing(contestant.name, s.key).score for s in subjects]
        cells = [contestant.name, *map(_two_lines, scores), str(len(contestant.seeds))]
        table.add_row(*map(Text, cells))
    table.add_section()
    for baseline in comparison.baselines:
        returns = [baseline.returns.get(s.key) for s in subjects]
        cells = [baseline.name, *(_two_lines(e) if e else MISSING for e in returns), MISSING]
        table.add_row(*(Text(cell, style="dim") for cell in cells))
    console.print(table)
    for matrix in comparison.head_to_head.by_label if comparison.head_to_head else ():
        table = plain_table(f"Head to head, return of {matrix.role}: interquartile mean [95 %]")
        table.add_column("played by", overflow="fold")
        table.add_column("merit", justify="right")
        for others in matrix.others:
            table.add_column(Text(f"vs {others}"), justify="right", overflow="fold")
        for player in matrix.players:
            merit = matrix.merits.get(player)
            found = [matrix.cells.get((player, others)) for others in matrix.others]
            cells = [player, signed_interval(merit).replace(" [", "\n[") if merit else MISSING]
            cells += [_two_lines(cell.score) if cell else MISSING for cell in found]
            table.add_row(*map(Text, cells))
        console.print(table)
    for note in comparison.notes:
        console.print(Text(f"Note: {note}.", style="yellow"))


def _two_lines(estimate: Estimate) -> str:
    """A mean above its interval, so that a table of several fits 80 columns."""
    return interval(estimate).replace(" [", "\n[")


class MatchProgress:
    """Says on the terminal, about once a second, how many matches are done; in a file, nothing.

    It writes to the terminal that was there when it was made, whatever standard error is turned
    to meanwhile.
    """

    def __init__(self) -> None:
        self._is_shown = sys.stderr.isatty()
        self._descriptor = os.dup(2) if self._is_shown else -1
        self._began_at = self._shown_at = time.monotonic()

    def __enter__(self) -> MatchProgress:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._is_shown:
            os.write(self._descriptor, b"\r\x1b[K")
            os.close(self._descriptor)

    def __call__(self, done: int, of: int) -> None:
        """Takes in that so many matches are done."""
        now = time.monotonic()
        if not self._is_shown or now - self._shown_at < _INTERVAL_S:
            return
        self._shown_at = now
        left_s = (now - self._began_at) / done * (of - done)
        os.write(
            self._descriptor,
            f"\r\x1b[Khead to head: {done} of {of} matches, {duration(left_s)} left".encode(),
        )
