"""Runs in the process of a `BackgroundRun`: reads a config from standard input, and runs it."""

from __future__ import annotations

import os
import pickle
import signal
import sys

from muxrl.orchestrator.supervise.child import when_alone
from muxrl.orchestrator.supervise.signals import claim_signals


def main() -> int:
    """Runs the experiment to its end, and returns the exit code."""
    claim_signals()  # before imports that take long
    try:
        with os.fdopen(os.dup(0), "rb") as pipe:
            config, run_dir, is_resumed = pickle.load(pipe)
        when_alone(lambda: os.kill(os.getpid(), signal.SIGTERM))

        from muxrl.orchestrator.config import prepare
        from muxrl.orchestrator.launch.whole_run import run_experiment
        from muxrl.orchestrator.records.run_directory import RunDirectory
        from muxrl.orchestrator.user_modules import find_user_modules

        find_user_modules()
        folder = RunDirectory.open(run_dir)
        return run_experiment(prepare(config), folder, is_resumed=is_resumed).exit_code
    except KeyboardInterrupt:
        return 128 + signal.SIGINT


if __name__ == "__main__":
    sys.exit(main())
