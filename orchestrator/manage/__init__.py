"""Works on runs and sweeps by their directories: lists and stops them, reads their logs."""
