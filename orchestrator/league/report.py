"""A league's report: ratings over rounds, payoffs, and the settings of each training."""

from __future__ import annotations

import base64
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from rich.console import Console

from muxrl.orchestrator.comparisons.findings.head_to_head import CrossPlay, HeadToHead
from muxrl.orchestrator.comparisons.matches import cycle_notes
from muxrl.orchestrator.comparisons.output.figures import payoff_picture, rating_curves
from muxrl.orchestrator.comparisons.output.tables import cross_play, rating
from muxrl.orchestrator.comparisons.output.written import write_payoffs
from muxrl.orchestrator.config.load import load_written
from muxrl.orchestrator.config.merge import diff, flat
from muxrl.orchestrator.league.directory import LeagueDirectory
from muxrl.orchestrator.league.games import meet, solve
from muxrl.orchestrator.league.population import League
from muxrl.orchestrator.measure.number_text import MISSING
from muxrl.orchestrator.reports.pages import from_folder, write_page
from muxrl.orchestrator.reports.plain_table import grid_table
from muxrl.orchestrator.reports.plots import Picture
from muxrl.orchestrator.reports.table import Column, Columns, Grid, grid, markdown, spread
from muxrl.orchestrator.storage.json_files import finite, write_bytes, write_json, write_text
from muxrl.orchestrator.sweeps.schema import SweepConfig
from muxrl.servers.fixed_policies.meta_game import ALPHA_RANK, NASH

_CAPTION = (
    "Rating: Elo points above random actions, from the games of all rounds; 400 points are odds "
    "of 10 to 1"
)


def write_league_report(league: League, folder: LeagueDirectory, last: int) -> Path:
    """Writes ``report.html``, ``summary.md`` with ``plots/``, ``league.json``.

    For two roles that differ, also writes ``payoffs.npy``.

    Args:
        league: to report on.
        folder: the league's directory, into which the files go.
        last: the last round whose games are played.

    Raises:
        OSError: the folder cannot be written to.
    """
    played = meet(league, folder, last)
    config, tables = league.config, played.by_label
    trained = list(_trained(league, folder))
    columns: Columns = {
        "begins_with": "begins with",
        "settings": Column("changed settings", lambda text: text or MISSING, css="wrap"),
        "run": Column(css="text"),
    }
    rounds = grid(trained, "round member role status begins_with settings run", columns)
    is_of_two = len(league.agents) == 2
    kinds = (NASH, ALPHA_RANK) if is_of_two else ()
    solved = {kind: solve(league, folder, last, kind) for kind in kinds}
    weights = {
        t.role: {kind: {} if isinstance(one, str) else one[t.role] for kind, one in solved.items()}
        for t in tables
    }
    shown: list[dict[str, Any]] = [
        {
            "role": table.role,
            "ratings": ratings_grid(played, table),
            "weights": _weights_grid(table, weights[table.role]) if is_of_two else None,
            "payoffs": cross_play(played, table, f"{table.role} played by"),
            "figures": _pictures(played, table),
        }
        for table in tables
    ]
    notes = list(cycle_notes(tables))
    notes += [f"no {kind} weights: {one}" for kind, one in solved.items() if isinstance(one, str)]
    title = f"League {config.name}: {last} of {config.rounds} rounds"
    facts = (
        f"{config.num_episodes} episodes a game, "
        f"{'sampled' if played.should_explore else 'greedy'} actions. {_CAPTION}."
    )
    parts = [f"# {title}", facts, *(f"**Note:** {note}." for note in notes)]
    for one in shown:
        grids = one["ratings"], one["weights"], one["payoffs"]
        parts += [f"## {one['role']}", *(markdown(found) for found in grids if found is not None)]
        for kind, picture in one["figures"].items():
            name = f"plots/{kind}-{one['role']}.svg"
            (folder.path / "plots").mkdir(exist_ok=True)
            write_bytes(folder.path / name, base64.b64decode(picture.uri.partition(",")[2]))
            parts.append(f"![{picture.alt}]({name})")
    parts += ["## Rounds", markdown(rounds)]
    write_text(folder.path / "summary.md", "\n\n".join(parts) + "\n")
    write_json(folder.path / "league.json", _as_json(tables, weights, trained, folder))
    if is_of_two:
        write_payoffs(tables, folder.path)
    return write_page(
        folder.path,
        "league.html",
        __package__,
        title=title,
        sentences=(),
        facts=facts,
        notes=notes,
        shown=shown,
        trained=rounds,
    )


