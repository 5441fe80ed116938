"""The results of a race, as JSON and as tables. Values in, text out."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
from benchmarks.peers.contest import (
    CONTESTANTS,
    OUR_UPDATE,
    UPDATERS,
    Failure,
    Played,
    Updated,
)
from benchmarks.peers.work import Setup


@dataclass
class Findings:
    """The results of a race.

    Attributes:
        date: when it began, ISO 8601.
        command: the command line that started it.
        commit: of this project; "": not known.
        machine: its processor and the number of cores.
        versions: by environment and package.
        seconds: how long each contestant was measured in a round.
        num_rounds: number of rounds that the command wanted.
        played: rounds of contestants.
        updated: rounds of updaters.
        failures: of contestants, updaters and environments.
    """

    date: str
    command: str
    commit: str
    machine: str
    versions: dict[str, dict[str, str]]
    seconds: float
    num_rounds: int
    played: list[Played]
    updated: list[Updated]
    failures: list[Failure]

    @classmethod
    def read(cls, path: Path) -> Findings:
        """Reads what `write` wrote.

        Raises:
            OSError: the file cannot be read.
            msgspec.ValidationError: the file holds something else.
        """
        return msgspec.json.decode(path.read_bytes(), type=cls)

    def write(self, path: Path) -> None:
        """Writes the findings as JSON."""
        path.write_bytes(msgspec.json.format(msgspec.json.encode(self), indent=1) + b"\n")


def ratios(findings: Findings, contestant: str, beside: str, setup: Setup) -> list[float]:
    """Returns for each round that both played how many times faster ours was."""
    rates = {
        (one.contestant, one.round): one.env_steps_per_s
        for one in findings.played
        if one.setup == setup
    }
    return [
        rates[beside, number] / rate
        for (title, number), rate in rates.items()
        if title == contestant and rate and (beside, number) in rates
    ]


def race_table(findings: Findings) -> str:
    """Returns a Markdown table: a row for each contestant and setup."""
    rows = [
        "| | env steps/s (range) | wait p50, ms | p99 | longest | trained of 100 played "
        "| muxrl's env steps/s, times (range) |",
        "|---|---:|---:|---:|---:|---:|---:|",
    ]
    for setup in sorted({one.setup for one in findings.played}):
        rows.append(f"| **{setup}** | | | | | | |")
        for contestant in CONTESTANTS:
            mine = [
                one
                for one in findings.played
                if one.contestant == contestant.title and one.setup == setup
            ]
            if mine:
                rows.append(_row(findings, mine, contestant.beside))
    return "\n".join(rows)


def _row(findings: Findings, mine: Sequence[Played], beside: str) -> str:
    first = mine[0]
    waits = list(zip(*(one.wait_ms for one in mine), strict=True))
    middle, high, longest = statistics.median(waits[0]), statistics.median(waits[1]), max(waits[2])
    trained = [
        100 * sum(one.trained[server] for one in mine) / sum(one.played for one in mine)
        for server in first.trained
    ]
    found = (
        []
        if first.contestant == beside
        else ratios(findings, first.contestant, beside, first.setup)
    )
    cells = [
        first.contestant,
        _span([one.env_steps_per_s for one in mine], ",.0f"),
        f"{middle:.2f}",
        f"{high:.1f}",
        f"{longest:,.0f}",
        ", ".join(f"{share:.0f}" for share in trained),
        _span(found, ".2f") if found else "",
    ]
    return f"| {' | '.join(cells)} |"


def update_table(findings: Findings) -> str:
    """Returns a Markdown table: a row for each updater."""
    ours = {one.round: one.ms_per_1000 for one in findings.updated if one.updater == OUR_UPDATE}
    rows = [
        "| PPO's update | ms for 1,000 agent steps (range) | times muxrl's (range) |",
        "|---|---:|---:|",
    ]
    for updater in UPDATERS:
        mine = [one for one in findings.updated if one.updater == updater.title]
        if not mine:
            continue
        found = [one.ms_per_1000 / ours[one.round] for one in mine if one.round in ours]
        is_other = updater.title != OUR_UPDATE
        rows.append(
            f"| {updater.title} | {_span([one.ms_per_1000 for one in mine], ',.0f')} "
            f"| {_span(found, '.2f') if found and is_other else ''} |"
        )
    return "\n".join(rows)


def _span(values: Iterable[float], form: str) -> str:
    values = list(values)
    middle = format(statistics.median(values), form)
    if len(values) == 1:
        return f"{middle} (one round)"
    return f"{middle} ({format(min(values), form)}..{format(max(values), form)})"


def report(findings: Findings) -> str:
    """Returns a Markdown page of all that was found, failures first."""
    loads = [one.load for one in (*findings.played, *findings.updated)]
    parts: list[str] = [
        "# Other systems beside muxrl",
        f"`{findings.command}` on {findings.date}"
        + (f", commit {findings.commit}" if findings.commit else "")
        + f"; {findings.machine}."
        + (
            f" Load average of the last minute as rounds began: {min(loads):.1f} to "
            f"{max(loads):.1f}, median {statistics.median(loads):.1f}."
            if loads
            else ""
        ),
        "; ".join(f"{name}: {_versions(held)}" for name, held in findings.versions.items()) + ".",
    ]
    if findings.failures:
        parts.append(
            "**Failed**, and left out of what follows:\n\n"
            + "\n".join(
                f"- round {one.round + 1}, {one.who}: {' '.join(_ends(one.why))}"
                for one in findings.failures
            )
        )
    if findings.played:
        parts.append(
            f"Rounds of {findings.seconds:g} s, in turn, {findings.num_rounds} asked for; a row's "
            "numbers are the median over the rounds, except for the longest wait. A wait is the "
            "time from the end of a simulation's step to the beginning of its next. Trained: by "
            "each server, since its first step; batches of 1,000 are counted when they are done."
        )
        parts.append(race_table(findings))
    if findings.updated:
        parts.append(update_table(findings))
    return "\n\n".join(parts) + "\n"


def _ends(why: str) -> list[str]:
    """Returns the first line, which says what happened, and the last, which says why."""
    lines = why.splitlines()
    return lines if len(lines) < 2 else [lines[0], lines[-1]]


def _versions(held: dict[str, Any]) -> str:
    return ", ".join(f"{package} {version}" for package, version in held.items())
