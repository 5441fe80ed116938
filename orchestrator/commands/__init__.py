"""The commands of ``muxrl``: for each its arguments and what it does (``run``).

The docstring of a module is the help of its command: after the colon what the list of commands
says, then what ``muxrl COMMAND --help`` begins with.

Ray, torch, numpy and OmegaConf are imported where a command needs them, so that ``--help`` is
quick.
"""
