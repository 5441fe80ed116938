"""``muxrl schema``: what an editor needs to complete and check a config."""

from __future__ import annotations

import argparse
import sys

from muxrl.orchestrator.commands.terminal import quiet
from muxrl.orchestrator.errors import ExitCode


def add_parser(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Adds the command and its arguments."""
    parser = commands.add_parser(
        "schema",
        help="print the JSON Schema of experiments, sweeps or leagues, for editors",
        description="Prints a JSON Schema. Saved as FILE, it is what editors with a YAML language "
        "server complete and check a config by whose first line is "
        "'# yaml-language-server: $schema=FILE'.",
    )
    parser.add_argument(
        "kind", choices=["experiment", "sweep", "league"], help="of which kind of config"
    )
    parser.set_defaults(execute=run)


def run(args: argparse.Namespace) -> int:
    """Prints the schema, and returns the exit code."""
    with quiet():
        from muxrl.orchestrator.json_schema import schema_text

    sys.stdout.write(schema_text(args.kind))
    return ExitCode.DONE
