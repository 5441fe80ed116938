"""QMIX beside BenchMARL's: one task, one measure, and a side for each; see `benchmarl_spread`."""
