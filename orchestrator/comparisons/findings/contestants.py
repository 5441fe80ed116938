"""Finds what is compared: the roles of agents, contestants (groups of runs), and subjects.

Runs of one contestant differ only in the seed; contestants differ in which label plays which role.
A label is the algorithm's name, or a sweep's name for it; settings are added if two servers of one
label differ in them. Subjects, whose returns are measured, are roles, teams, single agents, and all
agents together. This module also describes settings and software.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from muxrl.client.adapters.simulation import COMMON
from muxrl.orchestrator.config.experiment_settings import (
    Settings,
    server_settings,
    simulation_settings,
)
from muxrl.orchestrator.errors import CannotCompare
from muxrl.orchestrator.measure.subjects import Subject
from muxrl.orchestrator.records.evaluations import AS_LEARNED, RETURN
from muxrl.orchestrator.records.recorded_run import RecordedRun
from muxrl.orchestrator.storage.versions import SHOWN
from muxrl.protocol.patterns import match, unnumbered
from muxrl.protocol.suggestions import listed
from muxrl.servers.config import ServerConfig, algorithm_label

Roles = Mapping[str, tuple[str, ...]]
"""Role to its agents, in the simulation's order."""

_ALIKE = ("env", "kwargs", "metrics")
"""Simulation settings that are the same in all compared runs, see `read_compared_runs`."""
_SOURCE, _ONE_EACH = "initialize_from", "one for each seed"
_MAX_SHOWN = 40  # characters of a setting's value
# Names and values; values are not shortened, since runs are grouped by them.
_Settings = tuple[tuple[str, str], ...]


def find_roles(
    runs: Sequence[RecordedRun], named: Mapping[str, Sequence[str]]
) -> dict[str, tuple[str, ...]]:
    """Returns each role's agents, in the simulation's order.

    Args:
        runs: runs of one simulation.
        named: role to agent patterns, from a sweep or the user. All other agents that share a
            server in every run form a role.

    Raises:
        CannotCompare: a pattern matches no agent, an agent is in two roles, or a run has a role's
            agents on several servers.
    """
    agents = simulation_order(runs)
    roles: dict[str, tuple[str, ...]] = {}
    owner: dict[str, str] = {}
    for role, patterns in named.items():
        own, idle = match(patterns, agents)
        if idle:
            raise CannotCompare(
                f"role {role!r}: {idle[0]!r} matches no agent; the simulation has {listed(agents)}"
            )
        for agent in own:
            if agent in owner:
                raise CannotCompare(
                    f"agent {agent!r} is in the roles {owner[agent]!r} and {role!r}, and can have "
                    "only one"
                )
            owner[agent] = role
        for run in runs:
            servers = {run.server_of[agent] for agent in own}
            if len(servers) > 1:
                raise CannotCompare(
                    f"run {run.name!r} has the agents of role {role!r} on the servers "
                    f"{listed(sorted(servers))}; a role is played by one server in every run"
                )
        roles[role] = tuple(a for a in agents if a in own)
    together: dict[tuple[str, ...], list[str]] = {}
    for agent in agents:
        if agent not in owner:
            together.setdefault(tuple(run.server_of[agent] for run in runs), []).append(agent)
    roles.update(_named(runs, list(together.values()), taken=roles))
    return roles


def is_cooperative(runs: Sequence[RecordedRun], roles: Roles) -> bool:
    """Whether the sum over all agents says something: they have one role, or equal returns.

    In a game of several sides, one side's gain is another's loss, and no agent aims at the sum.
    """
    if len(roles) == 1:
        return True
    last = [run.evaluations.loc[(run.points[-1].env_steps, AS_LEARNED)][RETURN] for run in runs]
    return all(len(one.dropna(axis=1, how="all").T.drop_duplicates()) == 1 for one in last)


def find_subjects(
    runs: Sequence[RecordedRun], roles: Roles, *, has_total: bool = True
) -> tuple[Subject, ...]:
    """Returns the roles, the teams and agents that are not roles, and the metrics.

    Args:
        runs: runs of one simulation.
        roles: role to its agents.
        has_total: whether the sum over all agents is measured, too; it follows the roles.
    """
    agents = simulation_order(runs)
    found = [Subject("role", role, own) for role, own in roles.items()]
    if len(agents) > 1 and has_total:
        found.append(Subject("total", "all agents", tuple(agents)))
    seen = {frozenset(own) for own in roles.values()}
    for run in runs:
        for server in run.config.servers.values():
            for team, patterns in server.groups.items():
                members = tuple(match(patterns, agents)[0])
                if len(members) > 1 and frozenset(members) not in seen:
                    seen.add(frozenset(members))
                    found.append(Subject("team", team, members))
    alone = {own[0] for own in roles.values() if len(own) == 1}
    found += [Subject("agent", agent, (agent,)) for agent in agents if agent not in alone]
    return (*found, *_metrics(runs, roles))


