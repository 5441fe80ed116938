"""``muxrl compare``: compare runs of one simulation, or the runs of a sweep.

Compares runs of one simulation, side by side and head to head.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

from muxrl.orchestrator.commands.command import acting_rule, command, pair_of
from muxrl.orchestrator.commands.terminal import quiet


def _names(text: str) -> list[str]:
    return text.split(",")


_ROLE = pair_of(_names, "NAME=AGENT,AGENT")
_THRESHOLD = pair_of(float, "role:NAME=10")


@command(says="always", at_most_one=("explore", "greedy"))
def compare(
    paths: Sequence[Path],
    *,
    out: Path | None = None,
    episodes: int = 100,
    head_to_head: bool = False,
    role: Annotated[dict[str, list[str]] | None, _ROLE] = None,
    interchangeable: Annotated[Sequence[str], _names] = (),
    budget: int | None = None,
    threshold: Annotated[dict[str, float] | None, _THRESHOLD] = None,
    cooperative: bool | None = None,
    checkpoint: str = "last",
    snapshots: bool = False,
    explore: bool = False,
    greedy: bool = False,
) -> None:
    """Writes the report and prints its summary.

    Args:
        paths (RUN): directories of runs, or of sweeps.
        out (DIR): directory for the report; default: comparison, in the sweep or beside the first
            run.
        episodes (N): number of episodes of each baseline and of each match.
        head_to_head: let the policies of every run meet those of every other, in all roles.
        role (NAME=AGENT,...): a role and its agents (names or patterns); default: the
            roles that the sweep names, or the agents that one server plays in all runs.
        interchangeable (ROLE,ROLE): roles whose seats are rotated in the head to head.
        budget (STEPS): env steps at which runs are compared; default: the most that all runs have.
        threshold (WHO=RETURN): compare the env steps until a run reaches this return, such as
            role:prey=10; default: halfway from random to the best.
        cooperative: also compare the sum of the returns of all agents; default: only if there is
            one role, or all agents have the same return.
        checkpoint (NAME): the checkpoint whose policies meet head to head: last, best, or its env
            steps.
        snapshots: play head to head with all checkpoints that the runs have at the same env steps,
            for a curve of ratings.
        explore: sample the actions of stochastic policies that meet head to head.
        greedy: take the likeliest action of stochastic policies that meet head to head; default: as
            in the runs' own evaluations.
    """
    with quiet():
        from muxrl.orchestrator.comparisons.compare import compare_runs, default_folder
        from muxrl.orchestrator.comparisons.output.written import print_comparison

        folder = out or default_folder(paths)
        comparison = compare_runs(
            paths,
            num_episodes=episodes,
            should_meet=head_to_head,
            roles=role,
            interchangeable=interchangeable,
            budget=budget,
            thresholds=threshold,
            should_explore=acting_rule(explore, greedy),
            checkpoint=checkpoint,
            snapshots=snapshots,
            cooperative=cooperative,
            games=folder / "games.json",
        )
        report = comparison.write(folder)
    print_comparison(comparison)
    sys.stdout.write(f"written to {report}\n")
