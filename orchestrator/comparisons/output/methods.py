"""Describes how a comparison was made, for a paper.

There are a paragraph for the methods section, its references in BibTeX, and a list of all settings
that shape results.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from types import MappingProxyType

from muxrl.orchestrator.comparisons.findings.contestants import (
    Contestant,
    label_settings,
    server_of_role,
    settings_in_role,
    versions_of,
)
from muxrl.orchestrator.comparisons.findings.findings import Findings
from muxrl.orchestrator.config.experiment_settings import Settings, simulation_settings
from muxrl.orchestrator.config.merge import dotted, leaves
from muxrl.orchestrator.measure.number_text import MISSING
from muxrl.orchestrator.reports.table import Column, grid, markdown
from muxrl.orchestrator.storage.versions import SHOWN, installed_version, short_version
from muxrl.protocol.suggestions import listed
from muxrl.servers.fixed_names import POOL

_REFERENCES = Path(__file__).with_name("references.bib")
_SOFTWARE = ("muxrl", "rliable")
_ALSO = {"MASAC": ("SAC", "MADDPG")}
"""Algorithms that are cited by the papers of others."""
_NOTHING = ("None", "", "[]")
_NO_SETTINGS: Settings = MappingProxyType({})


def methods(found: Findings) -> str:
    """Returns the paragraph for a methods section; ``[KEY]`` cites an entry of `references`."""
    return " ".join(_sentences(found))


def references(found: Findings) -> str:
    """Returns the BibTeX entries that `methods` cites."""
    cited = set(re.findall(r"\[(\w+)\]", methods(found)))
    entries = {
        entry.partition("{")[2].partition(",")[0]: entry
        for entry in re.split(r"(?<=^\}\n)", _REFERENCES.read_text(encoding="utf-8"), flags=re.M)
    }
    text = "".join(entry for key, entry in entries.items() if key in cited)
    return text.replace("VERSION", installed_version() or "unknown")


def all_settings(found: Findings) -> str:
    """Returns all settings as Markdown.

    Settings that all contestants share come first, then those of each contestant, and those of each
    label of a role.
    """
    around = {one.name: _around(one) for one in found.contestants}
    roles: list[tuple[list[str], dict[str, Settings]]] = []
    for role, agents in found.roles.items():
        played: dict[str, list[Settings]] = {}
        for one in found.contestants:
            played.setdefault(one.played[role], []).extend(settings_in_role(one, agents))
        labels = {label: _merged(of_runs) for label, of_runs in played.items()}
        same = next((names for names, theirs in roles if theirs == labels), None)
        if same is None:
            roles.append(([role], labels))
        else:
            same.append(role)
    servers = [one for _, labels in roles for one in labels.values()]
    shared = {**_shared(list(around.values())), **_shared(servers)}
    parts = [
        _part("All contestants", {"value": shared}),
        _part("By contestant", around, without=shared),
        *(_part(f"As {' or '.join(names)}", labels, without=shared) for names, labels in roles),
    ]
    return "\n\n".join(["## Settings", *filter(None, parts), *_unknown(found)])


def _merged(of_runs: Sequence[Settings]) -> Settings:
    """Merges the settings of runs; a setting in which they differ has all its values."""
    keys = dict.fromkeys(key for one in of_runs for key in one)
    return {k: " or ".join(dict.fromkeys(one[k] for one in of_runs if k in one)) for k in keys}


def _shared(of_all: Sequence[Settings]) -> Settings:
    return {k: v for k, v in of_all[0].items() if all(one.get(k) == v for one in of_all)}


def _part(title: str, columns: Mapping[str, Settings], without: Settings = _NO_SETTINGS) -> str:
    """Returns a table with a row for each setting, and below it the names of settings without a
    value; "" if there are no settings."""
    keys = dict.fromkeys(key for one in columns.values() for key in one if key not in without)
    given = [
        k for k in keys if any(one.get(k) not in (None, *_NOTHING) for one in columns.values())
    ]
    names = ["setting", *columns]
    shown = {name: Column(name.replace("|", r"\|"), css="text") for name in names}
    rows = [
        dict(zip(names, (k, *(_value(c, k) for c in columns.values())), strict=True)) for k in given
    ]
    absent = ", ".join(f"`{key}`" for key in keys if key not in given)
    lines = [markdown(grid(rows, shown, shown)) if given else "", absent and f"Not set: {absent}."]
    return "\n\n".join([f"### {title}", *filter(None, lines)]) if keys else ""


def _value(settings: Settings, key: str) -> str:
    value = settings.get(key, MISSING)
    return "none" if value in _NOTHING else value


def _around(contestant: Contestant) -> Settings:
    """Returns a contestant's seeds, and its settings other than those of servers."""
    of_runs = []
    for run in contestant.runs:
        parts = {"evaluation": asdict(run.config.evaluation), "stop": asdict(run.config.stop)}
        if any(server.algorithm.upper() == POOL for server in run.config.servers.values()):
            snapshots = run.config.checkpoint.keep_every_env_steps
            parts["checkpoint"] = {"keep_every_env_steps": snapshots}
        simulation = simulation_settings(run.config.simulation)
        of_runs.append(
            {f"simulation.{key}": value for key, value in simulation.items()}
            | {dotted(k): str(v) for k, v in leaves(parts) if not isinstance(v, Mapping)}
            | {k: v for k, v in run.changed_settings.items() if not k.startswith("servers.")}
        )
    return {"seeds": ", ".join(map(str, contestant.seeds)), **_merged(of_runs)}


