"""The algorithms that a policy server can train, by name in `registry`."""
