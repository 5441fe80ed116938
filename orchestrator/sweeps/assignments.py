"""Which template serves which role, written out: products, lists, and what is left out of them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import product
from typing import Any

from muxrl.orchestrator.config.patterns import match
from muxrl.orchestrator.config.problems import listed
from muxrl.orchestrator.sweeps.schema import AssignmentsConfig
from muxrl.protocol.assignment import canonical, parse, server_labels
from muxrl.protocol.suggestions import did_you_mean

Cast = dict[str, str]
"""Role to the template that serves it, all roles in their order."""


def make_casts(
    config: AssignmentsConfig,
    roles: Mapping[str, Sequence[str]],
    templates: Sequence[str],
    problems: list[str],
) -> list[Cast]:
    """Returns the assignments of a sweep, each once, in the order in which they are written.

    Args:
        config: what to make them of.
        roles: role to its agents, by name.
        templates: names of all templates.
        problems: gets a sentence for each thing that cannot be.
    """
    known = _Known(list(roles), list(templates), problems)
    casts: list[Cast] = []
    if config.product or not config.listed:
        choices = {
            role: known.labels(f"assignments.product.{role}", config.product.get(role, ["*"]))
            for role in roles
        }
        known.check_roles("assignments.product", config.product)
        casts += [dict(zip(choices, labels, strict=True)) for labels in product(*choices.values())]
    for i, item in enumerate(config.listed):
        cast = _listed_cast(f"assignments.listed.{i}", item, roles, known)
        if cast is not None:
            casts.append(cast)
    exclude = list(_conditions("assignments.exclude", config.exclude, known))
    require = list(_conditions("assignments.require", config.require, known))
    kept = [
        cast
        for cast in casts
        if not any(_holds(condition, cast) for condition in exclude)
        and (not require or any(_holds(condition, cast) for condition in require))
    ]
    if casts and not kept:
        problems.append(
            f"assignments: none of the {len(casts)} is left after exclude and require; loosen them"
        )
    return [cast for i, cast in enumerate(kept) if cast not in kept[:i]]


def assignment_of(cast: Cast, agents_of: Mapping[str, Sequence[str]]) -> str:
    """Returns the canonical string of roles alone, servers that stay left out."""
    labels = server_labels(cast)
    return canonical({labels[role]: agents_of[role] for role in cast})


class _Known:
    """Names there are; adds a sentence to `problems` for each that there is not."""

    def __init__(self, roles: list[str], templates: list[str], problems: list[str]) -> None:
        self.roles = roles
        self.templates = templates
        self.problems = problems

    def check_roles(self, where: str, names: Mapping[str, Any]) -> None:
        for name in names:
            if name not in self.roles:
                hint = did_you_mean(str(name), self.roles) or f"; the roles are {self._roles()}"
                self.problems.append(f"{where}: there is no role {name!r}{hint}")

    def labels(self, where: str, patterns: Any) -> list[str]:
        wanted = [patterns] if isinstance(patterns, str) else patterns
        if not isinstance(wanted, list) or not all(isinstance(p, str) for p in wanted):
            self.problems.append(f"{where}: must be a template's name or a list, got {patterns!r}")
            return []
        matched, idle = match(wanted, self.templates)
        for pattern in idle:
            known = listed(self.templates) or "none"
            hint = did_you_mean(pattern, self.templates) or f"; the sweep has {known}"
            self.problems.append(f"{where}: there is no algorithm {pattern!r}{hint}")
        return matched

    def _roles(self) -> str:
        return listed(self.roles) or "none"


def _conditions(
    where: str, items: Sequence[Mapping[str, Any]], known: _Known
) -> Iterator[dict[str, list[str]]]:
    for i, item in enumerate(items):
        at = f"{where}.{i}"
        known.check_roles(at, item)
        if not item:
            known.problems.append(f"{at}: says nothing, and so would be true of all; leave it out")
        yield {str(role): known.labels(f"{at}.{role}", labels) for role, labels in item.items()}


def _holds(condition: Mapping[str, Sequence[str]], cast: Cast) -> bool:
    return all(cast.get(role) in labels for role, labels in condition.items())


def _listed_cast(
    where: str, item: Any, roles: Mapping[str, Sequence[str]], known: _Known
) -> Cast | None:
    if isinstance(item, str):
        return _parsed_cast(where, item, roles, known)
    if not isinstance(item, Mapping):
        known.problems.append(
            f"{where}: must be a mapping of role to template, or a string such as "
            f"'qmix:agent_0,agent_1|ppo:agent_2'; got {item!r}"
        )
        return None
    known.check_roles(where, item)
    missing = [role for role in roles if role not in item]
    if missing:
        known.problems.append(f"{where}: says nothing of the role {listed(map(repr, missing))}")
        return None
    cast: Cast = {}
    for role in roles:
        labels = known.labels(f"{where}.{role}", item[role])
        if len(labels) > 1:
            known.problems.append(f"{where}.{role}: names {listed(labels)}; one can serve it")
        if labels:
            cast[role] = labels[0]
    return cast if len(cast) == len(roles) else None


def _parsed_cast(
    where: str, text: str, roles: Mapping[str, Sequence[str]], known: _Known
) -> Cast | None:
    try:
        written = parse(text)
    except ValueError as error:
        known.problems.append(f"{where}: {error}")
        return None
    owner = {agent: label for label, agents in written.items() for agent in agents}
    names = {name.lower(): name for name in known.templates}
    cast: Cast = {}
    for role, agents in roles.items():
        labels = {owner.get(agent, "") for agent in agents}
        if len(labels) != 1 or "" in labels:
            known.problems.append(
                f"{where}: {text!r} does not give all agents of the role {role!r} "
                f"({listed(agents)}) to one server"
            )
            return None
        label = labels.pop().partition("@")[0]
        found = known.labels(where, [names.get(label.lower(), label)])
        if not found:
            return None
        cast[role] = found[0]
    meant = assignment_of(cast, roles)
    if parse(meant) != written:
        known.problems.append(f"{where}: {text!r} is not an assignment of the roles; {meant!r} is")
        return None
    return cast
