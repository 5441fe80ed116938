"""Computes results from records: means with intervals, and comparisons with random agents."""
