"""What is equal, but for how floats were summed."""

NOISE = 1e-12
"""Numbers up to this are 0, but for what sums of floats leave."""
_LEAST_WIDTH = 1e-6
"""Of numbers' range, by their size: the same float32 rewards each time are as far apart."""


def is_wide(width: float, largest: float) -> bool:
    """Whether numbers that lie so far apart differ by more than how they were summed.

    Args:
        width: of their range.
        largest: of them, without its sign.
    """
    return width > max(NOISE, _LEAST_WIDTH * largest)
