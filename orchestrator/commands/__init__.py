"""The commands of ``muxrl``: each has a module with a function of its name (`command.Command`).

A module's docstring is the help of its command. The text after the colon is the command's line in
the list of commands, and the next paragraph is the beginning of ``muxrl COMMAND --help``. The
function's docstring has the help of each argument.

A command's module is imported only when the command is called, and Ray, torch, numpy and OmegaConf
only where a command needs them, so that ``--help`` is quick.
"""
