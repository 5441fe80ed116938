"""Compares the step paths and updates of other systems with ours; see `__main__.py`."""
