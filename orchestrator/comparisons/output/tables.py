"""The tables of a comparison, each declared once: for files, frames, the page and the terminal."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterator, Sequence
from pathlib import Path
from typing import Any, Literal, get_args

from muxrl.orchestrator.comparisons.findings.by_parameter import AtValue
from muxrl.orchestrator.comparisons.findings.contestants import (
    LabelSettings,
    label_settings,
)
from muxrl.orchestrator.comparisons.findings.findings import Baseline, Findings
from muxrl.orchestrator.comparisons.findings.head_to_head import CrossPlay, CrossPlayScore, Match
from muxrl.orchestrator.comparisons.findings.learned import Learner
from muxrl.orchestrator.comparisons.findings.role_by_role import Pairing, RoleStanding
from muxrl.orchestrator.comparisons.findings.scores import RunScore, Standing
from muxrl.orchestrator.measure.number_text import (
    MISSING,
    interval_lines,
    number,
    signed_lines,
    whole,
)
from muxrl.orchestrator.measure.statistics import Estimate
from muxrl.orchestrator.measure.subjects import Subject
from muxrl.orchestrator.reports.table import Column, Grid, Table

TableName = Literal[
    "runs",
    "curves",
    "standings",
    "parameters",
    "roles",
    "pairings",
    "learners",
    "matches",
    "payoffs",
    "ratings",
]
OF_HEAD_TO_HEAD = ("matches", "payoffs", "ratings")
"""Those that are empty without one."""
_MAX_TOLD = 6  # runs in a tooltip
_BELOW = "rgba(213, 94, 0, 0.22)"  # the orange of `_shade`
BELOW_MARK = "\u2009\u25bc"
"""Behind a return that is below random agents in its place with its whole interval."""


def file_table(
    found: Findings, name: TableName, path_text: Callable[[Path], str] = str
) -> tuple[tuple[str, ...], list[dict[str, Any]]]:
    """Returns a table's names of columns, and its rows by them; runs as `path_text` has them."""
    first, *more = _FILE_TABLES[name](found)
    columns = first.names_in_files
    rows = [
        {**dict.fromkeys(columns), **row} for table in (first, *more) for row in table.records()
    ]
    for row in rows:
        row |= {key: path_text(value) for key, value in row.items() if isinstance(value, Path)}
    return columns, rows


def runs(found: Findings) -> Table[RunScore]:
    """One row for each run and subject."""
    number_of = {c.name: i for i, c in enumerate(found.contestants)}
    return Table(
        (
            Column("contestant", tooltip=lambda r: r.assignment, css="wrap"),
            Column("assignment"),
            Column("seed"),
            Column("subject"),
            Column("return", value=lambda r: r.score),
            Column("num_episodes", "episodes"),
            Column("env_steps", "env steps", shown=whole),
            Column("time_s", "seconds", shown=whole),
            Column("area_under_curve", value=lambda r: r.area),
            Column("env_steps_to_threshold"),
            Column("time_s_to_threshold"),
            Column("random_in_place"),
            Column("run", link=lambda r: r.run, css="wrap"),
        ),
        tuple(run for standing in found.standings for run in standing.runs),
        row_id=lambda r: f"c{number_of[r.contestant]}-{r.seed}",
    )


def curves(found: Findings) -> Table[tuple[RunScore, int]]:
    """One row for each evaluation of each run and subject."""
    return Table(
        (
            Column("contestant", value=lambda at: at[0].contestant),
            Column("seed", value=lambda at: at[0].seed),
            Column("subject", value=lambda at: at[0].subject),
            Column("env_steps", value=lambda at: int(at[0].curve.env_steps[at[1]])),
            Column("time_s", value=lambda at: float(at[0].curve.time_s[at[1]])),
            Column("return", value=lambda at: float(at[0].curve.returns[at[1]])),
        ),
        tuple((run, i) for run in runs(found).rows for i in range(len(run.curve.returns))),
    )


