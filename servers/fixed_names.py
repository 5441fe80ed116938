"""The names of the algorithms that do not learn; this module imports nothing."""

RANDOM = "RANDOM"
SCRIPTED = "SCRIPTED"
FROZEN = "FROZEN"
POOL = "POOL"

FIXED_NAMES = (RANDOM, SCRIPTED, FROZEN, POOL)


def is_fixed(name: str) -> bool:
    """Whether the algorithm of that name, in upper or lower case, does not learn."""
    return name.upper() in FIXED_NAMES


def no_weights(name: str) -> str:
    """Returns why clients cannot act in place of a server whose algorithm is fixed."""
    return f"{name.upper()} does not learn, and has no weights to give"
