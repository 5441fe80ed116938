"""Where the labels of a role differ in what was set; and the software of the runs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from muxrl.orchestrator.comparisons.findings.contestants import (
    Contestant,
    Roles,
    differences,
    server_of_role,
)
from muxrl.orchestrator.storage.versions import SHOWN


@dataclass(frozen=True)
class LabelSettings:
    """The settings of one label in one role.

    Attributes:
        role: its name.
        label: what played it.
        algorithm: as the config names it.
        differing: key and value of each setting that is not the same for all labels of the role,
            and that this one's config gives.
    """

    role: str
    label: str
    algorithm: str
    differing: tuple[tuple[str, str], ...]


def label_settings(contestants: Sequence[Contestant], roles: Roles) -> Iterator[LabelSettings]:
    """Yields the settings of each label of each role."""
    for role, agents in roles.items():
        servers = {
            contestant.played[role]: server_of_role(contestant.runs[0], agents)[1]
            for contestant in contestants
        }
        told = differences(list(servers.values()))
        for (label, server), differing in zip(servers.items(), told, strict=True):
            given = tuple(
                (key, value)
                for key, value in differing
                if key != "algorithm" and value not in ("default", "{}", "[]", "None", "")
            )
            yield LabelSettings(role, label, server.algorithm.upper(), given)


def versions_of(contestants: Sequence[Contestant]) -> dict[str, list[str]]:
    """Returns, by package, the versions that the runs were made with."""
    runs = [run for contestant in contestants for run in contestant.runs]
    return {
        package: found
        for package in SHOWN
        if (found := sorted({v for run in runs for v in run.versions.get(package, ())}))
    }
