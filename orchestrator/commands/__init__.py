"""The commands of ``muxrl``: for each a module with a function of its name (`command.Command`).

The docstring of a module is the help of its command: after the colon what the list of commands
says, then what ``muxrl COMMAND --help`` begins with. The function's has the help of each argument.

Ray, torch, numpy and OmegaConf are imported where a command needs them, and a command's module only
where it is asked for, so that ``--help`` is quick.
"""
