"""``muxrl runs``: list runs and sweeps with their states.

Lists the runs and sweeps in a folder and its subfolders, the newest first: state, env steps, the
agents of each server, its last evaluation, and the age of the run.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from datetime import datetime, timezone
from json import dumps
from pathlib import Path
from typing import Any

from muxrl.orchestrator.commands.command import command
from muxrl.orchestrator.commands.terminal import table_console
from muxrl.orchestrator.errors import ConfigError

_UNITS = ((86_400, "d"), (3_600, "h"), (60, "min"), (1, "s"))


@command(only_prints=True)
def runs(folder: Path = Path(), *, json: bool = False) -> None:
    """Prints the list.

    Args:
        folder (FOLDER): where to look; default: the current folder, with its runs/ and sweeps/.
        json: print a JSON list, for programs.
    """
    from muxrl.orchestrator.manage.listing import Listing

    if not folder.is_dir():
        raise ConfigError([f"there is no folder {str(folder)!r}; name a folder that holds runs"])
    found = Listing(folder).read()
    entries = found["entries"]
    if json:
        paths = ({"path": str(folder / entry["name"]), **entry} for entry in entries)
        sys.stdout.write(dumps(list(paths), indent=2) + "\n")
    elif entries:
        _print(entries, found["num_left_out"])
    else:
        sys.stdout.write(f"no run or sweep in {str(folder.resolve())!r}\n")


def _print(entries: list[dict[str, Any]], num_left_out: int) -> None:
    from rich.text import Text

    from muxrl.orchestrator.reports.plain_table import plain_table

    console = table_console()
    table = plain_table("")
    # Names are meant to be copied, so only long ones are wrapped.
    table.add_column("run, and its servers", overflow="fold")
    table.add_column("state", width=len("interrupted,"))
    for title in ("env\nsteps", "last\nevaluation", "age"):
        table.add_column(title, justify="right", no_wrap=True)
    now = datetime.now(timezone.utc)
    for entry in entries:
        began_at = entry["began_at"]
        age = _age((now - datetime.fromisoformat(began_at)).total_seconds()) if began_at else ""
        env_steps = f"{entry['env_steps']:,}" if "env_steps" in entry else ""
        table.add_row(Text(entry["name"]), _state(entry), env_steps, "", age)
        for who, evaluated in _served(entry):
            table.add_row(Text(f"  {who}"), "", "", evaluated)
    console.print(table)
    for entry in entries:
        if cause := entry.get("cause") if entry.get("state") != "interrupted" else "":
            line = f"{entry['name']}: {entry.get('state', 'broken')}: {cause}"
            console.print(line, markup=False, highlight=False, soft_wrap=True)
    if num_left_out:
        console.print(f"{num_left_out:,} older ones are left out; name a folder to see those in it")


def _state(entry: Mapping[str, Any]) -> str:
    if entry["kind"] == "broken":
        return "broken"
    return f"{entry['state']}{', resumable' if entry.get('resumable_at') is not None else ''}"


def _served(entry: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Returns each server's agents and its evaluated return; for a sweep one row on its trials."""
    from muxrl.orchestrator.measure.number_text import number
    from muxrl.orchestrator.sweeps.directory import counts_text
    from muxrl.protocol.patterns import abridged

    if entry["kind"] == "broken":
        return []
    if entry["kind"] == "sweep":
        return [(f"sweep of {', '.join(entry['templates'])}: {counts_text(entry['counts'])}", "")]
    return [
        (
            f"{server['id']} ({server['algorithm']}): {', '.join(abridged(server['agents']))}",
            "" if server["evaluated"] is None else number(server["evaluated"]),
        )
        for server in entry["servers"]
    ]


def _age(seconds: float) -> str:
    unit_s, unit = next((unit for unit in _UNITS if seconds >= unit[0]), _UNITS[-1])
    return f"{int(max(0.0, seconds) // unit_s)} {unit}"
