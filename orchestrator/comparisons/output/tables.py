"""Makes the tables of a comparison for the page and the terminal from its frames."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from functools import partial
from itertools import product
from operator import attrgetter
from typing import Any

from muxrl.orchestrator.comparisons.findings.contestants import label_settings
from muxrl.orchestrator.comparisons.findings.findings import Findings
from muxrl.orchestrator.comparisons.findings.frames import BASELINE
from muxrl.orchestrator.comparisons.findings.head_to_head import CrossPlay, HeadToHead
from muxrl.orchestrator.comparisons.findings.learners import BELOW
from muxrl.orchestrator.comparisons.findings.scores import once
from muxrl.orchestrator.measure.number_text import MISSING, interval_lines, signed_lines, whole
from muxrl.orchestrator.measure.statistics import Estimate, Unit
from muxrl.orchestrator.measure.subjects import Subject
from muxrl.orchestrator.reports.table import Column, Columns, Grid, Row, grid, spread

_BELOW = "rgba(213, 94, 0, 0.22)"  # the orange of `_shade`, for advantages below random
BELOW_MARK = "\u2009\u25bc"
"""The mark of a return whose whole interval is below random agents in its place."""
_UNKNOWN: Mapping[str, Any] = {"lines": (MISSING,), "value": None}


def _to_runs(row: Row) -> Mapping[str, Any]:
    """Returns a cell's link from its number to the runs; none for a baseline."""
    return {} if row.get("is_baseline") else {"link": f"#{row.get('first_run', 'runs')}"}


def _marked(row: Row) -> Mapping[str, Any]:
    return {**_to_runs(row), "mark": BELOW_MARK if row.get("is_below") else ""}


def _probability(estimate: Estimate) -> str:
    if not math.isfinite(estimate.low):
        return f"{estimate.mean:.2f} [{MISSING}]"
    return f"{estimate.mean:.2f} [{estimate.low:.2f}, {estimate.high:.2f}]"


def _shade(part: float) -> str:
    """Returns a background from orange (-1) over white (0) to blue (1), pale under black text."""
    if not math.isfinite(part):
        return ""
    part = max(-1.0, min(1.0, part))
    red, green, blue = (0, 114, 178) if part > 0 else (213, 94, 0)
    return f"rgba({red}, {green}, {blue}, {abs(part) * 0.35:.2f})"


_SHOWN: Columns = {
    "contestant": Column(shown=lambda name: name.removeprefix(BASELINE), cell=_to_runs),
    "num_runs": Column("seeds", lambda num: str(num) if num else MISSING),
    "shown": Column(cell=_marked),  # the interquartile mean; of baselines, the mean
    "iqm": Column("return", cell=_marked),
    "area": Column("area under the curve", cell=_to_runs),
    "env_steps_to_threshold": Column("env steps to threshold", whole, _to_runs),
    "time_s_to_threshold": Column("seconds to threshold", whole, _to_runs),
    "env_steps": Column("env steps", whole),
    "time_s": Column("seconds", whole),
    "num_episodes": "episodes",
    "random_in_place": "random in its place",
    "first": "row > column",
    "improvement": Column(
        shown=_probability,
        cell=lambda r: {**_to_runs(r), "background": _shade(2 * r["improvement"].mean - 1)},
    ),
    "difference": Column(shown=signed_lines, cell=_to_runs),
    "num_pairs": "pairs",
    "num_below": "of them below random",
    "others": Column("among", css="wrap"),
    "over_untrained": Column(
        "over untrained", lambda e: signed_lines(e) if math.isfinite(e.mean) else MISSING
    ),
    "merit": Column(shown=signed_lines, cell=lambda r: {"link": "#matches"} if r["merit"] else {}),
    "run": Column(css="wrap"),
    "differing": Column(
        "where it differs",
        lambda pairs: ", ".join(f"{k}={v}" for k, v in pairs) or MISSING,
        css="wrap",
    ),
}


def settings(found: Findings) -> Grid:
    """Returns for each label of each role the settings in which labels differ."""
    rows = label_settings(found.contestants, found.roles)
    return grid(rows, "role label algorithm differing", _SHOWN)


def learners(found: Findings) -> Grid:
    """Returns a row for each learned role of each contestant, against random in its place."""

    def cell(row: Row) -> Mapping[str, Any]:
        if not row["num_runs"]:
            return _UNKNOWN
        return {"background": _BELOW if row["verdict"] == BELOW else ""}

    columns = {
        "num_runs": Column("runs"),
        "advantage": Column("advantage over random", signed_lines, cell),
    }
    shown = "role label others advantage over_untrained num_below num_runs verdict"
    return grid(found.frames["learners"], shown, {**_SHOWN, **columns}, Unit.SEEDS)


def returns(
    found: Findings,
    subjects: Sequence[Subject],
    heading: Callable[[Subject], str] = attrgetter("title"),
) -> Grid:
    """Returns the contestants' returns, and below them the baselines', which have no metrics.

    Args:
        found: the results of the comparison.
        subjects: subjects, which have a column each.
        heading: makes the heading of a subject's column.
    """
    rows, learned = found.frames["standings"], found.frames["learners"]
    below = {(x.contestant, f"role:{x.role}") for x in learned.itertuples() if x.verdict == BELOW}
    who = zip(rows.contestant, rows.subject, strict=True)
    rows = rows.assign(
        shown=rows.iqm.where(rows.num_runs > 0, rows["mean"]),
        is_below=[one in below for one in who],
    )
    places = {subject.key: heading(subject) for subject in subjects}
    ours, baselines = (
        spread(part, "contestant", "subject", places, "shown", "num_runs", _SHOWN, Unit.SEEDS)
        for part in (rows[rows.num_runs > 0], rows[rows.num_runs == 0])
    )
    return ours + baselines