def _metrics(runs: Sequence[RecordedRun], roles: Roles) -> Iterator[Subject]:
    """Yields the metrics that any run's evaluations have, of whole episodes and of each role."""
    who_has: dict[str, set[str]] = {}
    for run in runs:
        learned = run.evaluations.xs(AS_LEARNED, level="replaced").dropna(axis=1, how="all")
        for name, agent in learned.columns:
            who_has.setdefault(name, set()).add(agent)
    for name in sorted(who_has.keys() - {RETURN}):
        if COMMON in who_has[name]:
            yield Subject("metric", name, (COMMON,), name)
        for role, own in roles.items():
            if who_has[name].intersection(own):
                yield Subject("metric", f"{name}:{role}", own, name)


def simulation_order(runs: Sequence[RecordedRun]) -> list[str]:
    """Returns all agents, in the order of the first run's evaluations."""
    measured = [agent for metric, agent in runs[0].evaluations.columns if metric == RETURN]
    return [*measured, *sorted(set(runs[0].server_of) - set(measured))]


def _named(
    runs: Sequence[RecordedRun], groups: Sequence[Sequence[str]], taken: Mapping[str, object]
) -> dict[str, tuple[str, ...]]:
    """Names each group: "prey" for "prey_0" and "prey_1", if no other group has such agents.

    Otherwise the name is that of a server with exactly these agents in every run, or else consists
    of all agents' names.
    """
    stems = [{unnumbered(agent) for agent in own} for own in groups]
    named: dict[str, tuple[str, ...]] = {}
    for own, ours in zip(groups, stems, strict=True):
        stem = next(iter(ours))
        servers = {run.server_of[own[0]] for run in runs}
        server = next(iter(servers))
        if len(ours) == 1 and sum(stem in theirs for theirs in stems) == 1:
            name = stem
        elif len(servers) == 1 and all(set(run.servers[server].agents) == set(own) for run in runs):
            name = server
        else:
            name = "+".join(own)
        named["+".join(own) if name in taken or name in named else name] = tuple(own)
    return named


@dataclass(frozen=True)
class Contestant:
    """One assignment with its settings, trained once for each seed.

    Attributes:
        name: name in tables: ``qmix predator | ppo prey``.
        assignment: the assignment of its runs, as a string.
        played: role to the label that played it.
        settings: simulation settings in which contestants differ: " [num_processes=4]".
        learns: whether any policy was trained.
        runs: one run for each seed, in order of seeds.
    """

    name: str
    assignment: str
    played: Mapping[str, str]
    settings: str
    learns: bool
    runs: tuple[RecordedRun, ...]

    @property
    def seeds(self) -> tuple[int, ...]:
        """The seeds of the runs."""
        return tuple(run.config.seed for run in self.runs)

    def others(self, role: str) -> str:
        """Returns who played the other roles: equal if contestants differ only in this role."""
        return _joined({r: label for r, label in self.played.items() if r != role}) + self.settings


def find_contestants(runs: Sequence[RecordedRun], roles: Roles) -> tuple[Contestant, ...]:
    """Groups runs into contestants, in the order of their first runs.

    Raises:
        CannotCompare: two runs of one contestant have the same seed, so are not independent.
    """
    labels = _labels(runs, roles)
    of_all = [simulation_settings(run.config.simulation) for run in runs]
    settings = differing_settings(
        [{k: v for k, v in one.items() if k.partition(".")[0] not in _ALIKE} for one in of_all]
    )
    shown = _names([("", one) for one in settings])
    groups: dict[tuple[Any, ...], list[RecordedRun]] = {}
    for run, of_roles, differing in zip(runs, labels, settings, strict=True):
        groups.setdefault((tuple(of_roles.items()), shown["", differing]), []).append(run)
    contestants = []
    for (played, suffix), ours in groups.items():
        ours.sort(key=lambda run: run.config.seed)
        for one, other in pairwise(ours):
            if one.config.seed == other.config.seed:
                raise CannotCompare(
                    f"runs {one.name!r} and {other.name!r} have the same assignment, the same "
                    f"settings and the same seed {one.config.seed}; they are not independent, so "
                    "leave one out"
                )
        contestants.append(
            Contestant(
                name=_joined(dict(played)) + suffix,
                assignment=ours[0].assignment,
                played=dict(played),
                settings=suffix,
                learns=ours[0].learns,
                runs=tuple(ours),
            )
        )
    return tuple(contestants)


def _joined(played: Mapping[str, str]) -> str:
    return " | ".join(f"{label} {role}" for role, label in played.items())


def server_of_role(run: RecordedRun, agents: Sequence[str]) -> tuple[str, ServerConfig]:
    """Returns the id and config of the server that played a role in a run."""
    server_id = run.server_of[agents[0]]
    return server_id, run.config.servers[server_id]


