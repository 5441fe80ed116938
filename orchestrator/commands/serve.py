"""``muxrl serve``: run one server of an experiment in the foreground.

Runs one server of an experiment in the foreground, until Ctrl-C. All of them, with one address for
simulations and a run directory, are 'muxrl launch' of a config with 'env: external'.
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
        config (CONFIG): a YAML file, or the name of a packaged config (tag).
        overrides (key=value): replaces a value of the config, such as seed=3 or
            servers.qmix.settings.lr=0.001.
        server (NAME): id of the server.
        run_dir (DIR): where its checkpoint goes, every checkpoint.interval_s and when it ends;
            default: none is written.
        resume: go on from the newest checkpoint in the run's DIR.
    """
    from muxrl.orchestrator.config import load_config
    from muxrl.protocol.suggestions import similar_or_known

    loaded = load_config(config, overrides)
    if server is None:
        raise ConfigError(
            [
                "serve runs one server, so name it: --server "
                f"{' or '.join(loaded.servers)}. All servers of a config are started by 'muxrl "
                "launch', with 'env: external' for a simulation that somebody else starts; without "
                "'stop' until Ctrl-C"
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