def by_parameter(found: Findings) -> Iterator[tuple[str, Subject, Grid]]:
    """Yields each parameter and subject with a grid that has a column for each value."""
    every, columns = found.frames["parameters"], {**_SHOWN, "iqm": ""}
    for name, subject in product(dict.fromkeys(every.parameter), found.main_subjects):
        rows = every[(every.parameter == name) & (every.subject == subject.key)]
        values = {value: f"{name}\n{value}" for value in rows.value}
        yield (
            name,
            subject,
            spread(rows, "contestant", "value", values, "iqm", (), columns, Unit.SEEDS),
        )


def efficiency(found: Findings, subject: Subject) -> Grid:
    """Returns how fast each contestant learned to play a subject."""
    rows = found.frames["standings"]
    names = [contestant.name for contestant in found.contestants if contestant.learns]
    rows = rows[(rows.subject == subject.key) & rows.contestant.isin(names)]

    def reached(row: Row) -> Mapping[str, Any]:
        # Only runs that learned to play these agents have a curve, and can reach a threshold.
        is_known = row["area"] is not None or row["num_reached"] > 0
        line = f"{row['num_reached']} of {row['num_runs']}"
        return {**_to_runs(row), **({"lines": (line,)} if is_known else _UNKNOWN)}

    columns = {
        "num_reached": Column("reached it", cell=reached),
        "time_s": Column("seconds, evaluations included", whole),
    }
    shown = "contestant area num_reached env_steps_to_threshold time_s_to_threshold time_s"
    return grid(rows, shown, {**_SHOWN, **columns}, Unit.SEEDS)


def roles(found: Findings, role: str) -> Grid:
    """Returns a row for each label of a role, with its return."""
    rows = found.of_role("roles", role)
    is_below = [
        one.random_in_place is not None and one.iqm.high < one.random_in_place
        for one in rows.itertuples()
    ]
    columns = {**_SHOWN, "label": role, "num_runs": "runs"}
    rows = rows.assign(is_below=is_below)
    return grid(rows, "label iqm random_in_place num_runs", columns, Unit.SEEDS)


def improvements(found: Findings, role: str) -> Grid:
    """Returns how likely a run of the row has a higher return than a run of the column."""
    places = {label: label for label in found.of_role("roles", role).label}
    rows = found.of_role("pairings", role)
    return spread(rows, "first", "second", places, "improvement", (), _SHOWN, Unit.SEEDS)


def differences(found: Findings, role: str) -> Grid:
    """Returns the difference of each pair of labels, paired by seed."""
    rows = once(found.of_role("pairings", role))
    columns = {**_SHOWN, "first": ""}
    return grid(rows, "first second difference num_pairs", columns, Unit.SEEDS)


def matches(found: Findings) -> Grid:
    """Returns a row for each match of the head to head."""

    def of_contestant(name: str) -> Column:
        def cell(row: Row) -> Mapping[str, Any]:
            return {"lines": (f"{row[name]} of {row[f'{name}_contestant']}",)}

        return Column("played by" if name == "player" else "", cell=cell)

    columns = {
        **_SHOWN,
        "player": of_contestant("player"),
        "others": of_contestant("others"),
        "run": Column("its run", css="text"),
        "other_run": Column("the others' run", css="text"),
    }
    shown = "role player others return num_episodes run other_run"
    return grid(found.frames["matches"], shown, columns)


def runs(found: Findings) -> Grid:
    """Returns a row for each run, with a column for each main subject."""
    places = {subject.key: subject.title for subject in found.main_subjects}
    last = "num_episodes env_steps time_s run"
    columns = {**_SHOWN, "contestant": Column(css="wrap")}
    rows = found.frames["runs"]
    return spread(rows, "contestant seed", "subject", places, "return", last, columns)


def cross_play(
    played: HeadToHead, met: CrossPlay, played_by: str = "played by", among: Collection[str] = ()
) -> Grid:
    """Returns a row for each player, with a column for each of the others, or for those `among`."""
    every = [cell["return"].mean for cell in met.cells.values()]
    means = [mean for mean in every if math.isfinite(mean)]
    low, high = min(means, default=0.0), max(means, default=0.0)
    middle, reach = (low + high) / 2, (high - low) / 2 or 1.0

    def cell(row: Row) -> Mapping[str, Any]:
        shade = _shade((row["return"].mean - middle) / reach)
        mark = "*" if row["num_partners"] else ""
        return {"link": "#matches", "background": shade, "mark": mark}

    others = {name: f"vs {name}" for name in met.others if not among or name in among}
    columns = {**_SHOWN, "player": played_by, "return": Column(cell=cell), "rating": rating(played)}
    first = "player merit rating"
    return spread(met.cells.values(), first, "others", others, "return", (), columns, Unit.PAIRS)


def rating(played: HeadToHead) -> Column:
    """Returns the column that shows ratings."""
    return Column(shown=partial(interval_lines, digits=0), over=played.rating_unit)
