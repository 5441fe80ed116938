"""What runs in the process of a `BackgroundRun`: reads from its standard input what to run."""

from __future__ import annotations

import os
import pickle
import signal
import sys
import threading

from muxrl.orchestrator.supervise.signals import claim_signals


def main() -> int:
    """Runs it to its end, and returns the exit code."""
    claim_signals()  # before anything that takes its time is imported
    try:
        with os.fdopen(os.dup(0), "rb") as pipe:
            config, run_dir, is_resumed = pickle.load(pipe)
        threading.Thread(target=_end_with_the_pipe, daemon=True).start()

        from muxrl.orchestrator.config import prepare
        from muxrl.orchestrator.launch.whole_run import resume_experiment, run_experiment
        from muxrl.orchestrator.records.run_directory import RunDirectory
        from muxrl.orchestrator.user_modules import find_user_modules

        find_user_modules()
        run = resume_experiment if is_resumed else run_experiment
        return run(prepare(config), RunDirectory.open(run_dir)).exit_code
    except KeyboardInterrupt:
        return 128 + signal.SIGINT


def _end_with_the_pipe() -> None:
    """Ends this process, as SIGTERM does, once nobody holds the other end of its pipe."""
    while os.read(0, 1):
        pass
    os.kill(os.getpid(), signal.SIGTERM)


if __name__ == "__main__":
    sys.exit(main())
