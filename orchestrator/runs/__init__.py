"""A run's processes between start and stop."""
