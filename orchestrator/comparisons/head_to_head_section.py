"""Head to head in the report: each role's table of players against others, and every match."""

from __future__ import annotations

import math

from muxrl.orchestrator.comparisons.head_to_head import HeadToHead, Matrix, describe_pairs
from muxrl.orchestrator.comparisons.page_values import (
    Cell,
    Heading,
    Section,
    Table,
    TableRow,
    count,
    finite,
    shade,
)
from muxrl.orchestrator.comparisons.provenance import Provenance
from muxrl.orchestrator.config.problems import listed
from muxrl.orchestrator.reports.number_text import MISSING, interval, number, signed_interval


def head_to_head_section(played: HeadToHead, provenance: Provenance) -> Section:
    """Makes the section of all matches.

    Args:
        played: what was played.
        provenance: where runs are found.
    """
    actions = "sampled (greedy for value-based)" if played.should_explore else "greedy"
    last = played.first_seed + played.num_episodes - 1
    rule = (
        f"{describe_pairs(played).capitalize()}; {played.num_episodes} episodes each "
        f"(environment seeds {played.first_seed} to {last}, the same for all), {actions} "
        "actions, raw rewards."
    )
    rotated = (
        f" Seats of {listed(played.interchangeable)} are rotated: a return is the mean over "
        "the seats."
        if played.interchangeable
        else ""
    )
    tables = [_matrix(matrix, f"cross-{i}", "", rule) for i, matrix in enumerate(played.by_label)]
    tables += [
        _matrix(matrix, f"cross-full-{i}", ", by what they were trained with", rule, True)
        for i, matrix in enumerate(played.by_contestant)
    ]
    tables.append(_matches(played, rule, provenance))
    return Section(
        id="head-to-head",
        title="Head to head",
        paragraphs=(
            "The last checkpoints of all runs, frozen, meet each other in every role: rows "
            f"play the role whose return is shown, columns all the others.{rotated}",
        ),
        tables=tuple(tables),
    )


def _matrix(matrix: Matrix, table_id: str, what: str, rule: str, is_folded: bool = False) -> Table:
    means = [c.score.mean for c in matrix.cells.values() if math.isfinite(c.score.mean)]
    low, high = min(means, default=0.0), max(means, default=0.0)
    middle, reach = (low + high) / 2, (high - low) / 2 or 1.0
    rows = []
    for player in matrix.players:
        merit = matrix.merits.get(player)
        cells = [
            Cell(player, css="text"),
            Cell(signed_interval(merit), finite(merit.mean), "", "#matches")
            if merit
            else Cell(MISSING),
        ]
        for others in matrix.others:
            cell = matrix.cells.get((player, others))
            if cell is None:
                cells.append(Cell(MISSING))
                continue
            partners = (
                f", {cell.num_partners} of them trained together" if cell.num_partners else ""
            )
            cells.append(
                Cell(
                    interval(cell.score) + ("*" if cell.num_partners else ""),
                    finite(cell.score.mean),
                    f"{cell.num_pairs} pairs of seeds, {cell.num_matches} matches{partners}",
                    "#matches",
                    shade=shade((cell.score.mean - middle) / reach),
                )
            )
        rows.append(TableRow(tuple(cells)))
    return Table(
        id=table_id,
        title=f"Return of {matrix.role}{what}",
        caption=(
            f"Interquartile mean over pairs of runs [95 %]; merit: the row's mean over all "
            "columns less that of all rows [95 %, widened for small samples]. *: some of its "
            "matches are of policies that were trained together, which know each other. "
            f"{rule}"
        ),
        headings=(
            Heading(f"{matrix.role} played by", True),
            Heading("merit"),
            *(Heading(f"vs {others}") for others in matrix.others),
        ),
        rows=tuple(rows),
        is_folded=is_folded,
    )


def _matches(played: HeadToHead, rule: str, provenance: Provenance) -> Table:
    rows = tuple(
        TableRow(
            (
                Cell(match.role, css="text"),
                Cell(f"{match.player} of {match.player_lineup}", css="text"),
                Cell(f"{match.others} of {match.others_lineup}", css="text"),
                Cell(number(match.score), finite(match.score)),
                count(match.num_episodes),
                provenance.run(match.run),
                provenance.run(match.other_run),
            )
        )
        for match in played.matches
    )
    return Table(
        id="matches",
        title=f"All {len(played.matches)} matches",
        caption=f"Mean return of the role over the episodes. {rule}",
        headings=(
            Heading("role", True),
            Heading("played by", True),
            Heading("others", True),
            Heading("return"),
            Heading("episodes"),
            Heading("its run", True),
            Heading("the others' run", True),
        ),
        rows=rows,
        is_folded=True,
    )
