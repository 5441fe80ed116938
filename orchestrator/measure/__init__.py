"""Numbers from records: means with intervals, results of runs, what was learned against random."""
