"""Compares runs of one simulation, side by side and head to head (``muxrl compare``).

Side by side, runs of different assignments are ranked by their own evaluations. Head to head, the
policies of different runs play each other. ``docs/paper.md`` says what the numbers mean.

``compare.py`` is the entry; ``findings/`` computes the results, ``arena.py`` and ``matches.py``
play episodes, ``output/`` writes the page, the files and the terminal's tables.
"""
