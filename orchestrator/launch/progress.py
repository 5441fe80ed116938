"""Shows a run's progress: a live table on a terminal, or lines if the output is no terminal.

::

    with Progress("pursuit", first) as progress:
        progress.update(snapshot)  # as often as there is news, about once a second
"""

from __future__ import annotations

import abc
import contextlib
import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Self

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.text import Text

from muxrl.orchestrator.doing import PLAIN_INTERVAL_S, silenced
from muxrl.orchestrator.reports.plain_table import plain_table
from muxrl.protocol.messages import ServerWarning


@dataclass(frozen=True)
class ServerSnapshot:
    """The state of one server, as it is shown."""

    server_id: str
    algorithm: str
    phase: str = "starting"
    """See `Status.phase`."""
    is_waiting: bool = False
    """Whether simulations wait for it."""
    env_steps: int = 0
    env_steps_per_s: float = 0.0
    episode_return_mean: float | None = None
    """None until an episode has ended."""
    weights_seq_no: int | None = 0
    """Version of the weights; None: it does not learn."""
    policy_lag_mean: float | None = None
    """How many versions of the weights the actions of the last batch were behind, on average."""
    loss: float | None = None


@dataclass(frozen=True)
class Snapshot:
    """The state of the whole run, as it is shown."""

    time_s: float
    """Seconds of training; see `Tally.time_s`."""
    env_steps: int = 0
    env_steps_per_s: float = 0.0
    episodes: int = 0
    time_left_s: float | None = None
    """See `StopConditions.time_left_s`; None: unknown."""
    stop_text: str = ""
    """What ends the run: "100,000 env steps or 2 h"."""
    servers: Sequence[ServerSnapshot] = ()
    note: str = ""
    """What has happened or is awaited, such as restarts; "": nothing."""
    evaluating: str = ""
    """What is being evaluated, and how far that is; "": nothing."""
    warned: Sequence[tuple[str, int]] = ()
    """Each thing that logs warn of, after the name of its server, and how often."""
    alarm: str = ""
    """Why the last checkpoint was not written; "" if it was."""

    @property
    def news(self) -> tuple[str, ...]:
        """What is shown at once when it changes."""
        evaluating = "evaluating" if self.evaluating else ""
        return (self.note, evaluating, self.alarm, *(what for what, _ in self.warned))


_NOTHING = Snapshot(time_s=0.0)


class Display(abc.ABC):
    """Shows something that changes while the ``with`` block lasts.

    On a terminal it is redrawn; elsewhere a line is written every `interval_s`, and at once if
    there is news. Messages of `doing` are not shown meanwhile.

    Args:
        console: the console on which it is shown.
        clock: returns seconds, which also pass during evaluations, unlike `Snapshot.time_s`.
    """

    interval_s = PLAIN_INTERVAL_S
    is_transient = False
    """Whether it is erased from the terminal at its end, since something else shows the end."""

    def __init__(self, console: Console, clock: Callable[[], float] = time.monotonic) -> None:
        self._console = console
        self._clock = clock
        self._printed_s: float | None = None
        self._printed_news: object = None
        self._is_printed = True
        self._live: Live | None = None
        self._stack = contextlib.ExitStack()

    @abc.abstractmethod
    def _render(self) -> RenderableType:
        """Returns what is drawn on a terminal."""

    @abc.abstractmethod
    def _line(self) -> str:
        """Returns the line that is written elsewhere."""

    @property
    @abc.abstractmethod
    def _news(self) -> object:
        """A line is written at once when this changes."""

    def __enter__(self) -> Self:
        self._stack.enter_context(silenced())
        self._printed_news = self._news
        if self._console.is_interactive and not self._console.is_dumb_terminal:
            # Redrawn on updates alone: a thread that redraws would take time from the servers.
            self._live = Live(
                self._render(),
                console=self._console,
                auto_refresh=False,
                transient=self.is_transient,
            )
            self._live.start(refresh=True)
        return self

    def __exit__(self, *error: object) -> None:
        self._stack.close()
        if self._live is not None:
            self._live.stop()
            self._live = None
        elif not self._is_printed and not self.is_transient:
            self._print()

    def _changed(self) -> None:
        """Redraws the terminal; without one, writes a line if it is time or there is news."""
        self._is_printed = False
        if self._live is not None:
            self._live.update(self._render(), refresh=True)
        elif (
            self._printed_s is None
            or self._clock() - self._printed_s >= self.interval_s
            or self._news != self._printed_news
        ):
            self._print()

    def _print(self) -> None:
        self._console.print(self._line(), soft_wrap=True, markup=False, highlight=False)
        self._printed_s = self._clock()
        self._printed_news = self._news
        self._is_printed = True


