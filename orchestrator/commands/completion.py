"""``muxrl completion``: print a script with which a shell completes commands, options and files.

Prints a script for your shell. To load it, put eval "$(muxrl completion bash)" into ~/.bashrc, or
eval "$(muxrl completion zsh)" into ~/.zshrc; for fish, run once muxrl completion fish >
~/.config/fish/completions/muxrl.fish.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Literal

from muxrl.orchestrator.commands.command import command, whole_parser
from muxrl.orchestrator.errors import ConfigError


@command(only_prints=True)
def completion(shell: Literal["bash", "zsh", "fish"]) -> None:
    """Prints the script.

    Args:
        shell: the shell that loads the script.

    Raises:
        ConfigError: shtab, which writes it, is not installed.
    """
    try:
        import shtab
    except ModuleNotFoundError as error:
        raise ConfigError(["needs shtab, not installed here: pip install shtab"]) from error
    parser = whole_parser()
    for action in _actions(parser):
        if action.type is Path or action.dest == "config":
            action.complete = shtab.FILE  # type: ignore[attr-defined]
    sys.stdout.write(shtab.complete(parser, shell=shell))


def _actions(parser: argparse.ArgumentParser) -> Iterator[argparse.Action]:
    for action in parser._actions:
        yield action
        if isinstance(action, argparse._SubParsersAction):
            for inner in action.choices.values():
                yield from _actions(inner)
