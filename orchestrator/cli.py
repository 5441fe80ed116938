"""The command ``muxrl``: launch, check or sweep experiments, serve a server, measure runs."""

from __future__ import annotations

import argparse
import contextlib
import gc
import os
import sys
from collections.abc import Sequence

from muxrl.orchestrator.commands.command import Command, check_installed, parse
from muxrl.orchestrator.doing import doing, is_terminal, shown_on
from muxrl.orchestrator.errors import ConfigError, ExitCode, Refused, exit_code_of, is_expected
from muxrl.orchestrator.launch.lasting_output import (
    forget_lost_readers,
    lasting_copy,
    lasting_output,
)
from muxrl.orchestrator.supervise.signals import claim_signals, ignore_signals
from muxrl.orchestrator.user_modules import prefer_installed_modules


def main(argv: Sequence[str] | None = None) -> int:
    """Runs one command and returns its exit code; see `muxrl.orchestrator.errors`.

    Args:
        argv: the arguments without the program's name. None takes the arguments of this process,
            which then does nothing else: Ctrl-C, SIGTERM and SIGHUP end the command, and are
            ignored once it is done.

    Raises:
        SystemExit: the command line itself is wrong (2), or help or the version was asked for (0).
    """
    if argv is not None:
        return _run(argv)
    claim_signals()
    try:
        code = _run(sys.argv[1:])
        ignore_signals()
        gc.freeze()  # else the collector takes a second at exit, for torch's objects
    except KeyboardInterrupt:
        return ExitCode.INTERRUPTED
    return code


def _run(argv: Sequence[str]) -> int:
    args = parse(argv)
    command: Command = args.execute
    try:
        check_installed(args.command, command.needs)
    except Refused as lacking:
        sys.stderr.write(f"muxrl: {lacking}\n")
        return ExitCode.REFUSED
    from muxrl.orchestrator.supervise.process import ONE_THREAD

    os.environ.update(ONE_THREAD)  # before numpy is imported
    prefer_installed_modules()
    try:
        with contextlib.ExitStack() as stack:
            if command.is_long:
                stack.enter_context(lasting_output())
            if command.says != "nothing":
                # A copy, which `quiet` does not redirect, and which keeps this apart from results.
                copy = stack.enter_context(lasting_copy(1 if command.is_long else 2))
                if command.says == "always" or is_terminal(copy):
                    stack.enter_context(shown_on(copy))
                    doing("loading packages")
            return _execute(args)
    except BrokenPipeError:
        if not forget_lost_readers():  # a connection broke, not the output
            raise
        return ExitCode.DONE if command.only_prints else ExitCode.FAILED


def _execute(args: argparse.Namespace) -> int:
    try:
        code = args.execute(args)
        sys.stdout.flush()
        return code
    except BrokenPipeError:
        raise
    except ConfigError as error:
        named = [getattr(args, name, None) for name in ("resume", "config", "run", "command")]
        what = next(one for one in named if one and one is not True)
        for problem in error.problems:
            sys.stderr.write(f"muxrl: {what}: {problem}\n")
        return error.exit_code
    except KeyboardInterrupt:
        return ExitCode.INTERRUPTED
    except Exception as error:
        if not is_expected(error):
            raise
        sys.stderr.write(f"muxrl: {error}\n")
        return exit_code_of(error)


if __name__ == "__main__":
    sys.exit(main())
