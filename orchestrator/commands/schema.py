"""``muxrl schema``: print the JSON Schema of experiments, sweeps or leagues, for editors.

Prints the JSON Schema of a kind of config. Save it as FILE: an editor with a YAML language server
then completes and checks each config whose first line is '# yaml-language-server: $schema=FILE'.
"""

from __future__ import annotations

import sys
from typing import Literal

from muxrl.orchestrator.commands.command import command
from muxrl.orchestrator.commands.terminal import quiet


@command(only_prints=True)
def schema(kind: Literal["experiment", "sweep", "league"]) -> None:
    """Prints the schema.

    Args:
        kind: the kind of config.
    """
    with quiet():
        from muxrl.orchestrator.json_schema import schema_text

    sys.stdout.write(schema_text(kind))
