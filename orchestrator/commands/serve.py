"""``muxrl serve``: run one server of an experiment in the foreground.

Runs one server of an experiment in the foreground, until Ctrl-C. 'muxrl launch' of a config with
'env: external' runs all of them, with one address for simulations and a run directory.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from muxrl.orchestrator.commands.command import command
from muxrl.orchestrator.commands.experiment import prepared
from muxrl.orchestrator.errors import ConfigError


@command(is_long=True)
def serve(
    config: str,
    overrides: Sequence[str] = (),
    *,
    server: str | None = None,
    run_dir: Path | None = None,
    resume: bool = False,
) -> int:
    """Answers until Ctrl-C, and returns the exit code.

    Args:
        config (CONFIG): a YAML file, or the name of a packaged config, such as tag.
        overrides (key=value): replaces a value of the config, such as seed=3 or
            servers.qmix.settings.lr=0.001.
        server (NAME): id of the server.
        run_dir (DIR): directory for the server's checkpoint, which is written every
            checkpoint.interval_s seconds and at the end; default: no checkpoint is written.
        resume: continue from the newest checkpoint in --run-dir.
    """
    from muxrl.orchestrator.config import load_config
    from muxrl.protocol.suggestions import similar_or_known

    loaded = load_config(config, overrides)
    if server is None:
        raise ConfigError(
            [
                "serve runs one server, so name it: --server "
                f"{' or '.join(loaded.servers)}. To start all servers of a config, use 'muxrl "
                "launch', with 'env: external' if you start the simulation yourself; without "
                "'stop' it runs until Ctrl-C"
            ]
        )
    if server not in loaded.servers:
        hint = similar_or_known(server, loaded.servers, "the servers are")
        raise ConfigError([f"there is no server {server!r}{hint}"])
    experiment = prepared(loaded, needs_stop=False)
    from muxrl.servers.server import serve_forever

    plan = experiment.servers[server]
    interval_s = loaded.checkpoint.interval_s
    return serve_forever(plan, run_dir, resume=resume, interval_s=interval_s)
