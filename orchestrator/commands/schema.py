"""``muxrl schema``: print the JSON Schema of experiments, sweeps or leagues, for editors.

Prints a JSON Schema. Saved as FILE, it is what editors with a YAML language server complete and
check a config by whose first line is '# yaml-language-server: $schema=FILE'.
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
        kind: of which kind of config.
    """
    with quiet():
        from muxrl.orchestrator.json_schema import schema_text

    sys.stdout.write(schema_text(kind))
