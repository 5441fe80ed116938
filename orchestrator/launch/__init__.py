"""The life of a run: from a checked config to a report."""
