"""Computes the results of a comparison as plain values; writes and draws nothing."""
