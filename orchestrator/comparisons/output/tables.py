"""The tables of a comparison, each declared once: for files, frames, the page and the terminal."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import replace
from itertools import product
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
from muxrl.orchestrator.reports.table import Column, Grid, Table, table

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
    rows = [{**dict.fromkeys(columns), **row} for one in (first, *more) for row in one.records()]
    for row in rows:
        row |= {key: path_text(value) for key, value in row.items() if isinstance(value, Path)}
    return columns, rows


def _run_id(found: Findings) -> Callable[[RunScore], str]:
    """Returns what gives a run's place on the page."""
    number_of = {c.name: i for i, c in enumerate(found.contestants)}
    return lambda run: f"c{number_of[run.contestant]}-{run.seed}"


def runs(found: Findings) -> Table[RunScore]:
    """One row for each run and subject."""
    return table(
        "contestant assignment seed subject return num_episodes env_steps time_s area_under_curve "
        "env_steps_to_threshold time_s_to_threshold random_in_place run",
        (run for standing in found.standings for run in standing.runs),
        row_id=_run_id(found),
        contestant=Column(tooltip=lambda r: r.assignment, css="wrap"),
        num_episodes="episodes",
        env_steps=Column(heading="env steps", shown=whole),
        time_s=Column(heading="seconds", shown=whole),
        area_under_curve=Column(value=lambda r: r.area),
        run=Column(link=lambda r: r.run, css="wrap"),
        return_=Column(value=lambda r: r.score),
    )


def curves(found: Findings) -> Table[tuple[RunScore, int]]:
    """One row for each evaluation of each run and subject."""
    return table(
        "contestant seed subject env_steps time_s return",
        ((run, i) for run in runs(found).rows for i in range(len(run.curve.returns))),
        contestant=Column(value=lambda at: at[0].contestant),
        seed=Column(value=lambda at: at[0].seed),
        subject=Column(value=lambda at: at[0].subject),
        env_steps=Column(value=lambda at: int(at[0].curve.env_steps[at[1]])),
        time_s=Column(value=lambda at: float(at[0].curve.time_s[at[1]])),
        return_=Column(value=lambda at: float(at[0].curve.returns[at[1]])),
    )


def standings(found: Findings) -> Table[Standing]:
    """One row for each contestant and subject; numbers lead to the contestant's runs."""
    assignments = {c.name: c.assignment for c in found.contestants}
    below = {(x.contestant, f"role:{x.role}") for x in found.learners if x.is_below}
    run_id = _run_id(found)

    def link(standing: Standing) -> str:
        return f"#{run_id(standing.runs[0])}"

    def time_s(standing: Standing) -> float:
        return sum(run.time_s for run in standing.runs) / len(standing.runs)

    told = Column[Standing](tooltip=_told, link=link)
    return table(
        "contestant subject num_runs iqm* mean* area* threshold num_reached env_steps_to_threshold "
        "time_s_to_threshold time_s",
        found.standings,
        contestant=Column(tooltip=lambda s: assignments[s.contestant], link=link),
        num_runs=Column(heading="seeds", value=lambda s: len(s.runs)),
        iqm=replace(
            told,
            value=lambda s: s.score,
            mark=lambda s: BELOW_MARK if (s.contestant, s.subject) in below else "",
        ),
        area=replace(told, heading="area under the curve"),
        threshold=Column(value=lambda s: found.thresholds.get(s.subject)),
        num_reached=replace(
            told,
            heading="reached it",
            text=lambda s: f"{s.num_reached} of {len(s.runs)}" if _has_curve(s) else MISSING,
        ),
        env_steps_to_threshold=replace(told, heading="env steps to threshold", shown=whole),
        time_s_to_threshold=Column(heading="seconds to threshold", shown=whole, link=link),
        time_s=Column(
            heading="seconds, evaluations included", value=time_s, shown=whole, is_in_files=False
        ),
    )