def standings(found: Findings) -> Table[Standing]:
    """One row for each contestant and subject; numbers lead to the contestant's runs."""
    assignments = {c.name: c.assignment for c in found.contestants}
    below = {(x.contestant, f"role:{x.role}") for x in found.learners if x.is_below}
    run_id = runs(found).row_id
    assert run_id is not None

    def link(standing: Standing) -> str:
        return f"#{run_id(standing.runs[0])}"

    def time_s(standing: Standing) -> float:
        return sum(run.time_s for run in standing.runs) / len(standing.runs)

    return Table(
        (
            Column(
                "contestant", tooltip=lambda s: assignments[s.contestant], link=link, css="text"
            ),
            Column("subject"),
            Column("num_runs", "seeds", value=lambda s: len(s.runs)),
            Column(
                "iqm",
                value=lambda s: s.score,
                tooltip=_told,
                link=link,
                mark=lambda s: BELOW_MARK if (s.contestant, s.subject) in below else "",
                is_estimate=True,
            ),
            Column("mean", is_estimate=True),
            Column("area", "area under the curve", tooltip=_told, link=link, is_estimate=True),
            Column("threshold", value=lambda s: found.thresholds.get(s.subject)),
            Column(
                "num_reached",
                "reached it",
                text=lambda s: f"{s.num_reached} of {len(s.runs)}" if _has_curve(s) else MISSING,
                tooltip=_told,
                link=link,
            ),
            Column(
                "env_steps_to_threshold",
                "env steps to threshold",
                shown=whole,
                tooltip=_told,
                link=link,
            ),
            Column("time_s_to_threshold", "seconds to threshold", shown=whole, link=link),
            Column(
                "time_s",
                "seconds, evaluations included",
                value=time_s,
                shown=whole,
                is_in_files=False,
            ),
        ),
        found.standings,
    )


def baselines(found: Findings) -> Table[tuple[Baseline, str]]:
    """One row for each baseline and subject; in files they follow the standings."""
    return Table(
        (
            Column(
                "contestant",
                value=lambda b: f"baseline: {b[0].name}",
                text=lambda b: b[0].name,
                css="text",
            ),
            Column("subject", value=lambda b: b[1]),
            Column("num_runs", "seeds", value=lambda b: 0, text=lambda b: MISSING),
            Column(
                "mean",
                value=lambda b: b[0].returns[b[1]],
                tooltip=lambda b: f"{b[0].num_episodes} episodes, nothing trained",
                is_estimate=True,
            ),
        ),
        tuple((baseline, key) for baseline in found.baselines for key in baseline.returns),
        is_of_baselines=True,
    )


def parameters(found: Findings) -> Table[AtValue]:
    """One row for each value of a parameter of the episodes, contestant and subject."""
    return Table(
        (
            Column("contestant", link=_to_runs, css="text"),
            Column("subject"),
            Column("parameter"),
            Column("value"),
            Column(
                "iqm",
                value=lambda at: at.score,
                tooltip=lambda at: f"{at.num_runs} runs, {at.num_episodes} episodes",
                is_estimate=True,
            ),
            Column("num_runs"),
            Column("num_episodes"),
        ),
        found.by_parameter,
    )


def by_parameter(
    found: Findings, subjects: Sequence[Subject]
) -> Iterator[tuple[str, Subject, Grid]]:
    """Yields for each parameter and subject its name, and a grid with a column for each value."""
    table = parameters(found)
    for name in dict.fromkeys(at.parameter for at in found.by_parameter):
        for subject in subjects:
            rows = [at for at in table.rows if (at.parameter, at.subject) == (name, subject.key)]
            values = {at.value: f"{name}\n{at.value}" for at in rows}
            yield name, subject, table.of(rows).spread("contestant", "value", values, "iqm")


def roles(found: Findings) -> Table[RoleStanding]:
    """One row for each label of each role."""
    return Table(
        (
            Column("role"),
            Column("label", css="text"),
            Column("num_runs", "runs"),
            Column("num_contexts"),
            Column(
                "iqm",
                "return",
                value=lambda s: s.score,
                tooltip=lambda s: f"{s.num_runs} runs",
                link=_to_runs,
                mark=lambda s: (
                    BELOW_MARK
                    if s.random_in_place is not None and s.score.high < s.random_in_place
                    else ""
                ),
                is_estimate=True,
            ),
            Column("random_in_place", "random in its place"),
        ),
        tuple(standing for result in found.roles_compared for standing in result.standings),
    )


