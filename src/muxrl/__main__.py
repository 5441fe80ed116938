"""``python -m muxrl``: the command ``muxrl``."""

import sys

from muxrl.orchestrator.cli import program

sys.exit(program())
