"""``muxrl compliance``: test whether a server or client in any language follows the protocol.

Tests every rule of docs/protocol.md on a server that nobody else uses (--server), or on a client
(--client): starts a strict server, which also fails on purpose, and the client's program.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from muxrl.orchestrator.commands.command import check_installed, command
from muxrl.orchestrator.errors import ConfigError, ExitCode

if TYPE_CHECKING:
    from muxrl.orchestrator.compliance.verdicts import Verdict


@command(needs=(), one_of=("server", "client"))
def compliance(
    program: Sequence[str] = (),
    *,
    server: str | None = None,
    client: bool = False,
    token_file: Path | None = None,
    config: str | None = None,
    port: int = 0,
    timeout: float = 120.0,
) -> int:
    """Tries the rules, prints a line for each, and returns 1 if a needed one is broken.

    Args:
        program (-- COMMAND): starts a client that plays six episodes or more; {gateway} in it is
            replaced by the strict server's address.
        server (HOST:PORT): address of the server or gateway to test.
        client: test the client that COMMAND starts.
        token_file (FILE): file with the server's token.
        config (CONFIG): the config whose agents the client plays; default: driver_0, driver_1 and
            toll of docs/protocol.md.
        port: port of the strict server; default: any free one.
        timeout (S): seconds after which the client is ended.
    """
    if client:
        check_installed("compliance", ["servers"])
    from muxrl.orchestrator.compliance.verdicts import table

    logging.basicConfig(level=logging.WARNING, format="%(levelname)s %(name)s: %(message)s")
    if client != bool(program):
        raise ConfigError(
            ["--client needs the client's command, after --; with --server there must be none"]
        )
    if server is None:
        verdicts = _try_client(program, config, port, timeout)
    else:
        verdicts = _try_server(server, token_file)
    sys.stdout.write(table(verdicts) + "\n")
    has_broken = any(v.outcome == "broken" and v.is_needed for v in verdicts)
    return ExitCode.FAILED if has_broken else ExitCode.DONE


def _try_server(address: str, token_file: Path | None) -> list[Verdict]:
    from muxrl.orchestrator.compliance.server_trial import judge_server

    try:
        token = token_file.read_text(encoding="utf-8").strip() if token_file else ""
        return list(judge_server(address, token))
    except (OSError, ValueError) as error:
        raise ConfigError([str(error)]) from None


def _try_client(
    program: Sequence[str], config: str | None, port: int, timeout_s: float
) -> list[Verdict]:
    from muxrl.orchestrator.compliance.client_trial import MORNINGS, judge_client
    from muxrl.servers.network.listening import CannotListen

    agents, state_size, agents_return = MORNINGS, None, False
    if config:
        from muxrl.orchestrator.config.facts import probe
        from muxrl.orchestrator.config.load import load_config

        simulation = load_config(config).simulation
        facts, agents_return = probe(simulation), simulation.respawn != "refuse"
        agents, state_size = facts.agents, facts.state_size
    try:
        return judge_client(
            program,
            agents,
            state_size,
            agents_return=agents_return,
            port=port,
            timeout_s=timeout_s,
        )
    except CannotListen as error:
        raise ConfigError([str(error)]) from None
