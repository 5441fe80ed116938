"""``muxrl completion``: a script with which a shell completes the command line."""

from __future__ import annotations

import argparse
import functools
import sys
from collections.abc import Iterator
from pathlib import Path

from muxrl.orchestrator.errors import ConfigError, ExitCode

_SHELLS = ("bash", "zsh", "fish")


def add_parser(
    commands: argparse._SubParsersAction[argparse.ArgumentParser], whole: argparse.ArgumentParser
) -> None:
    """Adds the command and its arguments; `whole` is the parser that they all belong to."""
    parser = commands.add_parser(
        "completion",
        help="print a script with which a shell completes commands, options and files",
        description='Prints a script: eval "$(muxrl completion bash)" in ~/.bashrc, the same '
        "with zsh in ~/.zshrc, or muxrl completion fish > ~/.config/fish/completions/muxrl.fish.",
    )
    parser.add_argument("shell", choices=_SHELLS, help="whose script")
    parser.set_defaults(execute=functools.partial(run, whole=whole))


def run(args: argparse.Namespace, whole: argparse.ArgumentParser) -> int:
    """Prints the script, and returns the exit code.

    Raises:
        ConfigError: shtab, which writes it, is not installed.
    """
    try:
        import shtab
    except ModuleNotFoundError as error:
        raise ConfigError(["needs shtab, not installed here: pip install shtab"]) from error
    for action in _actions(whole):
        if action.type is Path or action.dest == "config":
            action.complete = shtab.FILE  # type: ignore[attr-defined]
    sys.stdout.write(shtab.complete(whole, shell=args.shell))
    return ExitCode.DONE


def _actions(parser: argparse.ArgumentParser) -> Iterator[argparse.Action]:
    for action in parser._actions:
        yield action
        if isinstance(action, argparse._SubParsersAction):
            for inner in action.choices.values():
                yield from _actions(inner)
