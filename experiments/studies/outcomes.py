"""The outcomes of a study's cases: one JSON file, and the picture drawn from it."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

from muxrl.orchestrator.storage.json_files import write_text
from muxrl.orchestrator.storage.versions import short_version

OUTCOMES_FILE = "outcomes.json"
PICTURE_FILE = "returns.png"

_MOST_COMMITS = 4

Figures = dict[str, float]
"""The figures of one measurement, by name; curves show "return"."""


@dataclass(frozen=True)
class Outcome:
    """The outcome of one case with one seed."""

    case: str
    """Name of the case; those with the same prefix "TASK: " share a panel of the picture."""
    seed: int
    levels: Mapping[str, float]
    """Returns that are known without learning, by name: "random", "optimum"."""
    measured: Mapping[int, Figures]
    """Figures by env steps."""
    versions: Mapping[str, str | None] = field(default_factory=dict)
    """Versions of the software that made it; None: not known. ``recorded_in`` is the commit that
    has recorded the outcome, if muxrl's commit is not known or in no branch."""

    @property
    def commit(self) -> str:
        """The commit of muxrl that made the outcome, as far as it is known."""
        if recorded := self.versions.get("recorded_in"):
            return f"before {short_version(recorded)}"
        return short_version(self.versions.get("git_commit") or "of an unknown commit")

    @property
    def returns(self) -> dict[int, float]:
        """The learning curve: return by env steps."""
        return {steps: figures["return"] for steps, figures in self.measured.items()}

    @property
    def final(self) -> Figures:
        """The last measurement."""
        return self.measured[max(self.measured)]

    @property
    def held(self) -> float | None:
        """The return of every measurement in the second half; None if these differ.

        If game and policy are deterministic, one episode is enough to measure. But an untrained
        network may choose the best actions by chance, so only a return that it *holds* counts.
        """
        late = list(self.returns.values())[len(self.measured) // 2 :]
        return late[0] if len(set(late)) == 1 else None


def read_outcomes(folder: Path) -> list[Outcome]:
    """Returns the outcomes in a folder; [] if there are none."""
    path = folder / OUTCOMES_FILE
    if not path.exists():
        return []
    return [
        Outcome(**{**record, "measured": {int(n): f for n, f in record["measured"].items()}})
        for record in json.loads(path.read_text())
    ]


def write_outcomes(folder: Path, outcomes: Iterable[Outcome]) -> None:
    """Writes the file as a whole, with one outcome in each line."""
    lines = ",\n".join(json.dumps(asdict(outcome)) for outcome in outcomes)
    write_text(folder / OUTCOMES_FILE, f"[\n{lines}\n]\n")


def made_with(outcomes: Iterable[Outcome]) -> str:
    """Returns a line on the software that made outcomes, for a page about them."""
    told = list(outcomes)
    commits = list(dict.fromkeys(outcome.commit for outcome in told))
    if len(commits) > _MOST_COMMITS:
        commits = [f"of [{len(commits)} commits](results/{OUTCOMES_FILE})"]
    packages = {
        f"{package}=={outcome.versions[package]}": None
        for package in ("ray", "torch")
        for outcome in told
        if outcome.versions.get(package)
    }
    return f"muxrl {', '.join(commits)}{''.join(f', {one}' for one in packages)}."


def draw_outcomes(outcomes: Sequence[Outcome], title: str, folder: Path) -> None:
    """Draws the returns of all cases, in the order of `outcomes`.

    Args:
        outcomes: of one study.
        title: of the picture, which says how returns were measured.
        folder: where the picture goes.
    """
    from muxrl.experiments.studies.pictures import Curve, Panel, draw_curves  # with matplotlib

    tasks: dict[str, dict[str, list[Curve]]] = {}
    levels: dict[str, Mapping[str, float]] = {}
    for outcome in outcomes:
        task, _, name = outcome.case.rpartition(": ")
        curve = list(outcome.returns.items())
        tasks.setdefault(task, {}).setdefault(name, []).append(curve)
        levels[task] = outcome.levels
    panels = [Panel(task, tasks[task], levels[task]) for task in tasks]
    draw_curves(panels, title, folder / PICTURE_FILE)
