"""Runs experiments: from a checked config to a report."""
