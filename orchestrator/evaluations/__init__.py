"""``muxrl evaluate``: plays episodes with the policies of a finished run."""
