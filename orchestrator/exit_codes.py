"""The exit codes of ``muxrl``, so that a script need not read its output."""

DONE = 0
FAILED = 1
REFUSED = 2
"""Nothing was started: the config, the command line, or a path in it is wrong."""
INTERRUPTED = 130
"""128 + SIGINT, as shells count."""
