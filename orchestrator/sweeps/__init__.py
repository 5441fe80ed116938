"""Sweeps: one simulation, many assignments, settings and seeds, on Ray Tune.

    result = start_sweep(load_sweep("experiments/sweeps/chase.yaml"))
    result.frame()

A sweep's YAML (`schema`) is written out to a table of trials (`plan`), each of them an experiment
in which every name is known. Tune (`runner`) runs each one as a whole muxrl run (`trial`), and its
directory (`directory`) says at any time how they stand.
"""
