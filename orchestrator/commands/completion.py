"""``muxrl completion``: print a script with which a shell completes commands, options and files.

Prints a script: eval "$(muxrl completion bash)" in ~/.bashrc, the same with zsh in ~/.zshrc, or
muxrl completion fish > ~/.config/fish/completions/muxrl.fish.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from pathlib import Path

from muxrl.orchestrator.errors import ConfigError, ExitCode

_SHELLS = ("bash", "zsh", "fish")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the command's arguments."""
    parser.add_argument("shell", choices=_SHELLS, help="whose script")


def run(args: argparse.Namespace) -> int:
    """Prints the script, and returns the exit code.

    Raises:
        ConfigError: shtab, which writes it, is not installed.
    """
    try:
        import shtab
    except ModuleNotFoundError as error:
        raise ConfigError(["needs shtab, not installed here: pip install shtab"]) from error
    for action in _actions(args.whole):
        if action.type is Path or action.dest == "config":
            action.complete = shtab.FILE  # type: ignore[attr-defined]
    sys.stdout.write(shtab.complete(args.whole, shell=args.shell))
    return ExitCode.DONE


def _actions(parser: argparse.ArgumentParser) -> Iterator[argparse.Action]:
    for action in parser._actions:
        yield action
        if isinstance(action, argparse._SubParsersAction):
            for inner in action.choices.values():
                yield from _actions(inner)
