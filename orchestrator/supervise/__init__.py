"""The processes of a run: placed, started, watched, restarted and ended, on Ray or alone."""