def ratings_grid(played: HeadToHead, met: CrossPlay) -> Grid:
    """Returns a table of ratings with a row for each member and a column for each round."""
    curves = played.rating_curves(met)
    rows = [
        {"member": member, "round": n, "rating": rated}
        for member, curve in curves.items()
        for n, rated in curve
    ]
    places = {n: f"round {n}" for n in played.snapshots}
    return spread(rows, "member", "round", places, "rating", (), {"rating": rating(played)})


def _weights_grid(table: CrossPlay, weights: Mapping[str, Mapping[str, float]]) -> Grid:
    rows = (
        {"player": player, **{kind: one.get(player) for kind, one in weights.items()}}
        for player in table.players
    )
    return grid(rows, ("player", *weights), {NASH: "Nash", ALPHA_RANK: "alpha-rank"})


def print_ratings(league: League, folder: LeagueDirectory, last: int, console: Console) -> None:
    """Prints the ratings after a round."""
    played = meet(league, folder, last)
    for met in played.by_label:
        grid = ratings_grid(played, met)
        console.print(grid_table(grid, f"Ratings of {met.role}", folds=True))
    console.print(f"{_CAPTION}.", highlight=False, markup=False)


def _pictures(played: HeadToHead, table: CrossPlay) -> dict[str, Picture]:
    ratings = rating_curves(played, table, along="round")
    return {**({"ratings": ratings} if ratings else {}), "payoffs": payoff_picture(table)}


def _trained(league: League, folder: LeagueDirectory) -> Iterator[dict[str, Any]]:
    """Yields for each round and member: its start, its changed settings, its status and its run."""
    known = {name: replace(begun, token="") for name, begun in league.templates.items()}
    entries = league.entries(folder, league.config.rounds)
    labels = {str(entry.checkpoint): entry.label for entry in entries}
    for number in range(1, league.config.rounds + 1):
        sweep = folder.sweep(number)
        if sweep is None:
            return
        templates = load_written(sweep.config_file, SweepConfig).algorithms
        for trial in sweep.trials():
            for role, member in trial.roles.items():
                if member in known:
                    now = templates[member]
                    values = flat(now)
                    differing = ", ".join(
                        f"{k}={f'{v:.4g}' if isinstance(v := values.get(k), float) else v}"
                        for k in diff(known[member], now)
                        if k in values and not k.startswith("initialize")
                    )
                    source = labels.get(now.initialize_from, now.initialize_from)
                    known[member] = now
                    yield {
                        "round": number,
                        "member": member,
                        "role": role,
                        "status": trial.status,
                        "begins_with": source or "new weights",
                        "settings": differing,
                        "run": sweep.run_of(trial),
                    }


def _as_json(
    tables: tuple[CrossPlay, ...],
    weights: Mapping[str, Any],
    trained: Sequence[Mapping[str, Any]],
    folder: LeagueDirectory,
) -> dict[str, Any]:
    roles = {
        table.role: {
            "ratings": {name: vars(rating) for name, rating in table.ratings.items()},
            "weights": weights[table.role],
            "payoffs": [
                {"player": c["player"], "others": c["others"], "return": c["return"].mean}
                for c in table.cells.values()
            ],
            "cycles": table.cycles,
        }
        for table in tables
    }
    rounds = [
        {**row, "run": row["run"] and from_folder(row["run"], folder.path)} for row in trained
    ]
    return finite({"format": 1, "roles": roles, "rounds": rounds})
