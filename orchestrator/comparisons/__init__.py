"""Runs of one simulation compared, so that what is said of algorithms can be believed.

Side by side: different assignments of the same roles, each in runs of its own, over seeds. Head to
head: the policies of one run meet those of another. `compare_runs` does both; the command is
``muxrl compare``, and ``docs/comparisons.md`` says what the numbers mean.
"""
