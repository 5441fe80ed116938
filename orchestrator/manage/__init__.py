"""Runs and sweeps seen from outside, by their directories: listed, ended, their logs read."""
