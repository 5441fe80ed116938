"""Tells real differences of floats from rounding errors of sums."""

NOISE = 1e-12
"""Numbers up to this count as 0: they are rounding errors of sums."""
_LEAST_WIDTH = 1e-6
"""Least range of numbers, relative to the largest one, that counts as a difference: sums of equal
float32 rewards differ by less."""


def is_wide(width: float, largest: float) -> bool:
    """Whether numbers differ by more than rounding errors of sums.

    Args:
        width: the width of the numbers' range.
        largest: the largest absolute value of the numbers.
    """
    return width > max(NOISE, _LEAST_WIDTH * largest)