def baselines(found: Findings) -> Table[tuple[Baseline, str]]:
    """One row for each baseline and subject; in files they follow the standings."""
    return table(
        "contestant subject num_runs mean*",
        ((baseline, key) for baseline in found.baselines for key in baseline.returns),
        is_of_baselines=True,
        contestant=Column(value=lambda b: f"baseline: {b[0].name}", text=lambda b: b[0].name),
        subject=Column(value=lambda b: b[1]),
        num_runs=Column(heading="seeds", value=lambda b: 0, text=lambda b: MISSING),
        mean=Column(
            value=lambda b: b[0].returns[b[1]],
            tooltip=lambda b: f"{b[0].num_episodes} episodes, nothing trained",
        ),
    )


def parameters(found: Findings) -> Table[AtValue]:
    """One row for each value of a parameter of the episodes, contestant and subject."""
    return table(
        "contestant subject parameter value iqm* num_runs num_episodes",
        found.by_parameter,
        contestant=Column(link=_to_runs),
        iqm=Column(
            value=lambda at: at.score,
            tooltip=lambda at: f"{at.num_runs} runs, {at.num_episodes} episodes",
        ),
    )


def by_parameter(
    found: Findings, subjects: Sequence[Subject]
) -> Iterator[tuple[str, Subject, Grid]]:
    """Yields for each parameter and subject its name, and a grid with a column for each value."""
    every = parameters(found)
    for name in dict.fromkeys(at.parameter for at in found.by_parameter):
        for subject in subjects:
            rows = [at for at in every.rows if (at.parameter, at.subject) == (name, subject.key)]
            values = {at.value: f"{name}\n{at.value}" for at in rows}
            yield name, subject, every.of(rows).spread("contestant", "value", values, "iqm")


def roles(found: Findings) -> Table[RoleStanding]:
    """One row for each label of each role."""

    def is_below(standing: RoleStanding) -> bool:
        random = standing.random_in_place
        return random is not None and standing.score.high < random

    return table(
        "role label num_runs num_contexts iqm* random_in_place",
        (standing for result in found.roles_compared for standing in result.standings),
        num_runs="runs",
        iqm=Column(
            heading="return",
            value=lambda s: s.score,
            tooltip=lambda s: f"{s.num_runs} runs",
            link=_to_runs,
            mark=lambda s: BELOW_MARK if is_below(s) else "",
        ),
        random_in_place="random in its place",
    )


def pairings(found: Findings) -> Table[Pairing]:
    """One row for each ordered pair of labels of each role."""
    return table(
        "role first second improvement* difference* num_pairs",
        (pairing for result in found.roles_compared for pairing in result.pairings),
        improvement=Column(
            shown=_probability,
            tooltip=lambda p: f"P({p.first} > {p.second})",
            link=_to_runs,
            background=lambda p: _shade(2 * p.improvement.mean - 1),
        ),
        difference=Column(
            shown=signed_lines, tooltip=lambda p: f"{p.num_pairs} pairs of runs", link=_to_runs
        ),
        num_pairs="pairs",
    )


def learners(found: Findings) -> Table[Learner]:
    """One row for each role of each contestant that was learned."""
    return table(
        "role label others contestant num_runs num_below advantage* over_untrained* verdict",
        found.learners,
        others=Column(heading="among", css="wrap"),
        num_runs="runs",
        num_below="of them below random",
        advantage=Column(
            heading="advantage over random",
            text=lambda x: signed_lines(x.advantage) if x.num_runs else MISSING,
            background=lambda x: _BELOW if x.is_below else "",
        ),
        over_untrained=Column(
            heading="over untrained",
            shown=lambda x: signed_lines(x) if math.isfinite(x.mean) else MISSING,
        ),
    )


def settings(found: Findings) -> Table[LabelSettings]:
    """One row for each label of each role; not in files."""
    return table(
        "role label algorithm differing",
        label_settings(found.contestants, found.roles),
        differing=Column(
            heading="where it differs",
            shown=lambda pairs: ", ".join(f"{k}={v}" for k, v in pairs) or MISSING,
            css="wrap",
        ),
    )


