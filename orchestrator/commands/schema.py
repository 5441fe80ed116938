"""``muxrl schema``: print the JSON Schema of experiments, sweeps or leagues, for editors.

Prints a JSON Schema. Saved as FILE, it is what editors with a YAML language server complete and
check a config by whose first line is '# yaml-language-server: $schema=FILE'.
"""

from __future__ import annotations

import argparse
import sys

from muxrl.orchestrator.commands.terminal import quiet
from muxrl.orchestrator.errors import ExitCode


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the command's arguments."""
    parser.add_argument(
        "kind", choices=["experiment", "sweep", "league"], help="of which kind of config"
    )


def run(args: argparse.Namespace) -> int:
    """Prints the schema, and returns the exit code."""
    with quiet():
        from muxrl.orchestrator.json_schema import schema_text

    sys.stdout.write(schema_text(args.kind))
    return ExitCode.DONE
