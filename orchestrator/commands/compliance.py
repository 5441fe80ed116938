"""``muxrl compliance``: try the protocol's rules on a server or a client of any language.

Plays every rule of docs/protocol.md against a server that serves nobody else, or starts a strict
server that fails on cue, and a client's program.
"""

from __future__ import annotations

import argparse
import logging
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from muxrl.orchestrator.errors import ConfigError, ExitCode

if TYPE_CHECKING:
    from muxrl.orchestrator.compliance.verdicts import Verdict


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the command's arguments."""
    what = parser.add_mutually_exclusive_group(required=True)
    what.add_argument("--server", metavar="HOST:PORT", help="a server, or a gateway")
    what.add_argument("--client", action="store_true", help="the program that COMMAND starts")
    parser.add_argument(
        "program", nargs="*", metavar="-- COMMAND",
        help="of a client that plays six episodes or more; in it {gateway} is the address",
    )  # fmt: skip
    parser.add_argument(
        "--token-file", type=Path, metavar="FILE", help="has the token of the server"
    )
    parser.add_argument(
        "--config", metavar="CONFIG",
        help="whose simulation the client is; default: driver_0, driver_1 and toll of "
        "docs/protocol.md",
    )  # fmt: skip
    parser.add_argument(
        "--port", type=int, default=0, help="of the strict server; default: any free one"
    )
    parser.add_argument(
        "--timeout", type=float, default=120.0, metavar="S", help="for the client; default: 120"
    )


def run(args: argparse.Namespace) -> int:
    """Tries the rules, prints a line for each, and returns 1 if a needed one is broken."""
    from muxrl.orchestrator.compliance.verdicts import table

    logging.basicConfig(level=logging.WARNING, format="%(levelname)s %(name)s: %(message)s")
    if args.client != bool(args.program):
        raise ConfigError(["--client needs a program, -- COMMAND, and --server has none"])
    verdicts = _try_client(args) if args.client else _try_server(args)
    sys.stdout.write(table(verdicts) + "\n")
    has_broken = any(v.outcome == "broken" and v.is_needed for v in verdicts)
    return ExitCode.FAILED if has_broken else ExitCode.DONE


def _try_server(args: argparse.Namespace) -> list[Verdict]:
    from muxrl.orchestrator.compliance.server_trial import judge_server

    try:
        token = args.token_file.read_text(encoding="utf-8").strip() if args.token_file else ""
        return list(judge_server(args.server, token))
    except (OSError, ValueError) as error:
        raise ConfigError([str(error)]) from None


def _try_client(args: argparse.Namespace) -> list[Verdict]:
    from muxrl.orchestrator.compliance.client_trial import MORNINGS, judge_client
    from muxrl.servers.network.listening import CannotListen

    agents, state_size = MORNINGS, None
    if args.config:
        from muxrl.orchestrator.config.facts import probe
        from muxrl.orchestrator.config.load import load_config

        facts = probe(load_config(args.config).simulation)
        agents, state_size = facts.agents, facts.state_size
    try:
        return judge_client(
            args.program, agents, state_size, port=args.port, timeout_s=args.timeout
        )
    except CannotListen as error:
        raise ConfigError([str(error)]) from None
