"""Who plays a role: its labels against each other, all others of the assignment being the same."""

from __future__ import annotations

from muxrl.orchestrator.comparisons.comparison import Comparison
from muxrl.orchestrator.comparisons.figures import performance_profiles, styles_of
from muxrl.orchestrator.comparisons.page_values import (
    Cell,
    Heading,
    Section,
    Table,
    TableRow,
    count,
    finite,
    key_of,
    probability,
    shade,
)
from muxrl.orchestrator.comparisons.provenance import Provenance
from muxrl.orchestrator.comparisons.side_by_side import RoleResult
from muxrl.orchestrator.config.problems import listed
from muxrl.orchestrator.reports.number_text import MISSING, interval, number, signed_interval


def role_section(comparison: Comparison, result: RoleResult, provenance: Provenance) -> Section:
    """Makes the section of one role.

    Args:
        comparison: what is reported on.
        result: of the role, from `comparison`.
        provenance: where its numbers come from.
    """
    role = result.subject.name
    labels = [standing.label for standing in result.standings]
    styles = styles_of(labels)
    place = list(comparison.roles).index(role)
    others = listed(result.contexts, 12) if any(result.contexts) else ""
    among = f"Others: {others}. " if others else ""
    standings = tuple(
        TableRow(
            (
                Cell(standing.label, css="text"),
                Cell(
                    interval(standing.score),
                    finite(standing.score.mean),
                    f"{standing.num_runs} runs",
                    "#runs",
                ),
                Cell(number(standing.random_in_place), finite(standing.random_in_place)),
                count(standing.num_runs),
            )
        )
        for standing in result.standings
    )
    improvement = {(p.first, p.second): p for p in result.pairings}
    matrix = tuple(
        TableRow(
            (
                Cell(first, css="text"),
                *(
                    Cell(MISSING)
                    if first == second
                    else Cell(
                        probability(improvement[first, second].improvement),
                        improvement[first, second].improvement.mean,
                        f"P({first} > {second})",
                        "#runs",
                        shade=shade(2 * improvement[first, second].improvement.mean - 1),
                    )
                    for second in labels
                ),
            )
        )
        for first in labels
    )
    differences = tuple(
        TableRow(
            (
                Cell(pairing.first, css="text"),
                Cell(pairing.second, css="text"),
                Cell(
                    signed_interval(pairing.difference) if pairing.difference else MISSING,
                    finite(pairing.difference.mean) if pairing.difference else None,
                    f"{pairing.num_pairs} pairs of runs",
                    "#runs",
                ),
                count(pairing.num_pairs),
            )
        )
        for pairing in result.pairings
        if labels.index(pairing.first) < labels.index(pairing.second)
    )
    return Section(
        id=f"role-{place}",
        title=f"Who plays {role}",
        paragraphs=(
            f"The return of {result.subject.title} under each label, all others of the "
            "assignment being the same.",
        ),
        key=key_of(labels, styles),
        figures=(performance_profiles(result, styles),),
        figure_caption=(
            "A profile that lies above another everywhere is better at every level; where two "
            f"cross, neither is. {among}{provenance.rule}"
        ),
        tables=(
            Table(
                id=f"role-{place}-returns",
                title="Returns",
                caption=(
                    "Interquartile mean over all runs [95 %, runs drawn again inside their "
                    "own others]. Random in its place: the same others, this role acting at "
                    f"random, mean over runs. {among}{provenance.rule}"
                ),
                headings=(
                    Heading(role, True),
                    Heading("return"),
                    Heading("random in its place"),
                    Heading("runs"),
                ),
                rows=standings,
            ),
            Table(
                id=f"role-{place}-improvement",
                title="Probability of improvement",
                caption=(
                    "How likely a run of the row has a higher return than one of the column "
                    f"[95 %]; 0.5: equal. {among}{provenance.rule}"
                ),
                headings=(Heading("row > column", True), *(Heading(each) for each in labels)),
                rows=matrix,
            ),
            Table(
                id=f"role-{place}-differences",
                title="Differences, paired by seed",
                caption=(
                    "Mean of the first less the second with the same seed and others [95 %, "
                    f"widened for small samples]. {among}{provenance.rule}"
                ),
                headings=(
                    Heading("first", True),
                    Heading("second", True),
                    Heading("difference"),
                    Heading("pairs"),
                ),
                rows=differences,
            ),
        ),
    )