def _labels(runs: Sequence[RecordedRun], roles: Roles) -> list[dict[str, str]]:
    """Returns for each run: role to label."""
    labels: list[dict[str, str]] = [{} for _ in runs]
    for role, agents in roles.items():
        servers = [server_of_role(run, agents) for run in runs]
        plain = []
        for run, (server_id, server) in zip(runs, servers, strict=True):
            label = server.label or algorithm_label(server.algorithm, server.command).lower()
            also = [
                other
                for other, own in roles.items()
                if other != role and run.server_of[own[0]] == server_id
            ]
            plain.append(label + (f" shared with {', '.join(also)}" if also else ""))
        labelled: list[tuple[str, _Settings]] = [(label, ()) for label in plain]
        for label in dict.fromkeys(plain):
            ours = [i for i, other in enumerate(plain) if other == label]
            of_all = _with_sources_pooled(
                [server_settings(servers[i][1]) for i in ours], [runs[i].config.seed for i in ours]
            )
            settings = differing_settings(of_all)
            for index, difference in zip(ours, settings, strict=True):
                labelled[index] = (label, difference)
        names = _names(labelled)
        for index, one in enumerate(labelled):
            labels[index][role] = names[one]
    return labels


def _with_sources_pooled(of_all: Sequence[Settings], seeds: Sequence[int]) -> list[Settings]:
    """Returns settings in which checkpoints to begin with do not separate contestants.

    That is so if each seed begins with another checkpoint, such as that of the same seed in an
    earlier training: then all have the same text instead.
    """
    pooled = list(of_all)
    alike: dict[frozenset[tuple[str, str]], list[int]] = {}
    for index, one in enumerate(of_all):
        if one[_SOURCE]:
            rest = frozenset(item for item in one.items() if item[0] != _SOURCE)
            alike.setdefault(rest, []).append(index)
    for indices in alike.values():
        pairs = {(seeds[i], of_all[i][_SOURCE]) for i in indices}
        num = len(pairs)
        if len({seed for seed, _ in pairs}) == len({source for _, source in pairs}) == num > 1:
            for i in indices:
                pooled[i] = {**of_all[i], _SOURCE: _ONE_EACH}
    return pooled


def _names(labelled: Iterable[tuple[str, _Settings]]) -> dict[tuple[str, _Settings], str]:
    """Returns a name for each label with its settings; names that look the same are numbered.

    The number comes before the settings, so that a narrow figure does not cut it off.
    """
    names: dict[tuple[str, _Settings], str] = {}
    for label, settings in dict.fromkeys(labelled):
        shown = ", ".join(f"{key}={_shortened(value)}" for key, value in settings)
        after = f" [{shown}]" if shown else ""
        name, number = label + after, 1
        while name in names.values():
            number += 1
            name = f"{label} #{number}{after}"
        names[label, settings] = name
    return names


def _shortened(value: str) -> str:
    return value if len(value) <= _MAX_SHOWN else value[:_MAX_SHOWN].rstrip() + "…"


def settings_in_role(
    contestant: Contestant, agents: Sequence[str], *, has_defaults: bool = True
) -> list[Settings]:
    """Returns for each run all settings of the server that plays a role.

    Defaults of the algorithm are included if wanted, and if the run has recorded them.
    """
    served = [(run, *server_of_role(run, agents)) for run in contestant.runs]
    is_pooled = len({server.initialize_from for _, _, server in served}) > 1
    return [
        {**server_settings(server, run.servers[server_id].defaults if has_defaults else {})}
        | ({_SOURCE: _ONE_EACH} if is_pooled else {})
        | _changed(run, f"servers.{server_id}.")
        for run, server_id, server in served
    ]


def _changed(run: RecordedRun, prefix: str) -> dict[str, str]:
    """Returns a server's settings that changed during its run, with all their values."""
    return {
        key.removeprefix(prefix).removeprefix("settings."): value
        for key, value in run.changed_settings.items()
        if key.startswith(prefix)
    }


def differing_settings(of_all: Sequence[Settings]) -> list[_Settings]:
    """Returns for each the settings that are not the same in all."""
    keys = dict.fromkeys(key for one in of_all for key in one)
    differing = [k for k in keys if len({one.get(k, "default") for one in of_all}) > 1]
    return [tuple((k, one.get(k, "default")) for k in differing) for one in of_all]


def label_settings(contestants: Sequence[Contestant], roles: Roles) -> Iterator[dict[str, Any]]:
    """Yields a row for each label of each role.

    `differing` has key and value of each setting that is not the same for all labels of the role,
    and that the config of this label sets.
    """
    for role, agents in roles.items():
        of_labels = {
            one.played[role]: settings_in_role(one, agents, has_defaults=False)[0]
            for one in contestants
        }
        labelled = differing_settings(list(of_labels.values()))
        for (label, settings), differing in zip(of_labels.items(), labelled, strict=True):
            given = tuple(
                (key, value)
                for key, value in differing
                if key != "algorithm" and value not in ("default", "{}", "[]", "None", "")
            )
            algorithm = settings["algorithm"]
            yield {"role": role, "label": label, "algorithm": algorithm, "differing": given}


def versions_of(runs: Sequence[RecordedRun]) -> dict[str, list[str]]:
    """Returns by package the versions with which runs were made."""
    return {
        package: found
        for package in SHOWN
        if (found := sorted({v for run in runs for v in run.versions.get(package, ())}))
    }