def pairings(found: Findings) -> Table[Pairing]:
    """One row for each ordered pair of labels of each role."""
    return Table(
        (
            Column("role"),
            Column("first", css="text"),
            Column("second", css="text"),
            Column(
                "improvement",
                shown=_probability,
                tooltip=lambda p: f"P({p.first} > {p.second})",
                link=_to_runs,
                background=lambda p: _shade(2 * p.improvement.mean - 1),
                is_estimate=True,
            ),
            Column(
                "difference",
                shown=signed_lines,
                tooltip=lambda p: f"{p.num_pairs} pairs of runs",
                link=_to_runs,
                is_estimate=True,
            ),
            Column("num_pairs", "pairs"),
        ),
        tuple(pairing for result in found.roles_compared for pairing in result.pairings),
    )


def learners(found: Findings) -> Table[Learner]:
    """One row for each role of each contestant that was learned."""

    def verdict(learner: Learner) -> str:
        if not learner.num_runs:
            return "not measured"
        if learner.is_shown:
            return "learned"
        if learner.is_over_random:
            return "not shown: untrained"
        return "below random" if learner.is_below else "not shown"

    return Table(
        (
            Column("role", css="text"),
            Column("label", css="text"),
            Column("others", "among", css="wrap"),
            Column("contestant"),
            Column("num_runs", "runs"),
            Column("num_below", "of them below random"),
            Column(
                "advantage",
                "advantage over random",
                text=lambda x: signed_lines(x.advantage) if x.num_runs else MISSING,
                background=lambda x: _BELOW if x.is_below else "",
                is_estimate=True,
            ),
            Column(
                "over_untrained",
                "over untrained",
                shown=lambda x: signed_lines(x) if math.isfinite(x.mean) else MISSING,
                is_estimate=True,
            ),
            Column("verdict", value=verdict, css="text"),
        ),
        found.learners,
    )


def settings(found: Findings) -> Table[LabelSettings]:
    """One row for each label of each role; not in files."""
    return Table(
        (
            Column("role", css="text"),
            Column("label", css="text"),
            Column("algorithm", css="text"),
            Column(
                "differing",
                "where it differs",
                shown=lambda pairs: ", ".join(f"{k}={v}" for k, v in pairs) or MISSING,
                css="wrap",
            ),
        ),
        tuple(label_settings(found.contestants, found.roles)),
    )


def matches(found: Findings) -> Table[Match]:
    """One row for each match of the head to head."""
    return Table(
        (
            Column("role", css="text"),
            Column(
                "player", "played by", text=lambda m: f"{m.player} of {m.player_lineup}", css="text"
            ),
            Column("player_contestant", value=lambda m: m.player_lineup),
            Column("others", text=lambda m: f"{m.others} of {m.others_lineup}", css="text"),
            Column("others_contestant", value=lambda m: m.others_lineup),
            Column("pair"),
            Column("return", value=lambda m: m.score),
            Column("num_episodes", "episodes"),
            Column("trained_together", value=lambda m: m.are_partners),
            Column("run", "its run", link=lambda m: m.run or "", css="text"),
            Column("other_run", "the others' run", link=lambda m: m.other_run or "", css="text"),
        ),
        found.head_to_head.matches if found.head_to_head else (),
    )


def payoffs(found: Findings) -> Table[tuple[str, CrossPlayScore]]:
    """One row for each place of each role's table; only in files."""
    return Table(
        (
            Column("role", value=lambda at: at[0]),
            Column("player", value=lambda at: at[1].player),
            Column("others", value=lambda at: at[1].others),
            Column("return", value=lambda at: at[1].score, is_estimate=True),
            Column("num_pairs", value=lambda at: at[1].num_pairs),
        ),
        tuple((table.role, cell) for table in _by_label(found) for cell in table.cells.values()),
    )


