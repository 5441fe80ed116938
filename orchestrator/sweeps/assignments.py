"""Makes the assignments of templates to roles: products and lists, without excluded ones."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any

from muxrl.orchestrator.sweeps.schema import AssignmentsConfig
from muxrl.protocol.assignment import canonical, parse, server_labels
from muxrl.protocol.patterns import match
from muxrl.protocol.suggestions import listed, similar_or_known

RoleAssignment = dict[str, str]
"""By role, with all roles in their order: the template that serves it."""


def make_role_assignments(
    config: AssignmentsConfig,
    roles: Mapping[str, Sequence[str]],
    templates: Sequence[str],
    problems: list[str],
) -> list[RoleAssignment]:
    """Returns the assignments of a sweep, each once, in the order in which they are written.

    Args:
        config: the sweep's `assignments`.
        roles: by role: the names of its agents.
        templates: names of all templates.
        problems: receives a sentence for each thing that is wrong.
    """
    known = _Known(list(roles), list(templates), problems)
    found: list[RoleAssignment] = []
    if config.product or not config.listed:
        choices = {
            role: known.labels(f"assignments.product.{role}", config.product.get(role, ["*"]))
            for role in roles
        }
        known.check_roles("assignments.product", config.product)
        found += [dict(zip(choices, labels, strict=True)) for labels in product(*choices.values())]
    for i, item in enumerate(config.listed):
        chosen = _listed_roles(f"assignments.listed.{i}", item, roles, known)
        if chosen is not None:
            found.append(chosen)
    exclude = list(_conditions("assignments.exclude", config.exclude, known))
    require = list(_conditions("assignments.require", config.require, known))
    kept = [
        chosen
        for chosen in found
        if not any(_holds(condition, chosen) for condition in exclude)
        and (not require or any(_holds(condition, chosen) for condition in require))
    ]
    if found and not kept:
        problems.append(
            f"assignments: none of the {len(found)} is left after exclude and require; loosen them"
        )
    return [chosen for i, chosen in enumerate(kept) if chosen not in kept[:i]]


def assignment_of(chosen: RoleAssignment, agents_of: Mapping[str, Sequence[str]]) -> str:
    """Returns the canonical string of the roles' servers, without other servers of the base."""
    labels = server_labels(chosen)
    return canonical({labels[role]: agents_of[role] for role in chosen})


@dataclass(frozen=True)
class _Known:
    """The known roles and templates; adds a sentence to `problems` for each unknown name."""

    roles: list[str]
    templates: list[str]
    problems: list[str]

    def check_roles(self, where: str, names: Mapping[str, Any]) -> None:
        for name in names:
            if name not in self.roles:
                hint = similar_or_known(str(name), self.roles, "the roles are")
                self.problems.append(f"{where}: there is no role {name!r}{hint}")

    def labels(self, where: str, patterns: Any) -> list[str]:
        wanted = [patterns] if isinstance(patterns, str) else patterns
        if not isinstance(wanted, list) or not all(isinstance(p, str) for p in wanted):
            self.problems.append(
                f"{where}: must be the name of an algorithm, or a list of names, got {patterns!r}"
            )
            return []
        matched, idle = match(wanted, self.templates)
        for pattern in idle:
            hint = similar_or_known(pattern, self.templates, "the sweep has")
            self.problems.append(f"{where}: there is no algorithm {pattern!r}{hint}")
        return matched


def _conditions(
    where: str, items: Sequence[Mapping[str, Any]], known: _Known
) -> Iterator[dict[str, list[str]]]:
    for i, item in enumerate(items):
        at = f"{where}.{i}"
        known.check_roles(at, item)
        if not item:
            known.problems.append(
                f"{at}: is empty, so it would match every assignment; leave it out"
            )
        yield {str(role): known.labels(f"{at}.{role}", labels) for role, labels in item.items()}


def _holds(condition: Mapping[str, Sequence[str]], chosen: RoleAssignment) -> bool:
    return all(chosen.get(role) in labels for role, labels in condition.items())


def _listed_roles(
    where: str, item: Any, roles: Mapping[str, Sequence[str]], known: _Known
) -> RoleAssignment | None:
    if isinstance(item, str):
        return _parsed_roles(where, item, roles, known)
    if not isinstance(item, Mapping):
        known.problems.append(
            f"{where}: must be a mapping of roles to algorithms, or a string such as "
            f"'qmix:agent_0,agent_1|ppo:agent_2'; got {item!r}"
        )
        return None
    known.check_roles(where, item)
    missing = [role for role in roles if role not in item]
    if missing:
        known.problems.append(
            f"{where}: gives no algorithm to the role {listed(map(repr, missing))}"
        )
        return None
    chosen: RoleAssignment = {}
    for role in roles:
        labels = known.labels(f"{where}.{role}", item[role])
        if len(labels) > 1:
            known.problems.append(
                f"{where}.{role}: names {listed(labels)}; only one can serve a role"
            )
        if labels:
            chosen[role] = labels[0]
    return chosen if len(chosen) == len(roles) else None


def _parsed_roles(
    where: str, text: str, roles: Mapping[str, Sequence[str]], known: _Known
) -> RoleAssignment | None:
    try:
        written = parse(text)
    except ValueError as error:
        known.problems.append(f"{where}: {error}")
        return None
    owner = {agent: label for label, agents in written.items() for agent in agents}
    names = {name.lower(): name for name in known.templates}
    chosen: RoleAssignment = {}
    for role, agents in roles.items():
        labels = {owner.get(agent, "") for agent in agents}
        if len(labels) != 1 or "" in labels:
            known.problems.append(
                f"{where}: {text!r} does not give all agents of the role {role!r} "
                f"({listed(agents)}) to one server"
            )
            return None
        label = labels.pop().partition("@")[0]
        templates = known.labels(where, [names.get(label.lower(), label)])
        if not templates:
            return None
        chosen[role] = templates[0]
    meant = assignment_of(chosen, roles)
    if parse(meant) != written:
        known.problems.append(
            f"{where}: {text!r} assigns other agents than the roles have; expected {meant!r}"
        )
        return None
    return chosen
