"""Makes the outcomes and picture of a study that is a sweep, from the files of `muxrl compare`.

    python -m muxrl.experiments.studies.compared_outcomes masks=DIR "no masks=DIR2" \
        --title "doors: 64 episodes a point, 200 at the end" --out experiments/studies/doors/results
"""

from __future__ import annotations

import argparse
import csv
from collections.abc import Iterator
from pathlib import Path
from statistics import fmean
from typing import Any

from muxrl.experiments.studies.outcomes import (
    Figures,
    Outcome,
    draw_outcomes,
    made_with,
    write_outcomes,
)
from muxrl.orchestrator.storage.versions import read_versions

_ROLE = "role:all"


def compared_outcomes(folder: Path, subject: str = _ROLE, task: str = "") -> list[Outcome]:
    """Returns the outcomes of a comparison, in its order.

    Args:
        folder: has ``curves.csv`` and ``runs.csv``; the runs must still be where it names them.
        subject: whose return to read: "role:NAME" is the mean over a role's agents, "total" the sum
            over all agents.
        task: prefix of the cases' names; "": none. Cases with the same algorithms in the other
            roles also share a prefix.

    Raises:
        OSError: a file is missing.
        ValueError: the files have nothing on this subject.
    """
    measured: dict[tuple[str, int], dict[int, Figures]] = {}
    for row in _rows(folder / "curves.csv", subject):
        case = _case(row["contestant"], subject, task)
        figures = {"return": round(float(row["return"]), 3)}
        measured.setdefault((case, int(row["seed"])), {})[int(row["env_steps"])] = figures
    if not measured:
        raise ValueError(f"{folder / 'curves.csv'} has no curve of {subject}")
    at_random: dict[str, list[float]] = {}
    versions: dict[tuple[str, int], dict[str, Any]] = {}
    for row in _rows(folder / "runs.csv", subject):
        case = _case(row["contestant"], subject, task)
        at_random.setdefault(case.rpartition(": ")[0], []).append(float(row["random_in_place"]))
        found = read_versions(folder / row["run"])
        versions[case, int(row["seed"])] = {k: v for k, v in found.items() if k != "earlier"}
    return [
        Outcome(
            case,
            seed,
            {"random": round(fmean(at_random[case.rpartition(": ")[0]]), 3)},
            curve,
            versions[case, seed],
        )
        for (case, seed), curve in measured.items()
    ]


def _case(contestant: str, subject: str, task: str) -> str:
    """Returns the case's name "TASK: NAME" for a contestant such as "qmix predators | ppo prey"."""
    roles = dict(part.rsplit(" ", 1)[::-1] for part in contestant.split(" | "))
    own = roles.pop(subject.removeprefix("role:"), None)
    if own is None:  # the subject is all roles
        return f"{task}: " * bool(task) + contestant.removesuffix(" all")
    others = [f"{name} {role}" for role, name in roles.items()]
    return ": ".join([*filter(None, [task]), *others, own])


def _rows(path: Path, subject: str) -> Iterator[dict[str, str]]:
    with path.open(newline="") as file:
        yield from (row for row in csv.DictReader(file) if row["subject"] == subject)


def main() -> None:
    """Writes the outcomes and the picture that the command line asks for."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("folders", nargs="+", metavar="[TASK=]DIR")
    parser.add_argument("--title", required=True)
    parser.add_argument("--subject", default=_ROLE, help='"total" is the sum over the agents')
    parser.add_argument("--out", type=Path, required=True, metavar="DIR")
    args = parser.parse_args()
    outcomes = []
    for given in args.folders:
        task, _, folder = given.rpartition("=")
        outcomes += compared_outcomes(Path(folder), args.subject, task)
    args.out.mkdir(parents=True, exist_ok=True)
    write_outcomes(args.out, outcomes)
    draw_outcomes(outcomes, args.title, args.out)
    print(made_with(outcomes))


if __name__ == "__main__":
    main()
