"""Declares the frames of a comparison, which hold its results, and their columns in files.

Inside of muxrl a column may hold estimates, and a frame may have columns beyond its schema, for the
page. In files and frames for users, an estimate ``NAME*`` becomes the three columns ``NAME``,
``NAME_low`` and ``NAME_high``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, get_args

if TYPE_CHECKING:
    from pandas import DataFrame

TableName = Literal[
    "runs",
    "curves",
    "standings",
    "parameters",
    "roles",
    "pairings",
    "learners",
    "matches",
    "payoffs",
    "ratings",
]
TABLE_NAMES: tuple[TableName, ...] = get_args(TableName)
"""The names of all frames and of their files, in order."""
OF_HEAD_TO_HEAD = ("matches", "payoffs", "ratings")
"""Frames that are empty without a head to head."""
_SCHEMAS: Mapping[TableName, str] = {
    "runs": (
        "contestant assignment seed subject return num_episodes env_steps time_s area_under_curve "
        "env_steps_to_threshold time_s_to_threshold random_in_place run"
    ),
    "curves": "contestant seed subject env_steps time_s return",
    "standings": (
        "contestant subject num_runs iqm* mean* area* threshold num_reached env_steps_to_threshold "
        "time_s_to_threshold"
    ),
    "parameters": "contestant subject parameter value iqm* num_runs num_episodes",
    "roles": "role label num_runs num_contexts iqm* random_in_place",
    "pairings": "role first second improvement* difference* num_pairs",
    "learners": (
        "role label others contestant num_runs num_below advantage* over_untrained* verdict"
    ),
    "matches": (
        "role player player_contestant others others_contestant pair return num_episodes "
        "trained_together run other_run"
    ),
    "payoffs": "role player others return* num_pairs",
    "ratings": "role player label env_steps rating* merit*",
}
BASELINE = "baseline: "
"""Prefix of the contestant in those rows of "standings" that have fixed policies only."""
AT_RANDOM = f"{BASELINE}random"
"""The baseline of random actions in all roles."""
Frames = Mapping[TableName, "DataFrame"]


def framed(name: TableName, rows: Iterable[Mapping[str, Any]]) -> DataFrame:
    """Returns rows as a frame of dtype object, in which None stays None; absent values are None."""
    from pandas import DataFrame

    records = list(rows)
    columns = dict.fromkeys(chain(_SCHEMAS[name].replace("*", "").split(), *records))
    return DataFrame([{**dict.fromkeys(columns), **row} for row in records], None, columns, object)


def plain(name: TableName, frame: DataFrame, path_text: Callable[[Path], str] = str) -> DataFrame:
    """Returns a frame with exactly the columns of its schema, still of dtype object.

    Paths become text by `path_text`, since text can be written in every file format.
    """
    from pandas import DataFrame

    columns: dict[str, list[Any]] = {}
    for column in _SCHEMAS[name].split():
        values = list(frame[column.rstrip("*")])
        if column.endswith("*"):
            for end, part in (("", "mean"), ("_low", "low"), ("_high", "high")):
                columns[column.rstrip("*") + end] = [x and getattr(x, part) for x in values]
        else:
            columns[column] = [path_text(x) if isinstance(x, Path) else x for x in values]
    return DataFrame(columns, dtype=object)
