"""The command ``muxrl``: launch, check or sweep experiments, serve a server, measure runs."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from importlib import metadata

from muxrl.orchestrator import exit_codes
from muxrl.orchestrator.commands import compare, evaluate, experiment, sweep
from muxrl.orchestrator.extras import missing_extra
from muxrl.orchestrator.runs.signals import claim_signals, ignore_signals


def main(argv: Sequence[str] | None = None) -> int:
    """Runs one command and returns its exit code: 0, or 2 for what cannot be run.

    Args:
        argv: the arguments without the program's name; None: those of this process.

    Raises:
        SystemExit: the command line itself is wrong (2), or help or the version was asked for (0).
    """
    args = _parse(argv)
    if lacking := missing_extra(args.command):
        sys.stderr.write(f"muxrl: {lacking}\n")
        return exit_codes.CONFIG
    # Experiments name environments of the folder they are started in, as `python -m` allows.
    if os.getcwd() not in sys.path:
        sys.path.append(os.getcwd())
    from muxrl.orchestrator.config import ConfigError

    try:
        return int(args.execute(args))
    except ConfigError as error:
        what = getattr(args, "config", None) or getattr(args, "run", args.command)
        for problem in error.problems:
            sys.stderr.write(f"muxrl: {what}: {problem}\n")
        return exit_codes.CONFIG
    except KeyboardInterrupt:
        return exit_codes.INTERRUPTED


def program() -> int:
    """`main`, for a process that does nothing else: signals stay ignored once it is done.

    Returns:
        The exit code, also if it is told to end again and again.
    """
    claim_signals()
    try:
        code = main()
        ignore_signals()
    except KeyboardInterrupt:
        return exit_codes.INTERRUPTED
    return code


def _parse(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="muxrl",
        description="Several RL trainers, learning at the same time from one shared simulation.",
    )
    parser.add_argument("--version", action="version", version=f"muxrl {_version()}")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    experiment.add_parsers(commands)
    for command in (evaluate, sweep, compare):
        command.add_parser(commands)

    args, rest = parser.parse_known_args(argv)
    # argparse takes all positionals at once; those after an option are left over.
    has_overrides = "overrides" in args
    unknown = [x for x in rest if not has_overrides or x.startswith("-") or "=" not in x]
    if unknown:
        parser.error(f"unrecognized arguments: {' '.join(unknown)}")
    if has_overrides:
        args.overrides += rest
    return args


def _version() -> str:
    try:
        return metadata.version("muxrl")
    except metadata.PackageNotFoundError:
        return "(not installed)"


if __name__ == "__main__":
    sys.exit(program())
