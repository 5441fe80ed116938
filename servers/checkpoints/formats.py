"""Which formats of a file can be read: those up to this program's own.

A file of a run, a sweep or a checkpoint says its ``format``. It is one more than before where a
change of the file is one that earlier readers do not understand.
"""

from __future__ import annotations


def format_problem(found: object, newest: int) -> str:
    """Returns why a file cannot be read, in words that follow its name; "" if it can.

    Args:
        found: its ``format``.
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