def ratings(found: Findings) -> Table[tuple[CrossPlay, str]]:
    """One row for each player of each role; only in files."""
    stage_of = found.head_to_head.stage_of if found.head_to_head else lambda player: (player, None)
    return Table(
        (
            Column("role", value=lambda at: at[0].role),
            Column("player", value=lambda at: at[1]),
            Column("label", value=lambda at: stage_of(at[1])[0]),
            Column("env_steps", value=lambda at: stage_of(at[1])[1]),
            Column("rating", value=lambda at: at[0].ratings.get(at[1]), is_estimate=True),
            Column("merit", value=lambda at: at[0].merits.get(at[1]), is_estimate=True),
        ),
        tuple((table, player) for table in _by_label(found) for player in table.players),
    )


def _by_label(found: Findings) -> tuple[CrossPlay, ...]:
    return found.head_to_head.by_label if found.head_to_head else ()


def cross_play(table: CrossPlay, played_by: str = "played by", among: Collection[str] = ()) -> Grid:
    """A row for each player, a column for each of the others, or those `among`; not in files."""
    means = [c.score.mean for c in table.cells.values() if math.isfinite(c.score.mean)]
    low, high = min(means, default=0.0), max(means, default=0.0)
    middle, reach = (low + high) / 2, (high - low) / 2 or 1.0

    def told_matches(cell: CrossPlayScore) -> str:
        partners = f", {cell.num_partners} of them trained together" if cell.num_partners else ""
        return f"{cell.num_pairs} pairs of seeds, {cell.num_matches} matches{partners}"

    meetings = Table(
        (
            Column("player", played_by, css="text"),
            Column(
                "merit",
                value=lambda c: table.merits.get(c.player),
                shown=signed_lines,
                link=lambda c: "#matches" if c.player in table.merits else "",
            ),
            Column(
                "rating",
                value=lambda c: table.ratings.get(c.player),
                shown=lambda rating: interval_lines(rating, digits=0),
            ),
            Column("others"),
            Column(
                "score",
                tooltip=told_matches,
                link=lambda c: "#matches",
                background=lambda c: _shade((c.score.mean - middle) / reach),
                mark=lambda c: "*" if c.num_partners else "",
            ),
        ),
        tuple(
            table.cells[player, others]
            for player in table.players
            for others in table.others
            if (player, others) in table.cells
        ),
    )
    others = {name: f"vs {name}" for name in table.others if not among or name in among}
    return meetings.spread("player merit rating", "others", others, "score")


_FILE_TABLES: dict[TableName, Callable[[Findings], tuple[Table[Any], ...]]] = {
    "runs": lambda found: (runs(found),),
    "curves": lambda found: (curves(found),),
    "standings": lambda found: (standings(found), baselines(found)),
    "parameters": lambda found: (parameters(found),),
    "roles": lambda found: (roles(found),),
    "pairings": lambda found: (pairings(found),),
    "learners": lambda found: (learners(found),),
    "matches": lambda found: (matches(found),),
    "payoffs": lambda found: (payoffs(found),),
    "ratings": lambda found: (ratings(found),),
}
TABLE_NAMES: tuple[TableName, ...] = get_args(TableName)
"""What files and frames there are, in their order."""


def _has_curve(standing: Standing) -> bool:
    """Whether someone learned to play these agents, so that a threshold can be reached."""
    return standing.area is not None or standing.num_reached > 0


def _told(standing: Standing) -> str:
    """A tooltip that names a standing's runs."""
    lines = [
        f"{run.run.name}: seed {run.seed}, {run.num_episodes} episodes, {number(run.score)}"
        for run in standing.runs[:_MAX_TOLD]
    ]
    more = len(standing.runs) - len(lines)
    return "\n".join([*lines, *([f"and {more} more runs"] if more else [])])


def _to_runs(_: object) -> str:
    return "#runs"


def _probability(estimate: Estimate) -> str:
    if not math.isfinite(estimate.low):
        return f"{estimate.mean:.2f} [{MISSING}]"
    return f"{estimate.mean:.2f} [{estimate.low:.2f}, {estimate.high:.2f}]"


def _shade(part: float) -> str:
    """A background from orange (-1) over white (0) to blue (1), pale enough for black text."""
    if not math.isfinite(part):
        return ""
    part = max(-1.0, min(1.0, part))
    red, green, blue = (0, 114, 178) if part > 0 else (213, 94, 0)
    return f"rgba({red}, {green}, {blue}, {abs(part) * 0.35:.2f})"
