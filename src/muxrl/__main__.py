"""``python -m muxrl``: the command ``muxrl``."""

import sys

from muxrl.orchestrator.cli import main

sys.exit(main())