def _unknown(found: Findings) -> Iterator[str]:
    """Yields a sentence on labels whose runs did not record their algorithms' defaults."""
    labels = {
        contestant.played[role]: None
        for role, agents in found.roles.items()
        for contestant in found.contestants
        for run in contestant.runs
        if (plan := run.servers[server_of_role(run, agents)[0]]).learns and not plan.defaults
    }
    if labels:
        yield (
            f"Runs of {', '.join(labels)} did not record their algorithms' defaults: settings that "
            "are not named here have the defaults of the versions above."
        )


def _sentences(found: Findings) -> Iterator[str]:
    runs, versions = found.runs, versions_of(found.runs)
    yield (
        f"We trained the contestants below on one shared simulation ({found.simulation.env}) with "
        f"muxrl {', '.join(versions.get('muxrl', ['of unknown version']))} [muxrl], "
        "each algorithm on a policy server of its own."
    )
    software = [
        f"{SHOWN[key]} {' and '.join(map(short_version, those))}" for key, those in versions.items()
    ]
    hardware = dict.fromkeys(kind for run in runs for kind in run.versions.get("hardware", ()))
    if software:
        yield f"Software: {', '.join(software)}; hardware: {' and '.join(hardware) or 'unknown'}."
    for name, agents in found.roles.items():
        played = [
            _algorithm(one["label"], one["algorithm"], one["differing"])
            for one in label_settings(found.contestants, {name: agents})
        ]
        yield f"The role {name} ({', '.join(agents)}) was played by {'; or by '.join(played)}."
    if len(found.contestants) > 1:
        yield "Brackets hold the settings in which they differ."
    seeds = {contestant.seeds for contestant in found.contestants if contestant.learns}
    if len(seeds) == 1:
        (same,) = seeds
        yield f"Each was trained with {len(same)} seeds ({', '.join(map(str, same))})"
    elif seeds:
        least, most = min(map(len, seeds)), max(map(len, seeds))
        yield f"They were trained with {least} to {most} seeds"
    if seeds:
        yield f"for {found.compared_after} env steps, counted once for all agents."
    changed: dict[str, list[str]] = {}
    for run in runs:
        for key, value in run.changed_settings.items():
            changed.setdefault(f"{key} was {value}", []).append(run.name)
    yield from (f"In {listed(names)}, {what}." for what, names in changed.items())
    yield (
        f"Policies were evaluated without training on {found.budget.num_episodes} episodes "
        f"({found.episodes_in_words}), with {'sampled' if found.should_explore else 'greedy'} "
        "actions; baselines act uniformly at random."
    )
    yield (
        "We report interquartile means over seeds [rliable] with 95 % intervals over seeds: of a "
        "stratified bootstrap, widened by Student's t for small samples."
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
    if algorithm.startswith("RLLIB_"):
        sources = ("RLlib",)
    cited = "".join(f" [{source}]" for source in sources)
    lines = [f"{key} {value}" for key, value in differing if not key.startswith("groups.")]
    given = ", ".join(lines)
    name = algorithm if label.upper() == algorithm else f"{label}, {algorithm}"
    return f"{name}{cited}{f' ({given})' if given else ''}"
