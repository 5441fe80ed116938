"""``muxrl evaluate``: the policies of a finished run, played again."""
