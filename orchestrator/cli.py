"""The command ``muxrl``: launch, check or sweep experiments, serve a server, measure runs."""

from __future__ import annotations

import argparse
import contextlib
import gc
import os
import sys
from collections.abc import Sequence
from importlib import import_module, metadata
from importlib.util import find_spec

from muxrl import SERVERS_PYTHON, needs_newer_python
from muxrl.orchestrator.commands import experiment
from muxrl.orchestrator.doing import doing, is_terminal, said_on
from muxrl.orchestrator.errors import ConfigError, ExitCode, exit_code_of, is_expected
from muxrl.orchestrator.launch.lasting_output import (
    forget_lost_readers,
    lasting_copy,
    lasting_output,
)
from muxrl.orchestrator.supervise.ray_session import ONE_THREAD
from muxrl.orchestrator.supervise.signals import claim_signals, ignore_signals
from muxrl.orchestrator.user_modules import prefer_installed_modules
from muxrl.protocol.suggestions import did_you_mean

_COMMANDS = (
    *("algorithms", "configs", "schema", "probe", "gateway", "runs", "logs", "replay", "stop"),
    *("watch", "report", "reproduce", "track", "evaluate", "exploit", "export", "sweep", "league"),
    *("compare", "compliance", "completion"),
)
"""Modules of `muxrl.orchestrator.commands`, in the order of the list of commands; `experiment` has
those that come first."""

_LONG_COMMANDS = frozenset(
    {"launch", "reproduce", "serve", "gateway", "sweep", "league", "exploit"}
)
"""Those whose work goes on where nobody reads what they print; of the others it is the result."""

_PRINTING_COMMANDS = frozenset(
    {
        *("algorithms", "configs", "schema", "completion", "check", "probe", "runs", "logs"),
        "replay",
    }
)
"""Those that only print: whoever reads it may have seen enough, as in ``muxrl runs | head``. Others
end as quietly, but have failed: what they were to say is their result."""

_BRIEF_COMMANDS = frozenset({"check", "report", "export"})
_SLOW_COMMANDS = (_LONG_COMMANDS - {"serve", "gateway"}) | _BRIEF_COMMANDS | {"evaluate", "compare"}
"""Those that say what they do, from the first second on, brief ones in a terminal alone: what they
import takes seconds."""

_MODULES = (
    "ray", "torch", "gymnasium", "tree", "omegaconf", "yaml", "starlette", "uvicorn", "h11", "rich",
    "matplotlib", "jinja2", "scipy", "tensorboardX",
)  # fmt: skip
"""Of the extra `servers` in pyproject.toml; without uvloop, which is not made for Windows, and
shtab, which one command needs."""

_EXPORT_MODULES = ("onnx", "onnxscript", "onnxruntime")
"""Of the extra `export`."""


def main(argv: Sequence[str] | None = None) -> int:
    """Runs one command and returns its exit code; see `muxrl.orchestrator.errors`.

    Args:
        argv: the arguments without the program's name. None takes those of this process, which
            then does nothing else: Ctrl-C, SIGTERM and SIGHUP end the command, and once it is
            done they are ignored.

    Raises:
        SystemExit: the command line itself is wrong (2), or help or the version was asked for (0).
    """
    if argv is not None:
        return _run(argv)
    claim_signals()
    try:
        code = _run(sys.argv[1:])
        ignore_signals()
        gc.freeze()  # Python would look through all that torch brought before it ends: a second
    except KeyboardInterrupt:
        return ExitCode.INTERRUPTED
    return code


def _run(argv: Sequence[str]) -> int:
    args = _parse(argv)
    is_light = args.command == "probe" or (args.command == "compliance" and not args.client)
    if not is_light and (lacking := missing_extra(args.command)):
        sys.stderr.write(f"muxrl: {lacking}\n")
        return ExitCode.REFUSED
    os.environ.update(ONE_THREAD)  # before numpy is imported
    prefer_installed_modules()
    is_long = args.command in _LONG_COMMANDS
    try:
        with contextlib.ExitStack() as stack:
            if is_long:
                stack.enter_context(lasting_output())
            if args.command in _SLOW_COMMANDS:
                # A file of its own, which `quiet` does not redirect; results are not mixed with it.
                copy = stack.enter_context(lasting_copy(1 if is_long else 2))
                if args.command not in _BRIEF_COMMANDS or is_terminal(copy):
                    stack.enter_context(said_on(copy))
                    doing("loading packages")
            return _execute(args)
    except BrokenPipeError:
        if not forget_lost_readers():  # it is of a connection
            raise
        return ExitCode.DONE if args.command in _PRINTING_COMMANDS else ExitCode.FAILED


def _execute(args: argparse.Namespace) -> int:
    try:
        code = int(args.execute(args))
        sys.stdout.flush()
        return code
    except BrokenPipeError:
        raise
    except ConfigError as error:
        what = getattr(args, "config", None) or getattr(args, "run", None) or args.command
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


def _parse(argv: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="muxrl",
        description="Several RL trainers, learning at the same time from one shared simulation.",
    )
    parser.add_argument("--version", action="version", version=f"muxrl {_version()}")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    experiment.add_parsers(commands)
    # What a command is, its module's docstring says: a line for the list, a paragraph for its help.
    for name in _COMMANDS:
        module = import_module(f"muxrl.orchestrator.commands.{name}")
        title, _, about = (module.__doc__ or "").partition("\n\n")
        command = commands.add_parser(
            name, help=title.partition(": ")[2].removesuffix("."), description=about
        )
        command.set_defaults(execute=module.run)
        module.add_arguments(command)
    commands.choices["completion"].set_defaults(whole=parser)

    if argv and not argv[0].startswith("-") and argv[0] not in commands.choices:
        names = ", ".join(commands.choices)
        hint = did_you_mean(argv[0], commands.choices) or f"; choose from {names}"
        parser.error(f"there is no command {argv[0]!r}{hint}")
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


def missing_extra(command: str) -> str:
    """Returns what a command lacks and how to install it, or "" if everything is installed.

    Nothing is imported. An install without extras has the client, and not the servers' packages;
    on an older Python it cannot have them.
    """
    if sys.version_info < SERVERS_PYTHON:
        return f"{command!r} {needs_newer_python()}"
    extras = {"servers": _MODULES, **({"export": _EXPORT_MODULES} if command == "export" else {})}
    for extra, modules in extras.items():
        if missing := [name for name in modules if find_spec(name) is None]:
            return (
                f"{command!r} needs {', '.join(missing)}, not installed here; "
                f"they come with: pip install 'muxrl[{extra}]'"
            )
    return ""


if __name__ == "__main__":
    sys.exit(main())
