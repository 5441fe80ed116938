"""The commands of ``muxrl``: for each its arguments (``add_parser``) and what it does (``run``).

Ray, torch, numpy and OmegaConf are imported where a command needs them, so that ``--help`` is
quick.
"""