def matches(found: Findings) -> Table[Match]:
    """One row for each match of the head to head."""
    return table(
        "role player player_contestant others others_contestant pair return num_episodes "
        "trained_together run other_run",
        found.head_to_head.matches if found.head_to_head else (),
        player=Column(heading="played by", text=lambda m: f"{m.player} of {m.player_lineup}"),
        player_contestant=Column(value=lambda m: m.player_lineup),
        others=Column(text=lambda m: f"{m.others} of {m.others_lineup}"),
        others_contestant=Column(value=lambda m: m.others_lineup),
        num_episodes="episodes",
        trained_together=Column(value=lambda m: m.are_partners),
        run=Column(heading="its run", link=lambda m: m.run or "", css="text"),
        other_run=Column(heading="the others' run", link=lambda m: m.other_run or "", css="text"),
        return_=Column(value=lambda m: m.score),
    )


def payoffs(found: Findings) -> Table[tuple[str, CrossPlayScore]]:
    """One row for each place of each role's table; only in files."""
    return table(
        "role player others return* num_pairs",
        ((played.role, cell) for played in _by_label(found) for cell in played.cells.values()),
        role=Column(value=lambda at: at[0]),
        player=Column(value=lambda at: at[1].player),
        others=Column(value=lambda at: at[1].others),
        num_pairs=Column(value=lambda at: at[1].num_pairs),
        return_=Column(value=lambda at: at[1].score),
    )


def ratings(found: Findings) -> Table[tuple[CrossPlay, str]]:
    """One row for each player of each role; only in files."""
    stage_of = found.head_to_head.stage_of if found.head_to_head else lambda player: (player, None)
    return table(
        "role player label env_steps rating* merit*",
        ((played, player) for played in _by_label(found) for player in played.players),
        role=Column(value=lambda at: at[0].role),
        player=Column(value=lambda at: at[1]),
        label=Column(value=lambda at: stage_of(at[1])[0]),
        env_steps=Column(value=lambda at: stage_of(at[1])[1]),
        rating=Column(value=lambda at: at[0].ratings.get(at[1])),
        merit=Column(value=lambda at: at[0].merits.get(at[1])),
    )


def _by_label(found: Findings) -> tuple[CrossPlay, ...]:
    return found.head_to_head.by_label if found.head_to_head else ()


def cross_play(met: CrossPlay, played_by: str = "played by", among: Collection[str] = ()) -> Grid:
    """A row for each player, a column for each of the others, or those `among`; not in files."""
    means = [c.score.mean for c in met.cells.values() if math.isfinite(c.score.mean)]
    low, high = min(means, default=0.0), max(means, default=0.0)
    middle, reach = (low + high) / 2, (high - low) / 2 or 1.0

    def told_matches(cell: CrossPlayScore) -> str:
        partners = f", {cell.num_partners} of them trained together" if cell.num_partners else ""
        return f"{cell.num_pairs} pairs of seeds, {cell.num_matches} matches{partners}"

    meetings: Table[CrossPlayScore] = table(
        "player merit rating others score",
        (met.cells[at] for at in product(met.players, met.others) if at in met.cells),
        player=played_by,
        merit=Column(
            value=lambda c: met.merits.get(c.player),
            shown=signed_lines,
            link=lambda c: "#matches" if c.player in met.merits else "",
        ),
        rating=Column(
            value=lambda c: met.ratings.get(c.player),
            shown=lambda rating: interval_lines(rating, digits=0),
        ),
        score=Column(
            tooltip=told_matches,
            link=lambda c: "#matches",
            background=lambda c: _shade((c.score.mean - middle) / reach),
            mark=lambda c: "*" if c.num_partners else "",
        ),
    )
    others = {name: f"vs {name}" for name in met.others if not among or name in among}
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