class Progress(Display):
    """Shows snapshots of a run while the ``with`` block lasts; the last one stays on the screen.

    Args:
        experiment_name: the headline.
        first: the snapshot that is shown until the first update.
        console: the console to write to; by default standard output.
    """

    def __init__(
        self,
        experiment_name: str,
        first: Snapshot = _NOTHING,
        *,
        console: Console | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        super().__init__(console or Console(), clock)
        self._experiment_name = experiment_name
        self._latest = first

    def update(self, snapshot: Snapshot) -> None:
        """Shows a new state of the run."""
        self._latest = snapshot
        self._changed()

    @property
    def _news(self) -> tuple[str, ...]:
        return self._latest.news

    def _line(self) -> str:
        return plain_line(self._experiment_name, self._latest)

    def _render(self) -> RenderableType:
        latest = self._latest
        table = plain_table(self._experiment_name)
        table.add_column("server")  # these two wrap in a narrow window, numbers never
        table.add_column("phase")
        for heading in ("env\nsteps", "steps/s", "return", "weights", "policy\nlag", "loss"):
            table.add_column(heading, justify="right", no_wrap=True)
        for server in latest.servers:
            phase = Text(server.phase)
            if server.is_waiting:
                phase.append(" (waited for)", style="yellow")
            table.add_row(
                Text.assemble((server.server_id, "bold"), (f" {server.algorithm}", "dim")),
                phase,
                f"{server.env_steps:,}",
                _number(server.env_steps_per_s, 0),
                _number(server.episode_return_mean, 2),
                _version(server.weights_seq_no),
                _number(server.policy_lag_mean, 1),
                _number(server.loss, 3),
            )
        lines: list[RenderableType] = [table, Text(_overall(latest))]
        notes = (
            (latest.note, "italic"),
            (latest.evaluating, "italic"),
            (_warned(latest), "yellow"),
            (latest.alarm, "bold red"),
        )
        lines += [Text(text, style=style) for text, style in notes if text]
        return Group(*lines)


def plain_line(experiment_name: str, snapshot: Snapshot) -> str:
    """Returns the state of a run as one line, for logs."""
    parts = [f"{experiment_name} {duration(snapshot.time_s)}", _overall(snapshot)]
    parts += [
        f"{server.server_id} {server.phase}"
        f"{' (waited for)' if server.is_waiting else ''}"
        f" return {_number(server.episode_return_mean, 2)}"
        + (
            ""
            if server.weights_seq_no is None
            else f" {_version(server.weights_seq_no)}"
            f" lag {_number(server.policy_lag_mean, 1)} loss {_number(server.loss, 3)}"
        )
        for server in snapshot.servers
    ]
    parts += filter(None, (snapshot.note, snapshot.evaluating, _warned(snapshot), snapshot.alarm))
    return " | ".join(parts)


def duration(seconds: float) -> str:
    """Returns seconds as ``h:mm:ss``."""
    minutes, whole_seconds = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{whole_seconds:02}"


def warned_of(warnings: Mapping[str, Sequence[ServerWarning]]) -> list[tuple[str, int]]:
    """Returns each thing that logs warn of, and how often.

    Args:
        warnings: by server id; "": warnings of the run itself.
    """
    return [
        (" ".join(filter(None, (who, one.what))), one.num)
        for who, found in warnings.items()
        for one in found
        if one.text
    ]


def _warned(snapshot: Snapshot) -> str:
    listed = ", ".join(f"{what} {num:,}×" for what, num in snapshot.warned)
    return listed and f"warnings: {listed}"


def _overall(snapshot: Snapshot) -> str:
    left = "?" if snapshot.time_left_s is None else duration(snapshot.time_left_s)
    stop = f" (until {snapshot.stop_text})" if snapshot.stop_text else ""
    return (
        f"{snapshot.episodes:,} episodes, {snapshot.env_steps:,} env steps, "
        f"{_number(snapshot.env_steps_per_s, 0)} steps/s, {left} left{stop}"
    )


def _version(weights_seq_no: int | None) -> str:
    return "–" if weights_seq_no is None else f"v{weights_seq_no}"


def _number(value: float | None, digits: int) -> str:
    if value is None or math.isnan(value):
        return "–"
    return f"{value:,.{digits}f}" if abs(value) < 1e6 else f"{value:.2e}"
