"""How a comparison was made: a paragraph for a methods section, and its references in BibTeX."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

from muxrl.orchestrator.comparisons.findings.contestants import label_settings, versions_of
from muxrl.orchestrator.comparisons.findings.findings import Findings
from muxrl.orchestrator.storage.versions import installed_version
from muxrl.protocol.suggestions import listed

_REFERENCES = Path(__file__).with_name("references.bib")
_SOFTWARE = ("muxrl", "RLlib", "rliable")
_ALSO = {"MASAC": ("SAC", "MADDPG")}
"""Algorithms whose sources are those of others."""


def methods(found: Findings) -> str:
    """Returns the paragraph; ``[KEY]`` stands for an entry of `references`."""
    return " ".join(_sentences(found))


def references(found: Findings) -> str:
    """Returns the BibTeX entries that `methods` names."""
    cited = set(re.findall(r"\[(\w+)\]", methods(found)))
    entries = {
        entry.partition("{")[2].partition(",")[0]: entry
        for entry in re.split(r"(?<=^\}\n)", _REFERENCES.read_text(encoding="utf-8"), flags=re.M)
    }
    text = "".join(entry for key, entry in entries.items() if key in cited)
    return text.replace("VERSION", installed_version() or "unknown")


def _sentences(found: Findings) -> Iterator[str]:
    versions = versions_of(found.contestants)
    software = [f"{name} {listed(versions[name])}" for name in ("ray", "torch") if name in versions]
    yield (
        f"We trained the contestants below on one shared simulation ({found.env}) with muxrl "
        f"{listed(versions.get('muxrl', ['of unknown version']))} [muxrl] and RLlib [RLlib]"
        f"{f' ({listed(software)})' if software else ''}, each algorithm on a policy server of "
        "its own."
    )
    for name, agents in found.roles.items():
        used = [s for s in label_settings(found.contestants, found.roles) if s.role == name]
        played = [_algorithm(s.label, s.algorithm, s.differing) for s in used]
        yield f"The role {name} ({listed(agents)}) was played by {'; or by '.join(played)}."
    if len(found.contestants) > 1:
        yield "Brackets hold the settings in which they differ."
    seeds = {contestant.seeds for contestant in found.contestants if contestant.learns}
    if len(seeds) == 1:
        (same,) = seeds
        yield f"Each was trained with {len(same)} seeds ({listed(list(map(str, same)))})"
    elif seeds:
        least, most = min(map(len, seeds)), max(map(len, seeds))
        yield f"They were trained with {least} to {most} seeds"
    if seeds:
        yield f"for {found.budget.place:,} env steps, counted once for all agents."
    yield (
        f"Policies were evaluated without training on {found.budget.num_episodes} episodes, the "
        f"same for all (first seed {found.first_seed}), with "
        f"{'sampled' if found.should_explore else 'greedy'} actions; baselines act uniformly at "
        "random on the same episodes."
    )
    yield (
        "We report interquartile means over seeds with 95 % intervals of a stratified bootstrap "
        "[rliable]."
    )
    if (met := found.head_to_head) is not None:
        yield (
            f"Policies of different contestants met in {met.num_episodes} episodes for each pair "
            f"of seeds, with {'sampled' if met.should_explore else 'greedy'} actions."
        )


def _algorithm(label: str, algorithm: str, differing: tuple[tuple[str, str], ...]) -> str:
    keys = set(re.findall(r"^@\w+\{(\w+),", _REFERENCES.read_text(encoding="utf-8"), re.M))
    keys -= set(_SOFTWARE)
    sources = _ALSO.get(algorithm, (algorithm,) if algorithm in keys else ())
    cited = "".join(f" [{source}]" for source in sources)
    told = [f"{key} {value}" for key, value in differing if not key.startswith("groups.")]
    given = ", ".join(told)
    name = algorithm if label.upper() == algorithm else f"{label}, {algorithm}"
    return f"{name}{cited}{f' ({given})' if given else ''}"
