"""Which formats of a file can be read: all up to the newest one that this program knows.

A file of a run, a sweep or a checkpoint states its ``format``, which increases by one when the file
changes so that earlier readers do not understand it.
"""

from __future__ import annotations


def format_problem(found: object, newest: int) -> str:
    """Returns why a file cannot be read, in words to follow its name; "" if it can.

    Args:
        found: the file's ``format``.
        newest: the format that this program writes.
    """
    if type(found) is not int or found < 1:
        return f"has the format {found!r}, this muxrl reads 1 to {newest}; was it edited?"
    if found > newest:
        return (
            f"was made by a newer muxrl (format {found}; this one reads up to {newest}): update "
            "muxrl"
        )
    return ""
