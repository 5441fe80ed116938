"""Other systems' step paths and updates beside ours, on the same work. See `__main__.py`."""
